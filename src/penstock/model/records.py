"""Records as Arrow: raw from Kafka, split into good and bad, with their coordinates in one struct column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.staging import Refusal

COORDINATES = "_penstock"
"""The reserved column that carries a row's topic, partition, offset and timestamp from source to sink."""

COMPUTED = "_penstock_"
"""The prefix of columns computed for one sink in addition to the row: a record's topic, key, ..."""

DELETES = f"{COMPUTED}delete"
"""For a merging sink: true if the row deletes its key."""

NEVER_NULL = b"penstock.never_null"
"""Set in the metadata of a nullable field whose values are never null. Tables are created with nullable columns."""

TIMESTAMP = pa.timestamp("us", tz="UTC")
LAST_TIMESTAMP = 253_402_300_799_999_999
"""The last microsecond of the year 9999, where Spark's and Python's timestamps end."""
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

COORDINATES_FIELD = pa.field(
    COORDINATES,
    pa.struct(
        [
            pa.field("topic", pa.string()),
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("timestamp", TIMESTAMP),
        ]
    ),
)

RAW_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
    ]
)

BAD_SCHEMA = pa.schema(
    [
        pa.field("stage", pa.string()),
        pa.field("code", pa.string()),
        pa.field("message", pa.string()),
        *RAW_SCHEMA,
        pa.field("refused_by", pa.string()),
    ]
)
"""A bad record: where it failed, why, its original bytes and coordinates, and which sinks lack its row."""

QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("pipeline", pa.string()),
        pa.field("batch_id", pa.int64()),
        *(field for field in BAD_SCHEMA if field.name != "refused_by"),
        pa.field("quarantined_at", TIMESTAMP),
    ]
)
"""A bad record in the quarantine: with its pipeline, its batch, and when it was quarantined."""


# Not from a list: that makes pyarrow import pandas, which every command would wait for.
NO_BAD = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in BAD_SCHEMA], schema=BAD_SCHEMA)


@dataclass(frozen=True, slots=True)
class Split:
    """Rows that go on, and records that do not (in `BAD_SCHEMA`)."""

    good: pa.RecordBatch
    bad: pa.RecordBatch = field(default_factory=lambda: NO_BAD)
    refused: tuple[Refusal, ...] = ()
    """Rows that a transform refuses, by their coordinates: their bytes are no longer available."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Other counters, by name."""

    @classmethod
    def all_good(cls, rows: pa.RecordBatch) -> Split:
        """A split in which every row goes on."""
        return cls(rows)


def coordinates_of(raw: pa.RecordBatch) -> pa.StructArray:
    """The coordinates of raw records, as the array of the reserved column."""
    fields = list(COORDINATES_FIELD.type)
    return pa.StructArray.from_arrays([raw.column(f.name) for f in fields], fields=fields)


def bad_records(
    raw: pa.RecordBatch, stage: str | pa.Array, codes: pa.Array, messages: pa.Array, by: pa.Array | None = None
) -> pa.RecordBatch:
    """`raw` records as bad ones: a code and a message for each, and who refused it where others did not.

    A time beyond the last timestamp becomes null.
    """
    stages = pa.repeat(pa.scalar(stage), raw.num_rows) if isinstance(stage, str) else stage
    refused_by = pa.nulls(raw.num_rows, pa.string()) if by is None else by
    beyond = beyond_timestamps(raw.column("timestamp"))
    if beyond is not None:
        times = pc.if_else(beyond, pa.scalar(None, TIMESTAMP), raw.column("timestamp"))
        raw = raw.set_column(RAW_SCHEMA.get_field_index("timestamp"), RAW_SCHEMA.field("timestamp"), times)
    return pa.RecordBatch.from_arrays([stages, codes, messages, *raw.columns, refused_by], schema=BAD_SCHEMA)


def beyond_timestamps(times: pa.Array) -> pa.BooleanArray | None:
    """Which times lie after the last timestamp; None where none does."""
    beyond = pc.greater(times, pa.scalar(LAST_TIMESTAMP, TIMESTAMP))
    return pc.fill_null(beyond, False) if pc.any(beyond, min_count=0).as_py() else None

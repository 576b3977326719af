"""Rows to records: a topic, a partition, a key, a value and headers for each, still as columns.

What a sink computes for a row arrives in further columns; without one there is a default. The value is the row as JSON,
without the computed columns, and without the coordinates unless they are kept; values and keys may instead be
written by a registry's schema. A record's timestamp is that of the source record; a row without coordinates gets the
time at which it is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.model import COMPUTED, COORDINATES, HEADERS, Refusal
from penstock.sinks.kafka.encode.encoding import Encoders, own_columns
from penstock.sinks.merging import refusals
from penstock.sinks.row_json import json_rows, texts

TOPIC = f"{COMPUTED}topic"
KEY = f"{COMPUTED}key"
VALUE = f"{COMPUTED}value"
PARTITION = f"{COMPUTED}partition"
HEADER = f"{COMPUTED}header:"

RECORD_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("timestamp", pa.int64()),
    ]
)
"""A record to be sent. `timestamp` counts milliseconds; 0 is the time of sending."""


class RecordMaker(Protocol):
    """Makes the records of a sink. It must pickle."""

    def screen(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[Refusal]]:
        """The rows that records can be made of, and a refusal for each other row."""
        ...

    def make(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """One record in `RECORD_SCHEMA` for each screened row, in the same order."""
        ...

    def refuse(self, rows: pa.RecordBatch, code: str, message: str) -> Sequence[Refusal]:
        """Refuse rows whose records no topic takes."""
        ...


@dataclass(frozen=True)
class RowRecords:
    """Records from a pipeline's rows. `topic` is for rows without one of their own."""

    sink: str
    topic: str | None
    keep_coordinates: bool = False
    encoders: Encoders = field(default_factory=Encoders)

    def screen(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[Refusal]]:
        """The rows that the schemas of value and key can hold."""
        return self.encoders.screen(self.sink, rows)

    def make(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """One record for each row."""
        names = rows.schema.names
        topic = pa.scalar(self.topic, pa.string())
        columns = [
            rows.column(TOPIC).cast(pa.string()) if TOPIC in names else pa.repeat(topic, rows.num_rows),
            rows.column(PARTITION).cast(pa.int32()) if PARTITION in names else pa.nulls(rows.num_rows, pa.int32()),
            self._keys(rows),
            self._values(rows),
            _headers(rows),
            _timestamps(rows),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)

    def refuse(self, rows: pa.RecordBatch, code: str, message: str) -> Sequence[Refusal]:
        """Each row to the quarantine, by its coordinates."""
        return refusals(self.sink, rows, code, message)

    def _keys(self, rows: pa.RecordBatch) -> pa.Array:
        if self.encoders.key is not None:
            return self.encoders.key.encode(rows)
        return as_bytes(rows.column(KEY)) if KEY in rows.schema.names else pa.nulls(rows.num_rows, pa.binary())

    def _values(self, rows: pa.RecordBatch) -> pa.Array:
        if self.encoders.value is not None:
            return self.encoders.value.encode(rows)
        if VALUE in rows.schema.names:
            return as_bytes(rows.column(VALUE))
        own = own_columns(rows.schema, keep_coordinates=self.keep_coordinates)
        return as_bytes(json_rows(rows.select(own.names)))


def as_bytes(values: pa.Array) -> pa.BinaryArray:
    """Values as a record carries them: bytes as they are, everything else as UTF-8 text."""
    kind = values.type
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return values.cast(pa.binary())
    return texts(values).cast(pa.binary())


def _headers(rows: pa.RecordBatch) -> pa.Array:
    """The header columns of each row as a list, in the order of the columns; nulls are left out."""
    names = [name for name in rows.schema.names if name.startswith(HEADER)]
    count = rows.num_rows
    if not names or not count:
        return pa.nulls(count, HEADERS)
    columns = pa.concat_arrays([as_bytes(rows.column(name)) for name in names])
    by_row = np.arange(len(names) * count).reshape(len(names), count).T.ravel()
    values = columns.take(pa.array(by_row))
    keys = pa.array(np.tile(np.array([name.removeprefix(HEADER) for name in names], dtype=object), count), pa.string())
    there = values.is_valid()
    lengths = there.to_numpy(zero_copy_only=False).reshape(count, len(names)).sum(axis=1)
    pairs = pa.StructArray.from_arrays([keys.filter(there), values.filter(there)], fields=list(HEADERS.value_type))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, pairs).cast(HEADERS)


def _timestamps(rows: pa.RecordBatch) -> pa.Array:
    if COORDINATES not in rows.schema.names:
        return pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    return milliseconds(pc.struct_field(rows.column(COORDINATES), "timestamp"))


def milliseconds(moments: pa.Array) -> pa.Int64Array:
    """Times as a record carries them; 0 for a null."""
    return pc.fill_null(pc.divide(moments.cast(pa.timestamp("us")).cast(pa.int64()), 1000), 0)

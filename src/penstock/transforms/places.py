"""The records that rows come from, by their coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import COORDINATES, OffsetRange


def records_of(rows: pa.RecordBatch, places: Sequence[int]) -> list[OffsetRange | None]:
    """The record of each of some rows; None where the row does not say it."""
    if COORDINATES not in rows.schema.names:
        return [None] * len(places)
    taken = rows.column(COORDINATES).take(pa.array(places, pa.int64()))
    # Field by field: the timestamp may be one that Python has no value for.
    parts = (pc.struct_field(taken, name).to_pylist() for name in ("topic", "partition", "offset"))
    return [
        None
        if topic is None or partition is None or offset is None
        else OffsetRange(topic, partition, offset, offset + 1)
        for topic, partition, offset in zip(*parts, strict=True)
    ]


def place_in_words(rows: pa.RecordBatch, row: int) -> dict[str, str]:
    """For the context of an error: the record of a row, where it is known."""
    [record] = records_of(rows, [row])
    return {} if record is None else {"record": f"{record.topic}[{record.partition}] offset {record.start}"}

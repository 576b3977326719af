"""One decoder inside another: records numbered, so that what comes back says which record it came from.

A decoder carries a record's offset along and never looks at it. Inside, the row's number stands in its place, in the
coordinates of good rows and in the bad records; outside, the original records are put back by it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.decoders.refusal import Reason
from penstock.model import COORDINATES, RAW_SCHEMA, coordinates_of

_VALUE = RAW_SCHEMA.get_field_index("value")
_OFFSET = RAW_SCHEMA.get_field_index("offset")


def numbered(raw: pa.RecordBatch) -> pa.RecordBatch:
    """`raw` with the number of each row as its offset."""
    return raw.set_column(_OFFSET, RAW_SCHEMA.field(_OFFSET), pa.array(range(raw.num_rows), pa.int64()))


def with_values(raw: pa.RecordBatch, values: pa.BinaryArray) -> pa.RecordBatch:
    """`raw` with other values."""
    return raw.set_column(_VALUE, RAW_SCHEMA.field(_VALUE), values)


def rows_of(good: pa.RecordBatch) -> pa.Int64Array:
    """The number of the record that each good row came from."""
    return pc.struct_field(good.column(COORDINATES), "offset")


def reasons_of(bad: pa.RecordBatch) -> dict[int, Reason]:
    """Why each bad record is bad, by its number."""
    return {
        row: Reason(code, message)
        for row, code, message in zip(
            *(bad.column(name).to_pylist() for name in ("offset", "code", "message")), strict=True
        )
    }


def restored(raw: pa.RecordBatch, good: pa.RecordBatch) -> pa.RecordBatch:
    """Good rows with the coordinates of their records in `raw`."""
    coordinates = coordinates_of(raw)
    if good.num_rows != raw.num_rows:
        coordinates = coordinates.take(rows_of(good))
    return pa.RecordBatch.from_arrays([*good.columns[:-1], coordinates], schema=good.schema)

"""The record's key as one more column, read by a decoder of its own.

A format with one value a message (text, an Avro primitive) gives that value's type, `raw` gives the bytes, anything
else a struct. A record without a key has null there. A key that cannot be read makes its record bad. Inside, the row's
number stands in the place of the offset, which a decoder carries along and never looks at, in the coordinates of good
rows and in the bad records; outside, the original records are put back by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import Decoder, TellingDecoder
from penstock.decoders.framing import JudgingDecoder
from penstock.decoders.refusal import Reason, refuse
from penstock.decoders.text import RawDecoder
from penstock.errors import DefinitionError
from penstock.model import COORDINATES, COORDINATES_FIELD, RAW_SCHEMA, Split, coordinates_of
from penstock.registry import RegisteredSchema

_VALUE_INDEX = RAW_SCHEMA.get_field_index("value")
_OFFSET = RAW_SCHEMA.get_field_index("offset")


def numbered(raw: pa.RecordBatch) -> pa.RecordBatch:
    """`raw` with the number of each row as its offset."""
    return raw.set_column(_OFFSET, RAW_SCHEMA.field(_OFFSET), pa.array(range(raw.num_rows), pa.int64()))


def with_values(raw: pa.RecordBatch, values: pa.BinaryArray) -> pa.RecordBatch:
    """`raw` with other values."""
    return raw.set_column(_VALUE_INDEX, RAW_SCHEMA.field(_VALUE_INDEX), values)


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


_VALUE = "value"


@dataclass(frozen=True)
class KeyedDecoder:
    """Implements `contracts.Decoder`: the columns of `value`, then `column` with what `key` reads out of the key.

    Tombstones are the value's business: their keys are read where the row is passed on.
    """

    value: Decoder
    key: Decoder
    column: str

    def __post_init__(self) -> None:
        if self.column.lower() in (name.lower() for name in self.value.schema.names):
            raise DefinitionError(
                "DECODE_COLUMN",
                f"column {self.column}: the name is taken, so the key cannot have it",
                context={"decoded columns": ", ".join(self.value.schema.names[:-1])},
                hint="give the key another column",
            )

    def __reduce__(self) -> tuple[object, ...]:
        return KeyedDecoder, (self.value, self.key, self.column)

    @cached_property
    def schema(self) -> pa.Schema:
        """The value's columns, the key, and the coordinates."""
        return pa.schema([*list(self.value.schema)[:-1], pa.field(self.column, key_type(self.key)), COORDINATES_FIELD])

    def decode(self, raw: pa.RecordBatch) -> Split:
        """Split raw records; the key is read only where the value was."""
        inside = numbered(raw)
        values = self.value.decode(inside)
        good, rows = values.good, rows_of(values.good)
        reasons = reasons_of(values.bad)
        keys = read_keys(self.key, inside if len(rows) == inside.num_rows else inside.take(rows))
        if keys.reasons:
            reasons.update({row: Reason(why.code, f"key: {why.message}") for row, why in keys.reasons.items()})
            kept = pa.array([row not in reasons for row in rows.to_pylist()], pa.bool_())
            good, rows = good.filter(kept), rows.filter(kept)
        column = keys.values
        if len(column) != len(rows):
            places = np.full(raw.num_rows, -1)
            places[keys.rows] = np.arange(len(column))
            taken = places[rows.to_numpy()]
            column = column.take(pa.array(taken, mask=taken < 0))
        good = restored(raw, good)
        columns = [*good.columns[:-1], column, good.columns[-1]]
        return Split(pa.RecordBatch.from_arrays(columns, schema=self.schema), refuse(raw, reasons))

    def refuses(self, schema: RegisteredSchema) -> Reason | None:
        """What the value's decoder says."""
        return self.value.refuses(schema) if isinstance(self.value, JudgingDecoder) else None

    def notices(self) -> list[str]:
        """What either decoder has to say since it was last asked."""
        telling = (part for part in (self.value, self.key) if isinstance(part, TellingDecoder))
        return [notice for part in telling for notice in part.notices()]


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that could be read, the number of the record that each came from, and why others could not."""

    values: pa.Array
    rows: npt.NDArray[np.int64]
    reasons: dict[int, Reason]


def key_type(key: Decoder) -> pa.DataType:
    """The type of the one column that a key becomes."""
    return key.schema.field(_VALUE).type if _is_single(key) else pa.struct(list(key.schema)[:-1])


def read_keys(key: Decoder, records: pa.RecordBatch) -> Keys:
    """The keys of numbered `records`, where they have one."""
    found = records.column("key")
    if found.null_count:
        records = records.filter(found.is_valid())
    read = key.decode(with_values(records, records.column("key")))
    if _is_single(key):
        values = read.good.column(_VALUE)
    else:
        values = pa.StructArray.from_arrays(read.good.columns[:-1], fields=list(key_type(key)))
    return Keys(values, rows_of(read.good).to_numpy(), reasons_of(read.bad))


def _is_single(key: Decoder) -> bool:
    return isinstance(key, RawDecoder) or key.schema.names[:-1] == [_VALUE]

"""The record's key as one more column, read by a decoder of its own.

A format with one value a message (text, an Avro primitive) gives that value's type, `raw` gives the bytes, anything
else a struct. A record without a key has null there. A key that cannot be read makes its record bad.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.contracts import Decoder, TellingDecoder
from penstock.decoders.numbered import numbered, reasons_of, restored, rows_of, with_values
from penstock.decoders.refusal import Reason, refuse
from penstock.decoders.text import RawDecoder
from penstock.decoders.writers import JudgingDecoder
from penstock.errors import DefinitionError
from penstock.model import COORDINATES_FIELD, Split
from penstock.registry import RegisteredSchema

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

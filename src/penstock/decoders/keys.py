"""The record's key: as one more column, and as what says which row a tombstone deletes.

A decoder of its own reads the key. A format with one value a message (text, an Avro primitive) gives that value's type,
`raw` gives the bytes, anything else a struct. Inside, the row's number stands in the place of the offset, which a
decoder carries along and never looks at, in the coordinates of good rows and in the bad records; outside, the original
records are put back by it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.decoders.batch import RecordDecoder
from penstock.decoders.json.decoder import JsonDecoder
from penstock.decoders.json.values import type_name
from penstock.decoders.refusal import TOMBSTONE_KEY, Reason, refuse
from penstock.decoders.text import RawDecoder
from penstock.errors import DefinitionError
from penstock.model import COORDINATES, COORDINATES_FIELD, DELETES, RAW_SCHEMA, Split, coordinates_of
from penstock.registry import RegisteredSchema

_VALUE = "value"
_VALUE_INDEX = RAW_SCHEMA.get_field_index("value")
_OFFSET = RAW_SCHEMA.get_field_index("offset")


def _numbered(raw: pa.RecordBatch) -> pa.RecordBatch:
    """`raw` with the number of each row as its offset."""
    return raw.set_column(_OFFSET, RAW_SCHEMA.field(_OFFSET), pa.array(range(raw.num_rows), pa.int64()))


def _with_values(raw: pa.RecordBatch, values: pa.BinaryArray) -> pa.RecordBatch:
    """`raw` with other values."""
    return raw.set_column(_VALUE_INDEX, RAW_SCHEMA.field(_VALUE_INDEX), values)


def _rows_of(good: pa.RecordBatch) -> pa.Int64Array:
    """The number of the record that each good row came from."""
    return pc.struct_field(good.column(COORDINATES), "offset")


def _reasons_of(bad: pa.RecordBatch) -> dict[int, Reason]:
    """Why each bad record is bad, by its number."""
    return {
        row: Reason(code, message)
        for row, code, message in zip(
            *(bad.column(name).to_pylist() for name in ("offset", "code", "message")), strict=True
        )
    }


def _restored(raw: pa.RecordBatch, good: pa.RecordBatch) -> pa.RecordBatch:
    """Good rows with the coordinates of their records in `raw`."""
    coordinates = coordinates_of(raw)
    if good.num_rows != raw.num_rows:
        coordinates = coordinates.take(_rows_of(good))
    return pa.RecordBatch.from_arrays([*good.columns[:-1], coordinates], schema=good.schema)


@dataclass(frozen=True)
class KeyedDecoder(RecordDecoder):
    """The columns of `value`, then `column` with what `key` reads out of the key.

    A record without a key has null there. A key that cannot be read makes its record bad. The value's decoder
    handles tombstones: their keys are read where the row is passed on.
    """

    value: RecordDecoder
    key: RecordDecoder
    column: str

    def __post_init__(self) -> None:
        if self.column.lower() in (name.lower() for name in self.value.schema.names):
            raise DefinitionError(
                "DECODE_COLUMN",
                f"column {self.column}: the name is taken, so the key cannot have it",
                context={"decoded columns": ", ".join(self.value.schema.names[:-1])},
                hint="use another column for the key",
            )

    @cached_property
    def schema(self) -> pa.Schema:
        """The value's columns, the key, and the coordinates."""
        return pa.schema([*list(self.value.schema)[:-1], pa.field(self.column, _key_type(self.key)), COORDINATES_FIELD])

    def read(self, raw: pa.RecordBatch) -> Split:
        """Split raw records; the key is read only where the value was."""
        inside = _numbered(raw)
        values = self.value.read(inside)
        good, rows = values.good, _rows_of(values.good)
        reasons = _reasons_of(values.bad)
        keys = _read_keys(self.key, inside if len(rows) == inside.num_rows else inside.take(rows))
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
        good = _restored(raw, good)
        columns = [*good.columns[:-1], column, good.columns[-1]]
        return Split(pa.RecordBatch.from_arrays(columns, schema=self.schema), refuse(raw, reasons))

    @property
    def knows_refusals(self) -> bool:
        """As for the decoder of the value."""
        return self.value.knows_refusals

    def refuses(self, schema: RegisteredSchema) -> Reason | None:
        """Why every record of a writer's schema would be refused, by its value alone."""
        return self.value.refuses(schema)

    def conditions(self) -> list[str]:
        """Those of both decoders."""
        return [*self.value.conditions(), *self.key.conditions()]


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys that could be read, the number of the record that each came from, and why others could not."""

    values: pa.Array
    rows: npt.NDArray[np.int64]
    reasons: dict[int, Reason]


def _key_type(key: RecordDecoder) -> pa.DataType:
    """The type of the one column that a key becomes."""
    return key.schema.field(_VALUE).type if _is_single(key) else pa.struct(list(key.schema)[:-1])


def _read_keys(key: RecordDecoder, records: pa.RecordBatch) -> _Keys:
    """The keys of numbered `records`, where they have one."""
    found = records.column("key")
    if found.null_count:
        records = records.filter(found.is_valid())
    read = key.read(_with_values(records, records.column("key")))
    if _is_single(key):
        values = read.good.column(_VALUE)
    else:
        values = pa.StructArray.from_arrays(read.good.columns[:-1], fields=list(_key_type(key)))
    return _Keys(values, _rows_of(read.good).to_numpy(), _reasons_of(read.bad))


def _is_single(key: RecordDecoder) -> bool:
    return isinstance(key, RawDecoder) or key.schema.names[:-1] == [_VALUE]


@dataclass(frozen=True)
class TombstoneDecoder(RecordDecoder):
    """Decodes records without a value, for sinks that merge by `keys`.

    Without a decoder for keys, the key is a JSON object with the key columns or, for a single column, its plain text or
    JSON value. With one, it is what that decoder gives: fields by name, case aside, or for a single column the value
    itself, where it is exactly a value of the column's type: numbers become numbers of another size, and numbers and
    text each other, where what comes back is what was there before; `017` is not 17, and 1.5 no integer. What does not
    give the key columns is a bad record.
    """

    keys: pa.Schema
    key: RecordDecoder | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        """The key columns, the coordinates, and the mark of a delete."""
        fields = [field.with_nullable(True) for field in self.keys]
        return pa.schema([*fields, COORDINATES_FIELD, pa.field(DELETES, pa.bool_())])

    def read(self, raw: pa.RecordBatch) -> Split:
        """Split tombstones into deletes and bad records."""
        numbered = _numbered(raw)
        found = _read_keys(self.key, numbered) if self.key is not None else self._read_json(numbered)
        problems = {row: reason.message for row, reason in found.reasons.items()}
        problems |= dict.fromkeys(np.flatnonzero(raw.column("key").is_null()).tolist(), "the record has no key")
        parts = {name.lower(): part for name, part in self._parts(found.values).items()}
        columns = []
        fits = np.ones(len(found.rows), bool)
        for field in self.keys:
            part = parts.get(field.name.lower())
            if part is None:
                columns.append(pa.nulls(len(fits), field.type))
                why, fit = f"it has no field {field.name}", np.zeros(len(fits), bool)
            else:
                column, fit = _exactly(part, field.type)
                columns.append(column)
                found_type, wanted = type_name(part.type), type_name(field.type)
                why = f"{field.name}: the {found_type} is null, or not exactly a value of {wanted}"
            problems |= dict.fromkeys(found.rows[fits & ~fit].tolist(), why)
            fits &= fit
        rows = pa.array(found.rows[fits], pa.int64())
        marks = pa.repeat(pa.scalar(True), len(rows))
        deletes = [*(column.filter(pa.array(fits)) for column in columns), coordinates_of(raw).take(rows), marks]
        lead = f"the key of this tombstone does not give {', '.join(self.keys.names)}: "
        reasons = {row: Reason(TOMBSTONE_KEY, lead + why) for row, why in problems.items()}
        return Split(pa.RecordBatch.from_arrays(deletes, schema=self.schema), refuse(raw, reasons))

    def _parts(self, values: pa.Array) -> dict[str, pa.Array]:
        """What may fill a key column, by name: a struct's fields, or the one value that there is."""
        if types.is_struct(values.type):
            return dict(zip((field.name for field in values.type), values.flatten(), strict=True))
        return {self.keys.names[0]: values} if len(self.keys) == 1 else {}

    def _read_json(self, records: pa.RecordBatch) -> _Keys:
        records = records.filter(records.column("key").is_valid())
        objects = pa.array([self._object(key) for key in records.column("key").to_pylist()], pa.binary())
        read = self._json.read(_with_values(records, objects))
        values = pa.StructArray.from_arrays(read.good.columns[:-1], fields=list(self._json.columns))
        return _Keys(values, _rows_of(read.good).to_numpy(), _reasons_of(read.bad))

    @cached_property
    def _json(self) -> JsonDecoder:
        return JsonDecoder(pa.schema([field.with_nullable(False) for field in self.keys]))

    def _object(self, key: bytes) -> bytes:
        if key.lstrip().startswith(b"{") or len(self.keys) > 1:
            return key
        [column] = self.keys
        name = json.dumps(column.name).encode()
        if types.is_string(column.type) and not key.startswith(b'"'):
            text = key.decode(errors="surrogateescape")
            # What is not UTF-8 stays so, and is refused with the reason.
            return b"{%b:%b}" % (name, json.dumps(text, ensure_ascii=False).encode(errors="surrogateescape"))
        return b"{%b:%b}" % (name, key)


def _exactly(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """`values` as `kind`, and which of them are exact; null where they are not, and a null is not exact."""
    if values.type == kind:
        return values, np.asarray(values.is_valid())
    if not (_is_plain(values.type) and _is_plain(kind)):
        return pa.nulls(len(values), kind), np.zeros(len(values), bool)
    try:
        cast = _cast(values, kind)
        exact = pc.fill_null(pc.equal(_cast(cast, values.type), values), False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(values) == 1:
            return pa.nulls(1, kind), np.zeros(1, bool)
        parts = [_exactly(values.slice(at, 1), kind) for at in range(len(values))]
        return pa.concat_arrays([part for part, _ in parts]), np.concatenate([exact for _, exact in parts])
    return pc.if_else(exact, cast, None), np.asarray(exact)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if types.is_decimal(kind) and types.is_integer(values.type):
        # Arrow asks for room for the largest integer, whatever the values are.
        values = values.cast(pa.decimal128(38, 0))
    return values.cast(kind)


def _is_plain(kind: pa.DataType) -> bool:
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    return bool(is_number or types.is_string(kind) or types.is_binary(kind))

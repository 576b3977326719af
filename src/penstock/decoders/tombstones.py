"""Tombstones as deletes: the record's key says which row goes.

Without a decoder for keys, the key is a JSON object with the key columns or, for a single column, its plain text or
JSON value. With one, it is what that decoder gives: fields by name, case aside, or for a single column the value
itself, where it is exactly a value of the column's type: numbers become numbers of another size, and numbers and text
each other, where what comes back is what was there before; `017` is not 17, and 1.5 no integer. What does not give the
key columns is a bad record, with the code `TOMBSTONE_KEY`.
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

from penstock.contracts import Decoder
from penstock.decoders.json.decoder import JsonDecoder
from penstock.decoders.json.values import type_name
from penstock.decoders.keyed import numbered, read_keys, reasons_of, rows_of, with_values
from penstock.decoders.refusal import Reason, refuse
from penstock.model import COORDINATES_FIELD, DELETES, Split, coordinates_of


def exactly(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
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
        parts = [exactly(values.slice(at, 1), kind) for at in range(len(values))]
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


CODE = "TOMBSTONE_KEY"


@dataclass(frozen=True)
class TombstoneDecoder:
    """Implements `contracts.Decoder` over records without a value, for sinks that merge by `keys`."""

    keys: pa.Schema
    key: Decoder | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return TombstoneDecoder, (self.keys, self.key)

    @cached_property
    def schema(self) -> pa.Schema:
        """The key columns, the coordinates, and the mark of a delete."""
        fields = [field.with_nullable(True) for field in self.keys]
        return pa.schema([*fields, COORDINATES_FIELD, pa.field(DELETES, pa.bool_())])

    def decode(self, raw: pa.RecordBatch) -> Split:
        """Split tombstones into deletes and bad records."""
        read = self._by_decoder(raw, self.key) if self.key is not None else self._by_json(raw)
        rows = pa.array(read.rows, pa.int64())
        marks = pa.repeat(pa.scalar(True), len(rows))
        deletes = [*read.columns, coordinates_of(raw).take(rows), marks]
        lead = f"the key of this tombstone does not give {', '.join(self.keys.names)}: "
        reasons = {row: Reason(CODE, lead + why) for row, why in read.problems.items()}
        return Split(pa.RecordBatch.from_arrays(deletes, schema=self.schema), refuse(raw, reasons))

    def _by_decoder(self, raw: pa.RecordBatch, decoder: Decoder) -> _Read:
        found = read_keys(decoder, numbered(raw))
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
                column, fit = exactly(part, field.type)
                columns.append(column)
                found_type, wanted = type_name(part.type), type_name(field.type)
                why = f"{field.name}: the {found_type} is null, or not exactly a value of {wanted}"
            problems |= dict.fromkeys(found.rows[fits & ~fit].tolist(), why)
            fits &= fit
        return _Read([column.filter(pa.array(fits)) for column in columns], found.rows[fits], problems)

    def _parts(self, values: pa.Array) -> dict[str, pa.Array]:
        """What may fill a key column, by name: a struct's fields, or the one value that there is."""
        if types.is_struct(values.type):
            return dict(zip((field.name for field in values.type), values.flatten(), strict=True))
        return {self.keys.names[0]: values} if len(self.keys) == 1 else {}

    def _by_json(self, raw: pa.RecordBatch) -> _Read:
        objects = pa.array([self._object(key) for key in raw.column("key").to_pylist()], pa.binary())
        read = self._json.decode(with_values(numbered(raw), objects))
        problems = {row: reason.message for row, reason in reasons_of(read.bad).items()}
        return _Read(read.good.columns[:-1], rows_of(read.good).to_numpy(), problems)

    @cached_property
    def _json(self) -> JsonDecoder:
        return JsonDecoder(pa.schema([field.with_nullable(False) for field in self.keys]))

    def _object(self, key: bytes | None) -> bytes | None:
        if key is None or key.lstrip().startswith(b"{") or len(self.keys) > 1:
            return key
        [column] = self.keys
        name = json.dumps(column.name).encode()
        if types.is_string(column.type) and not key.startswith(b'"'):
            text = key.decode(errors="surrogateescape")
            # What is not UTF-8 stays so, and is refused with the reason.
            return b"{%b:%b}" % (name, json.dumps(text, ensure_ascii=False).encode(errors="surrogateescape"))
        return b"{%b:%b}" % (name, key)


@dataclass(frozen=True, slots=True)
class _Read:
    """The key columns of the tombstones that have them, which tombstones those are, and what is wrong with the rest."""

    columns: list[pa.Array]
    rows: npt.NDArray[np.int64]
    problems: dict[int, str]

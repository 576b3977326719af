"""Tombstones as deletes: the record's key says which row goes.

Without a decoder for keys, the key is a JSON object with the key columns or, for a single column, its plain text or
JSON value. With one, it is what that decoder gives: fields by name, case aside, or for a single column the value
itself, where it is exactly a value of the column's type: numbers become numbers of another size, and numbers and text
each other, where what comes back is what was there before; `017` is not 17, and 1.5 no integer. What does not give the
key columns is a bad record, with the code `TOMBSTONE_KEY`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

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
from penstock.errors import DefinitionError
from penstock.model import COORDINATES_FIELD, DELETES, Split, coordinates_of
from penstock.registry import RegisteredSchema


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


# Fields that a later version of a schema dropped stay columns, null where a record has none.
#
# Records of the earlier version are still in the topic, and their values must not be lost because the newest version
# no longer names them. Only the top level is looked at; a dropped field whose type leans on other named types that the
# newest version lacks, or has otherwise, is left out.

_PRIMITIVE = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def with_dropped(
    newest: RegisteredSchema, older: Sequence[RegisteredSchema], message: str | None = None
) -> RegisteredSchema:
    """The newest version with the fields that it dropped; `older` are the versions before, the newest first."""
    if not older:
        return newest
    try:
        if newest.kind == "AVRO":
            return _avro(newest, older)
        if newest.kind == "JSON":
            return _json(newest, older)
        return _protobuf(newest, older, message) if message is not None else newest
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DefinitionError):
        # No schema at all, or none of its kind: the decoder says so better.
        return newest


def _avro(newest: RegisteredSchema, older: Sequence[RegisteredSchema]) -> RegisteredSchema:
    from penstock.decoders.avro import avro_reader

    reader = json.loads(avro_reader(newest))
    if not isinstance(reader, dict) or reader.get("type") != "record":
        return newest
    known = {name.lower() for field in reader["fields"] for name in (field["name"], *field.get("aliases", ()))}
    count = len(reader["fields"])
    for schema in older:
        before = json.loads(avro_reader(schema))
        for field in before.get("fields", ()) if isinstance(before, dict) else ():
            defined, used = set(_defined(reader)), set(_used(field["type"]))
            own = list(_defined(field["type"]))
            if field["name"].lower() in known or defined & set(own) or not used <= defined | set(own):
                continue
            kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
            optional = ["null", *(kind for kind in kinds if kind != "null")]
            reader["fields"].append({"name": field["name"], "type": optional, "default": None})
            known.add(field["name"].lower())
    if len(reader["fields"]) == count:
        return newest
    return replace(newest, text=json.dumps(reader), references=())


def _defined(schema: Any) -> Iterator[str]:
    """The named types that a schema with absolute names defines."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _defined(branch)
    elif isinstance(schema, dict):
        if schema.get("type") in ("record", "enum", "fixed", "error"):
            yield schema["name"]
        for part in (schema.get("type"), schema.get("items"), schema.get("values")):
            yield from _defined(part)
        for field in schema.get("fields", ()):
            yield from _defined(field["type"])


def _used(schema: Any) -> Iterator[str]:
    """The named types that a schema refers to by name."""
    if isinstance(schema, str):
        if schema not in _PRIMITIVE:
            yield schema
    elif isinstance(schema, list):
        for branch in schema:
            yield from _used(branch)
    elif isinstance(schema, dict):
        kind = schema.get("type")
        if isinstance(kind, dict | list):
            yield from _used(kind)
        for part in (schema.get("items"), schema.get("values")):
            yield from _used(part)
        for field in schema.get("fields", ()):
            yield from _used(field["type"])


def _json(newest: RegisteredSchema, older: Sequence[RegisteredSchema]) -> RegisteredSchema:
    body = json.loads(newest.text)
    if not isinstance(body, dict) or not isinstance(body.get("properties"), dict):
        return newest
    known = {name.lower() for name in body["properties"]}
    dropped: dict[str, Any] = {}
    for schema in older:
        before = json.loads(schema.text)
        for name, kind in (before.get("properties") or {}).items() if isinstance(before, dict) else ():
            if name.lower() not in known and '"$ref"' not in json.dumps(kind):
                dropped[name] = kind
                known.add(name.lower())
    if not dropped:
        return newest
    return replace(newest, text=json.dumps({**body, "properties": {**body["properties"], **dropped}}))


def _protobuf(newest: RegisteredSchema, older: Sequence[RegisteredSchema], message: str) -> RegisteredSchema:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

    from penstock.registry.protobuf import protobuf_reader, read_descriptors

    def found_in(file: FileDescriptorProto) -> DescriptorProto | None:
        prefix = f"{file.package}." if file.package else ""
        return next((one for one in file.message_type if prefix + one.name == message), None)

    root = read_descriptors(protobuf_reader(newest)).file[-1]
    target = found_in(root)
    if target is None:
        return newest
    names, numbers = {field.name.lower() for field in target.field}, {field.number for field in target.field}
    count = len(target.field)
    for schema in older:
        before = found_in(read_descriptors(protobuf_reader(schema)).file[-1])
        for field in before.field if before is not None else ():
            if field.name.lower() in names or field.number in numbers or field.type_name:
                continue
            kept = target.field.add()
            kept.CopyFrom(field)
            kept.ClearField("oneof_index")
            if field.label != FieldDescriptorProto.LABEL_REPEATED and root.syntax == "proto3":
                kept.proto3_optional = True
                kept.oneof_index = len(target.oneof_decl)
                target.oneof_decl.add(name=f"_{field.name}")
            names.add(field.name.lower())
            numbers.add(field.number)
    if len(target.field) == count:
        return newest
    del target.reserved_range[:]
    del target.reserved_name[:]
    return replace(newest, text=base64.b64encode(root.SerializeToString()).decode())

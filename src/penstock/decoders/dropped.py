"""Fields that a later version of a schema dropped stay columns, null where a record has none.

Records of the earlier version are still in the topic, and their values must not be lost because the newest version
no longer names them. Only the top level counts; a dropped field whose type refers to named types that the newest
version lacks, or defines differently, is left out.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from penstock.errors import DefinitionError
from penstock.registry import RegisteredSchema


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
        # Not a valid schema: the decoder reports it better.
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
            defined = {name for name, is_defined in _names(reader) if is_defined}
            own, used = ({name for name, here in _names(field["type"]) if here is wanted} for wanted in (True, False))
            if field["name"].lower() in known or defined & own or not used <= defined | own:
                continue
            kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
            optional = ["null", *(kind for kind in kinds if kind != "null")]
            reader["fields"].append({"name": field["name"], "type": optional, "default": None})
            known.add(field["name"].lower())
    if len(reader["fields"]) == count:
        return newest
    return replace(newest, text=json.dumps(reader), references=())


def _names(schema: Any) -> Iterator[tuple[str, bool]]:
    """The named types in a schema with absolute names, and whether each is defined there, or referred to."""
    from penstock.decoders.avro.schema import NAMED, PRIMITIVES

    if isinstance(schema, str):
        if schema not in PRIMITIVES:
            yield schema, False
    elif isinstance(schema, list):
        for branch in schema:
            yield from _names(branch)
    elif isinstance(schema, dict):
        kind = schema.get("type")
        if kind in NAMED:
            yield schema["name"], True
        inner = None if isinstance(kind, str) else kind
        for part in (inner, schema.get("items"), schema.get("values")):
            yield from _names(part)
        for field in schema.get("fields", ()):
            yield from _names(field["type"])


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

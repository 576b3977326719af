"""Schemas of whoever may register one: each ends in an error with a code or in columns, soon and in little memory."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from tests.hostile.bounds import bounded
from tests.hostile.decoders import raw_batch
from tests.protos import first_message

from penstock.decoders.avro.decoder import AvroDecoder, avro_columns
from penstock.decoders.json.schema import json_schema_columns
from penstock.decoders.protobuf.types import message_of
from penstock.errors import PenstockError
from penstock.registry import ReferencedSchema, RegisteredSchema
from penstock.registry.protobuf import protobuf_reader


def _record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields.items()]}


def _doubling_avro() -> str:
    kind: Any = "int"
    for n in range(40):
        kind = _record(f"R{n}", l=kind, r=kind if isinstance(kind, str) else f"R{n - 1}")
    return json.dumps(kind)


def _nested(levels: int) -> str:
    return '{"type": "array", "items": ' * levels + '"int"' + "}" * levels


AVRO: dict[str, Callable[[], str]] = {
    "doubles": lambda: _doubling_avro(),
    "nested 60 deep": lambda: json.dumps(_record("R", a=json.loads(_nested(60)))),
    "nested 100,000 deep": lambda: _nested(100_000),
    "holds itself": lambda: json.dumps(_record("R", a="R")),
    "many fields": lambda: json.dumps(_record("R", **{f"f{n}": "int" for n in range(200_000)})),
    "long name": lambda: json.dumps(_record("R" * 2_000_000, a="int")),
    "union of many": lambda: json.dumps(_record("R", a=[_record(f"A{n}", x="int") for n in range(5_000)])),
    "fixed of 2**60 bytes": lambda: json.dumps(_record("R", a={"type": "fixed", "name": "F", "size": 2**60})),
    "decimal of 10**9 digits": lambda: json.dumps(
        _record("R", a={"type": "bytes", "logicalType": "decimal", "precision": 10**9, "scale": 10**9})
    ),
    "number of 100,000 digits": lambda: '{"type": "fixed", "name": "F", "size": ' + "9" * 100_000 + "}",
    "half a character": lambda: '{"type": "record", "name": "R", "fields": [{"name": "\\ud800", "type": "int"}]}',
    "fields that are a number": lambda: '{"type": "record", "name": "R", "fields": 5}',
    "nothing": lambda: "",
}


def _doubling_json(word: str) -> str:
    made: dict[str, Any] = {"n0": {"type": "integer"}}
    for n in range(1, 60):
        below = {"$ref": f"#/definitions/n{n - 1}"}
        twice: Any = {"l": below, "r": below} if word == "properties" else [below, below]
        made[f"n{n}"] = {"type": "object", word: twice} if word == "properties" else {word: twice}
    return json.dumps({"type": "object", "properties": {"a": {"$ref": "#/definitions/n59"}}, "definitions": made})


JSON: dict[str, Callable[[], str]] = {
    **{f"doubles by {word}": partial(_doubling_json, word) for word in ("properties", "allOf", "anyOf", "oneOf")},
    "refers to itself": lambda: '{"type": "object", "properties": {"a": {"$ref": "#"}}}',
    "refers in a circle": lambda: '{"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}',
    "refers to a file": lambda: '{"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}',
    "refers to the network": lambda: '{"type": "object", "properties": {"a": {"$ref": "http://169.254.169.254/x"}}}',
    "refers to anchors": lambda: json.dumps(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {f"p{n}": {"$ref": f"#a{n}"} for n in range(3_000)},
            "$defs": {f"d{n}": {"$anchor": f"a{n}", "type": "integer"} for n in range(3_000)},
        }
    ),
    "nested 100,000 deep": lambda: '{"items":' * 100_000 + "1" + "}" * 100_000,
    "nested 300 deep": lambda: '{"type": "object", "properties": {"a":' * 300 + '{"type": "integer"}' + "}}" * 300,
    "many properties": lambda: json.dumps(
        {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(40_000)}}
    ),
    "many alternatives": lambda: json.dumps(
        {"anyOf": [{"type": "object", "properties": {"a": {"const": n}}} for n in range(9_000)]}
    ),
    "pattern that never ends": lambda: (
        '{"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}}'
    ),
    "half a character": lambda: '{"type": "object", "properties": {"\\ud800": {"type": "integer"}}}',
    "nothing": lambda: "",
}


def _descriptor(**given: Any) -> str:
    return base64.b64encode(FileDescriptorProto(syntax="proto3", **given).SerializeToString()).decode()


def _entry() -> dict[str, Any]:
    entry = {"name": "E", "options": {"map_entry": True}}
    field = {"name": "m", "number": 1, "label": 3, "type": 11, "type_name": ".M.E"}
    return {"name": "M", "field": [field], "nested_type": [entry]}


PROTOBUF: dict[str, Callable[[], str]] = {
    "nested 20,000 deep": lambda: 'syntax = "proto3"; ' + "message M { " * 20_000 + "}" * 20_000,
    "many fields": lambda: (
        'syntax = "proto3"; message M { ' + "".join(f"int32 f{n} = {n + 1};" for n in range(15_000)) + "}"
    ),
    "holds itself": lambda: 'syntax = "proto3"; message M { M m = 1; }',
    "doubles": lambda: (
        'syntax = "proto3"; message First { M28 m = 1; } message M0 { int32 x = 1; }'
        + "".join(f"message M{n} {{ M{n - 1} l = 1; M{n - 1} r = 2; }}" for n in range(1, 29))
    ),
    "imports a file of the host": lambda: 'syntax = "proto3"; import "/etc/passwd"; message M { int32 x = 1; }',
    "imports from above": lambda: 'syntax = "proto3"; import "../../etc/passwd"; message M { int32 x = 1; }',
    "imports itself": lambda: 'syntax = "proto3"; import "registered.proto"; message M { int32 x = 1; }',
    "no text": lambda: "\0\1\2",
    "base64 of nothing": lambda: "AAAA",
    "descriptor that imports a module": lambda: _descriptor(
        dependency=["google/../os.proto"], message_type=[{"name": "M"}]
    ),
    "descriptor with a map of no entries": lambda: _descriptor(message_type=[_entry()]),
    "nothing": lambda: "",
}
NAMES = (
    "--plugin=protoc-gen-x=/bin/sh",
    "--x_out=/tmp",
    "-I/",
    "@/etc/passwd",
    "../a.proto",
    "/a.proto",
    "a\nb.proto",
    "\0",
)


def outcome_of(kind: str, text: str, references: tuple[ReferencedSchema, ...] = ()) -> str:
    try:
        if kind == "avro":
            plain = '{"type": "record", "name": "R", "fields": [{"name": "new", "type": "int", "default": 1}]}'
            AvroDecoder(plain, framing="none", writers=(text,)).decode(raw_batch([b"\x00\x02", b""]))
            avro_columns(text)
        elif kind == "json":
            json_schema_columns(text, references)
        else:
            found = protobuf_reader(RegisteredSchema(1, "PROTOBUF", text, references))
            message_of(found, first_message(found))
    except PenstockError as error:
        assert len(str(error)) < 5_000
        return error.code
    return "columns"


SCHEMAS = [
    (kind, name, make)
    for kind, entries in {"avro": AVRO, "json": JSON, "protobuf": PROTOBUF}.items()
    for name, make in entries.items()
]
COLUMNS = {
    "avro: nested 60 deep",
    "avro: long name",
    "json: refers to anchors",
    "json: pattern that never ends",
    "protobuf: many fields",
}


@pytest.mark.parametrize(("kind", "name", "make"), SCHEMAS, ids=[f"{kind}: {name}" for kind, name, _ in SCHEMAS])
def test_hostile_schema_ends_with_a_code_or_in_columns(kind: str, name: str, make: Callable[[], str]) -> None:
    text = make()
    with bounded(name):
        outcome = outcome_of(kind, text)
    assert outcome != "columns" or f"{kind}: {name}" in COLUMNS


@pytest.mark.parametrize("name", NAMES)
def test_hostile_reference_name_ends_with_a_code(name: str) -> None:
    root = _descriptor(name="x.proto", message_type=[{"name": "M"}])
    for text in ('syntax = "proto3"; message A { int32 x = 1; }', root):
        with bounded(name):
            assert outcome_of("protobuf", root, (ReferencedSchema(name, text),)) == "PROTOBUF_SCHEMA"
    with bounded(name):
        assert outcome_of("json", "{}", (ReferencedSchema(name, "{}"),)) == "SCHEMA_UNSUPPORTED"

"""Messages and schemas changed by chance: each message ends as a row or a bad record, each schema with a code or not.

The same ones in every run of a seed. 100,000 messages a format and 10,000 schemas are marked `long`.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from tests.hostile.bounds import bounded
from tests.hostile.decoders import AVRO, DECODERS, DESCRIPTORS, PROTO, decoded, good_messages, raw_batch
from tests.mutations import mutated
from tests.protos import first_message

from penstock.decoders.avro.decoder import AvroDecoder
from penstock.decoders.dropped import with_dropped
from penstock.decoders.json.schema import json_schema_columns
from penstock.decoders.protobuf import decoder
from penstock.decoders.protobuf.types import message_of
from penstock.errors import PenstockError
from penstock.registry import ReferencedSchema, RegisteredSchema
from penstock.registry.protobuf import protobuf_reader, read_descriptors

BATCH = 500
JSON_SCHEMA: dict[str, Any] = {
    "$id": "http://shop/order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "labels": {"type": "object", "additionalProperties": {"type": "integer"}},
        "place": {"$ref": "#/definitions/place"},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "size": {"allOf": [{"type": "integer"}, {"minimum": 0}]},
        "kind": {"enum": ["a", None]},
    },
    "required": ["id"],
    "definitions": {"place": {"$anchor": "place", "type": "object", "properties": {"no": {"type": "integer"}}}},
}
_ODD: list[Any] = [
    *(None, True, 0, -1, 38, 2**63, 10**400, 1e999, "", "x", "a" * 1000, "\ud800", "\0"),
    *("null", "record", "string", "array", "decimal", "Order", "shop.Order", "#", "#place", "http://shop/order"),
    *([], {}, [[]], ["null"], ["null", "null"], {"type": "record"}, {"type": "object"}, {"$ref": "#"}, {"allOf": []}),
]
_KEYS = (
    *("type", "name", "namespace", "aliases", "default", "symbols", "size", "items", "values", "fields", "logicalType"),
    *("$ref", "$id", "$schema", "$anchor", "$defs", "anyOf", "oneOf", "allOf", "enum", "const", "prefixItems"),
    *("properties", "additionalProperties", "patternProperties", "required", "format"),
)


@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", sorted(DECODERS))
def test_mutated_messages_end_as_rows_or_bad_records(kind: str, count: int) -> None:
    chance, good = random.Random(count), good_messages(kind)
    codes: set[str] = set()
    for _ in range(count // BATCH):
        messages = [mutated(chance, good) for _ in range(BATCH)]
        with bounded(f"{BATCH} messages of {kind}"):
            codes.update(decoded(kind, messages).bad.column("code").to_pylist())
    assert len(codes) > 2


@pytest.mark.parametrize("count", [200, pytest.param(3_500, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["avro", "json", "protobuf"])
def test_mutated_schemas_end_with_a_code_or_are_read(kind: str, count: int) -> None:
    chance = random.Random(count)
    use, change = _SCHEMAS[kind]
    outcomes: dict[str, int] = {}
    for number in range(count):
        text = change(chance, number)
        with bounded(text[:2000]):
            try:
                use(text)
                outcome = "read"
            except PenstockError as error:
                outcome = error.code
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert len(outcomes) > 1, outcomes


def _use_avro(text: str) -> None:
    """As a writer's schema, as a reader's, and as one that others refer to."""
    reader = json.dumps(AVRO)
    split = AvroDecoder(reader, framing="none", writers=(text,)).decode(raw_batch([b"\x02\x00" * 20, b""]))
    assert split.good.num_rows + split.bad.num_rows == 2
    for schema in (
        RegisteredSchema(1, "AVRO", reader, (ReferencedSchema("n", text),)),
        RegisteredSchema(1, "AVRO", text, (ReferencedSchema("n", reader),)),
    ):
        AvroDecoder(reader).refuses(schema)
        with_dropped(schema, [schema, RegisteredSchema(2, "AVRO", reader)], None)
    AvroDecoder(text, framing="none").decode(raw_batch([b"\x02\x00" * 20, bytes(200)]))


def _use_json(text: str) -> None:
    schema = RegisteredSchema(1, "JSON", text)
    with_dropped(schema, [schema, RegisteredSchema(2, "JSON", json.dumps(JSON_SCHEMA))], None)
    whole = '{"type": "object", "properties": {"a": {"$ref": "other"}, "b": {"$ref": "other#place"}}}'
    with suppress(PenstockError):
        json_schema_columns(whole, [ReferencedSchema("other", text)])
    json_schema_columns(text)


def _use_protobuf(text: str) -> None:
    schema = RegisteredSchema(1, "PROTOBUF", text)
    decoder.refusal(DESCRIPTORS, "shop.Order", schema)
    decoder.resolve(DESCRIPTORS, "shop.Order", schema, (0,))
    with_dropped(schema, [RegisteredSchema(2, "PROTOBUF", text)], "shop.Order")
    found = protobuf_reader(schema)
    message_of(found, first_message(found))


def _changed_json(whole: dict[str, Any]) -> Callable[[random.Random, int], str]:
    def change(chance: random.Random, _number: int) -> str:
        value = json.loads(json.dumps(whole))
        for _ in range(chance.choice((1, 1, 2, 3))):
            _change_once(chance, value)
        text = json.dumps(value)
        return text[: chance.randrange(len(text))] if chance.random() < 0.02 else text

    return change


def _change_once(chance: random.Random, value: Any) -> None:
    places = [path for path in _paths(value) if path]
    if not places:
        return
    *above, last = chance.choice(places)
    parent = value
    for step in above:
        parent = parent[step]
    match chance.randrange(5):
        case 0 | 1:
            parent[last] = chance.choice(_ODD)
        case 2:
            del parent[last]
        case 3:
            other = value
            for step in chance.choice(places):
                other = other[step]
            parent[last] = json.loads(json.dumps(other))
        case _ if isinstance(parent, dict):
            parent[chance.choice(_KEYS)] = chance.choice(_ODD)
        case _:
            parent.insert(0, chance.choice(_ODD))


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for step in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from _paths(value[step], (*path, step))


_ROOT = read_descriptors(DESCRIPTORS).file[-1]


def _changed_proto(chance: random.Random, number: int) -> str:
    """Mostly descriptors: for a text a process is started."""
    if number % 40 == 0:
        return mutated(chance, [PROTO.encode()]).decode(errors="replace")
    if number % 3 == 0:
        return base64.b64encode(mutated(chance, [_ROOT.SerializeToString()])).decode()
    file = FileDescriptorProto.FromString(_ROOT.SerializeToString())
    for _ in range(chance.choice((1, 1, 2, 3))):
        message = chance.choice([*file.message_type, *file.message_type[0].nested_type])
        field = chance.choice(message.field)
        match chance.randrange(8):
            case 0:
                field.number = chance.choice((-1, 0, 1, 19_000, 2**29, 2**31 - 1))
            case 1:
                field.type = chance.randint(1, 18)  # type: ignore[assignment]
            case 2:
                field.type_name = chance.choice(("", ".shop.Order", ".shop.Order.Item", ".nowhere", "Order..", "\n"))
            case 3:
                field.label = chance.randint(1, 3)  # type: ignore[assignment]
            case 4:
                field.name = chance.choice(("", "ID", "_penstock", "a b", "n" * 70_000))
            case 5:
                field.oneof_index = chance.choice((-1, 0, 7, 2**31 - 1))
            case 6:
                file.dependency.append(chance.choice(("registered.proto", "", "../x.proto", "google/x.proto", "a\0b")))
            case _:
                message.nested_type.append(DescriptorProto.FromString(message.SerializeToString()))
    return base64.b64encode(file.SerializeToString()).decode()


_SCHEMAS: dict[str, tuple[Callable[[str], None], Callable[[random.Random, int], str]]] = {
    "avro": (_use_avro, _changed_json(AVRO)),
    "json": (_use_json, _changed_json(JSON_SCHEMA)),
    "protobuf": (_use_protobuf, _changed_proto),
}

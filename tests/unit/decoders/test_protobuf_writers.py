"""Schemas of writers beside the reader's: what may be read as what, and what is refused with both types named."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from tests.unit.decoders.protobuf_messages import classes, descriptors, registered

from penstock.decoders.batch import decode_batch
from penstock.decoders.protobuf.block import protobuf_format
from penstock.decoders.protobuf.decoder import ProtobufDecoder, Resolved, resolve
from penstock.decoders.refusal import Reason
from penstock.registry import RegisteredSchema, RegistrySettings
from penstock.registry.protobuf import protobuf_reader

HEAD = 'syntax = "proto3"; enum E { Z = 0; A = 1; } enum F { Y = 0; B = 1; } message S { int32 x = 1; } '
KINDS = ["int32", "int64", "uint32", "uint64", "bool", "E", "sint32", "sint64", "fixed32", "sfixed32", "fixed64"]
KINDS += ["sfixed64", "float", "double", "string", "bytes", "S", "repeated int32", "repeated S", "map<string, int32>"]

WHOLE = {
    ("int32", "int64"), ("uint32", "int64"), ("uint32", "uint64"), ("sint32", "sint64"), ("E", "int32"), ("E", "int64"),
    ("int32", "E"), ("string", "bytes"), ("bytes", "string"), ("int32", "repeated int32"), ("S", "repeated S"),
    ("bool", "int32"), ("bool", "int64"), ("bool", "uint32"), ("bool", "uint64"), ("bool", "repeated int32"),
    ("E", "repeated int32"),
}  # fmt: skip
"""Writer and reader whose every value stays what it is."""
CHECKED = {
    ("int64", "int32"), ("uint32", "int32"), ("uint64", "int32"), ("uint64", "int64"), ("int32", "uint32"),
    ("int64", "uint32"), ("uint64", "uint32"), ("int32", "uint64"), ("int64", "uint64"), ("E", "uint32"),
    ("E", "uint64"),
    ("sint64", "sint32"), ("fixed32", "sfixed32"), ("sfixed32", "fixed32"), ("fixed64", "sfixed64"),
    ("sfixed64", "fixed64"), ("int64", "repeated int32"), ("uint32", "repeated int32"), ("uint64", "repeated int32"),
}  # fmt: skip
"""Writer and reader where a number may not fit."""


def message(field: str, others: str = "") -> str:
    return f"{HEAD}message M {{ {field} f = 1; {others} }}"


@pytest.fixture(scope="module")
def schemas() -> dict[str, RegisteredSchema]:
    """For each type the schema of a message M with one field of it, registered as base64: protoc is run once."""
    many = descriptors(HEAD + "".join(f"message M{n} {{ {kind} f = 1; }} " for n, kind in enumerate(KINDS)))
    file = FileDescriptorSet.FromString(many).file[-1]
    found = {}
    for n, kind in enumerate(KINDS):
        one = FileDescriptorProto(name="one.proto", syntax="proto3", enum_type=file.enum_type)
        one.message_type.extend([file.message_type[0], file.message_type[1 + n]])
        one.message_type[1].name = "M"
        for field in one.message_type[1].field:
            if field.type_name:
                field.type_name = field.type_name.replace(f".M{n}.", ".M.")
        found[kind] = registered(base64.b64encode(one.SerializeToString()).decode(), 5)
    return found


@pytest.mark.parametrize("reader", KINDS)
def test_every_pair_of_types_is_taken_checked_or_refused(reader, schemas):
    mine = protobuf_reader(schemas[reader])
    for writer in KINDS:
        pair = (writer, reader)
        found = resolve(mine, "M", schemas[writer], (1,))
        if pair in WHOLE or writer == reader:
            assert found == Resolved(mine), pair
        elif pair in CHECKED:
            assert isinstance(found, Resolved), (pair, found)
            assert len(found.narrowed) == 1, pair
        else:
            assert isinstance(found, Reason), pair
            assert found.code == "SCHEMA_INCOMPATIBLE", pair
            assert found.message.startswith("schema id 5: f"), pair


def test_refusal_names_the_field_inside_and_both_types():
    reader = HEAD + "message In { string a = 3; } message M { repeated In in = 2; }"
    writer = HEAD + "message In { S a = 3; } message M { repeated In in = 2; }"

    found = resolve(descriptors(reader), "M", registered(writer, 9), (2,))

    assert found == Reason("SCHEMA_INCOMPATIBLE", "schema id 9: in.a (number 3) is message S there, and string is read")


@pytest.mark.parametrize(
    ("writer", "reader", "kept", "refused"),
    [
        ("int64", "int32", [-(2**31), 5, 2**31 - 1], [2**31, -(2**40)]),
        ("int32", "uint32", [0, 2**31 - 1], [-1]),
        ("uint32", "int32", [0, 2**31 - 1], [2**31]),
        ("int64", "uint64", [0, 2**63 - 1], [-1]),
        ("uint64", "int64", [2**63 - 1], [2**63]),
        ("sint64", "sint32", [-5], [2**35]),
        ("fixed32", "sfixed32", [7], [2**31]),
    ],
)
def test_numbers_that_fit_the_reader_are_kept_and_others_are_refused(raw_batch, writer, reader, kept, refused):
    made = classes(descriptors(message(writer)))["M"]
    found = resolve(descriptors(message(reader)), "M", registered(message(writer), 3), (1,))
    assert isinstance(found, Resolved)
    reader_of_writer = protobuf_format(found.descriptors, "M", found.narrowed)
    raw = raw_batch([made(f=number).SerializeToString() for number in [*kept, *refused]])
    decoder = ProtobufDecoder(descriptors(message(reader)), "M")

    split = decode_batch(
        raw, decoder.schema, "quarantine", 1000, lambda found: [(reader_of_writer, found.values, found.rows)]
    )

    assert split.good.schema == decoder.schema
    assert split.good.column("f").to_pylist() == kept
    assert set(split.bad.column("code").to_pylist()) == {"OUT_OF_RANGE"}
    assert f"f: expected {reader}, found a number of the writer's {writer}" in split.bad.column("message")[0].as_py()
    assert split.bad.num_rows == len(refused)


def test_schema_that_protoc_refuses_makes_its_records_bad():
    found = resolve(descriptors(message("int32")), "M", registered("message {", 8), (0,))

    assert isinstance(found, Reason)
    assert found.code == "SCHEMA_UNSUPPORTED"
    assert "schema id 8" in found.message


def test_message_inside_one_with_maps_is_found_as_either_kind_of_producer_counts():
    text = 'syntax = "proto3"; message Out { map<string, int32> m = 1; message In { int32 x = 1; } In in = 2; }'
    both = [resolve(descriptors(text), "Out.In", registered(text), (0, at)) for at in (0, 1)]

    assert both == [Resolved(descriptors(text))] * 2
    assert isinstance(resolve(descriptors(text), "Out.In", registered(text), (0, 2)), Reason)


FIRST = "message Order { int64 id = 1; string name = 2; }"
SCHEMAS = {
    1: FIRST,
    2: "message Item { int32 x = 1; } message Order { int64 id = 1; string name = 2; string more = 7; Item item = 8; }",
    3: "message Order { string id = 1; string name = 2; }",
    4: FIRST + " // of another subject",
    6: "message Order { int32 id = 1; }",
}


class _Registry(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        schema_id = int(self.path.split("/")[3])
        if schema_id not in SCHEMAS:
            status, answer = 404, {"error_code": 40403, "message": "no"}
        elif "/versions" in self.path:
            status, answer = 200, [{"subject": "others-value" if schema_id == 4 else "orders-value", "version": 1}]
        else:
            text = f'syntax = "proto3"; package shop; {SCHEMAS[schema_id]}'
            status, answer = 200, {"schemaType": "PROTOBUF", "schema": text}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistrySettings]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Registry)
    Thread(target=server.serve_forever, daemon=True).start()
    yield RegistrySettings(f"http://127.0.0.1:{server.server_port}", retries=0)
    server.shutdown()
    server.server_close()


def test_records_of_many_schemas_in_one_batch_are_each_read_by_their_own(raw_batch, registry):
    reader = descriptors(f'syntax = "proto3"; package shop; {SCHEMAS[2]}')
    decoder = ProtobufDecoder(reader, "shop.Order", registry, "orders-value")
    bodies = [(1, b"\0", b"\x08\x0b"), (2, b"\x02\x02", b"\x08\x0c\x3a\x01m"), (2, b"\0", b"\x08\x0d"), (3, b"\0", b"")]
    bodies += [(4, b"\0", b"\x08\x0e"), (5, b"\0", b"\x08\x0f"), (6, b"\0", b"\x08\x10"), (1, b"\0", b"\x08")]
    raw = raw_batch([b"\0" + id.to_bytes(4, "big") + indexes + body for id, indexes, body in bodies] * 2)

    split = decoder.decode(raw)
    before = len(_Registry.asked)
    decoder.decode(raw.slice(0, 3))

    assert [(row["id"], row["more"]) for row in split.good.to_pylist()] == [(11, ""), (12, "m"), (16, "")] * 2
    assert split.bad.column("code").to_pylist() == [
        "WRONG_MESSAGE_INDEX", "SCHEMA_INCOMPATIBLE", "WRONG_SUBJECT", "UNKNOWN_SCHEMA_ID", "TRUNCATED",
    ] * 2  # fmt: skip
    messages = split.bad.column("message").to_pylist()
    assert messages[0] == "[0] is shop.Item in schema id 2, and shop.Order is wanted"
    assert messages[1] == "schema id 3: id (number 1) is string there, and int64 is read"
    assert len(_Registry.asked) == before

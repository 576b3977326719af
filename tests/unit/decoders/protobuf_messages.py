"""Protobuf schemas for the tests, and the classes that write their messages: Google's own, not ours."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from penstock.decoders.protobuf.decoder import ProtobufDecoder
from penstock.registry import ReferencedSchema, RegisteredSchema
from penstock.registry.protobuf import protobuf_reader

ORDERS = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum Status { NEW = 0; PAID = 1; }
message Address { string city = 1; optional string zip = 2; }
message Order {
  int64 id = 1;
  string name = 2;
  double amount = 3;
  google.protobuf.Timestamp at = 4;
  Status status = 5;
  Address address = 6;
  repeated string tags = 7;
  map<string, int32> counts = 8;
  oneof paid { string card = 9; int32 cash = 10; Address bill = 11; }
  repeated fixed32 prices = 12;
}
"""


def registered(text: str, schema_id: int = 1, **references: str) -> RegisteredSchema:
    """A schema as a registry gives it; references by their file names with `__` for the dot."""
    used = tuple(ReferencedSchema(name.replace("__", "."), other) for name, other in references.items())
    return RegisteredSchema(schema_id, "PROTOBUF", text, used)


@cache
def descriptors(text: str) -> bytes:
    return protobuf_reader(registered(text))


def classes(encoded: bytes) -> dict[str, Any]:
    """The classes of all messages in the last file, by name, nested ones as Outer.Inner."""
    files = descriptor_pb2.FileDescriptorSet.FromString(encoded).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    found: dict[str, Any] = {}

    def add(prefix: str, messages: Any) -> None:
        for message in messages:
            found[prefix + message.name] = message_factory.GetMessageClass(message)
            add(f"{prefix}{message.name}.", message.nested_types)

    add("", pool.FindFileByName(files[-1].name).message_types_by_name.values())
    return found


def decode(raw_batch: Any, text: str, message: str, values: list[bytes]) -> pa.RecordBatch:
    """Messages without a header that must all be good."""
    split = ProtobufDecoder(descriptors(text), message, framing="none").decode(raw_batch(values))
    assert split.bad.num_rows == 0, split.bad.select(["code", "message"]).to_pylist()
    split.good.validate(full=True)
    return split.good

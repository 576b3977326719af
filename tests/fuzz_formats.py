"""A rich schema in each format of a registry: good messages by Confluent's serializers, and the rows that they are."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.mutations import varint
from tests.protos import message_classes

Row = dict[str, Any]
AT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
KINDS = 40


@dataclass(frozen=True)
class Format:
    """What a fuzz needs to know of a format."""

    decode: dict[str, Any]
    rows: dict[bytes, Row]
    """Good messages, and what each is read as."""
    read: Callable[[bytes], tuple[int, str]]
    """The order_id and the customer, by a library that is not ours; raises where it cannot read the message."""
    extras: tuple[bytes, ...]
    """Bodies that are hostile in a way that chance does not find."""


def _context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


_AVRO: list[Row] = [
    {"name": "order_id", "type": "long"},
    {"name": "customer", "type": "string"},
    {"name": "amount", "type": "double"},
    {"name": "ratio", "type": "float"},
    {"name": "count", "type": "int"},
    {"name": "flag", "type": "boolean"},
    {"name": "raw", "type": "bytes"},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID", "SENT"]}},
    {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 4}},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "labels", "type": {"type": "map", "values": "long"}},
    {"name": "any", "type": ["null", "long", "string"]},
    {
        "name": "items",
        "type": {
            "type": "array",
            "items": {
                "type": "record",
                "name": "Item",
                "fields": [{"name": "sku", "type": "string"}, {"name": "qty", "type": ["null", "int"]}],
            },
        },
    },
]
_ADDED: Row = {"name": "city", "type": ["null", "string"], "default": None}


def avro_format(registry: str, topic: str) -> Format:
    client = SchemaRegistryClient({"url": registry})
    rows: dict[bytes, Row] = {}
    for fields in (_AVRO, [*_AVRO, _ADDED]):
        text = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": fields})
        encode = AvroSerializer(client, text)
        for n in range(KINDS):
            given: Row = {
                "order_id": n << n,
                "customer": "Ann Ö" * (n % 3),
                "amount": n / 4,
                "ratio": n / 8,
                "count": -n,
                "flag": n % 2 == 0,
                "raw": bytes(range(n)),
                "price": Decimal(n).scaleb(-2),
                "at": AT,
                "day": date(2026, 1, 1 + n % 28),
                "status": ("NEW", "PAID", "SENT")[n % 3],
                "code": b"code",
                "tags": ["a", "ü"][: n % 3],
                "labels": {f"l{at}": at for at in range(n % 4)},
                "any": (None, n, "text")[n % 3],
                "items": [{"sku": f"s{at}", "qty": at or None} for at in range(n % 5)],
                "city": "Ulm",
            }
            message = encode({field["name"]: given[field["name"]] for field in fields}, _context(topic))
            assert message is not None
            kept = {
                "labels": list(given["labels"].items()),
                "any": (None, {"member0": n, "member1": None}, {"member0": None, "member1": "text"})[n % 3],
                "city": "Ulm" if _ADDED in fields else None,
            }
            rows[message] = given | kept

    def read(message: bytes) -> tuple[int, str]:
        schema_id = int.from_bytes(message[1:5], "big")
        body = io.BytesIO(message[5:])
        # Without the logical types, whose Python values are narrower than the columns.
        text = client.get_schema(schema_id).schema_str.replace("logicalType", "unknown")  # type: ignore[union-attr]
        found: Any = fastavro.schemaless_reader(body, json.loads(text), None)
        assert not body.read()
        return found["order_id"], found["customer"]

    extras = (b"\x02" * 5_000, b"\x00" * 5_000, b"\x01\x02" * 2_500)
    return Format({"format": "avro", "registry": {"url": registry}}, rows, read, extras)


_PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
message Head { int32 x = 1; }
message Order {
  message Item { string sku = 1; optional int32 qty = 2; }
  enum Status { NEW = 0; PAID = 1; }
  int64 order_id = 1;
  string customer = 2;
  double amount = 3;
  google.protobuf.Timestamp at = 4;
  repeated Item items = 5;
  map<string, int32> labels = 6;
  oneof pay { string card = 7; uint64 cash = 8; }
  Status status = 9;
  google.protobuf.Struct extra = 10;
  google.protobuf.Int32Value points = 11;
  repeated sint32 scores = 12;
  bytes raw = 13;
  optional float rate = 14;
  fixed32 small = 15;
  // added
}
"""


def protobuf_format(registry: str, topic: str) -> Format:
    client = SchemaRegistryClient({"url": registry})
    rows: dict[bytes, Row] = {}
    readers: dict[bytes, Any] = {}
    for text in (_PROTO, _PROTO.replace("// added", "string city = 16;")):
        order = message_classes({"order.proto": text})["shop.Order"]
        encode = ProtobufSerializer(order, client, {"use.deprecated.format": False})
        for n in range(KINDS):
            message = order(
                order_id=n << n,
                customer="Ann Ö" * (n % 3),
                amount=n / 4,
                items=[order.Item(sku=f"s{at}", qty=at or None) for at in range(n % 5)],
                labels={"a": n} if n % 2 else {},
                status=n % 2,
                scores=[n, -n][: n % 3],
                raw=bytes(range(n)),
                rate=n / 8 if n % 3 else None,
                small=n,
            )
            message.at.FromDatetime(AT)
            row: Row = {
                "order_id": n << n,
                "customer": "Ann Ö" * (n % 3),
                "amount": n / 4,
                "at": AT,
                "items": [{"sku": f"s{at}", "qty": at or None} for at in range(n % 5)],
                "labels": [("a", n)] if n % 2 else [],
                "card": None,
                "cash": None,
                "status": ("NEW", "PAID")[n % 2],
                "extra": None,
                "points": None,
                "scores": [n, -n][: n % 3],
                "raw": bytes(range(n)),
                "rate": n / 8 if n % 3 else None,
                "small": n,
                "city": "",
            }
            if n % 4 == 1:
                message.card, message.points.value = "card", n
                row |= {"card": "card", "points": n}
            if n % 4 == 2:
                message.cash = 2**64 - 1
                message.extra.update({"a": [n, None, {"b": True}]})
                row |= {"cash": Decimal(2**64 - 1), "extra": f'{{"a":[{n},null,{{"b":true}}]}}'}
            if text != _PROTO:
                message.city = row["city"] = "Ulm"
            encoded = encode(message, _context(topic))
            assert encoded is not None
            rows[encoded], readers[encoded[:7]] = row, order

    def read(message: bytes) -> tuple[int, str]:
        found = readers[message[:5] + b"\x02\x02"].FromString(message[7:])
        return found.order_id, found.customer

    extras = (b"\x02\x02" + b"\x2a\x00" * 20_000, b"\x02\x02" + b"\x62\x90\x4e" + b"\x01" * 10_000, _deep_struct())
    decode = {"format": "protobuf", "registry": {"url": registry}, "message": "shop.Order"}
    return Format(decode, rows, read, extras)


def _deep_struct() -> bytes:
    """A Struct with lists inside lists, deeper than anybody reads."""
    value = b""
    for _ in range(300):
        inner = b"\x0a" + varint(len(value)) + value
        value = b"\x32" + varint(len(inner)) + inner
    entry = b"\x0a\x01a\x12" + varint(len(value)) + value
    field = b"\x0a" + varint(len(entry)) + entry
    return b"\x02\x02\x52" + varint(len(field)) + field


_JSON: Row = {
    "type": "object",
    "title": "Order",
    "properties": {
        "order_id": {"type": "integer"},
        "customer": {"type": "string"},
        "amount": {"type": ["number", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "labels": {"type": "object", "additionalProperties": {"type": "integer"}},
        "place": {"type": "object", "properties": {"street": {"type": "string"}, "no": {"type": "integer"}}},
        "flag": {"type": "boolean"},
    },
    "required": ["order_id", "customer"],
}


def json_format(registry: str, topic: str) -> Format:
    client = SchemaRegistryClient({"url": registry})
    rows: dict[bytes, Row] = {}
    more = {**_JSON, "properties": {**_JSON["properties"], "city": {"type": "string"}}}
    for schema in (_JSON, more):
        encode = JSONSerializer(json.dumps(schema), client)
        for n in range(KINDS):
            row: Row = {
                "order_id": n << n,
                "customer": 'Ann "Ö"' * (n % 3),
                "amount": n / 4 if n % 3 else None,
                "at": AT.isoformat(),
                "tags": ["a", "ü"][: n % 3],
                "labels": {f"l{at}": at for at in range(n % 4)},
                "place": {"street": "Ring", "no": n},
                "flag": n % 2 == 0,
            }
            if schema is more:
                row["city"] = "Ulm"
            message = encode(row, _context(topic))
            assert message is not None
            rows[message] = {"city": None} | row | {"at": AT, "labels": list(row["labels"].items())}

    def read(message: bytes) -> tuple[int, str]:
        found = json.loads(message[5:])
        return found["order_id"], found["customer"]

    extras = (b"[" * 5_000, b'{"place":' * 2_000, b'{"order_id":' + b"9" * 5_000 + b"}", b'{"tags":[' + b'"",' * 5_000)
    return Format({"format": "json", "registry": {"url": registry}}, rows, read, extras)


FORMATS = {"avro": avro_format, "protobuf": protobuf_format, "json": json_format}

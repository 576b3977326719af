"""A rich decoder of each format that asks no registry, messages that it reads, and records to give it."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from typing import Any

import fastavro
import pyarrow as pa
from tests.protos import message_classes

from penstock.config.arrow_types import parse_columns
from penstock.contracts import Decoder
from penstock.decoders import JsonDecoder
from penstock.decoders.avro.decoder import AvroDecoder
from penstock.decoders.protobuf import ProtobufDecoder
from penstock.model import COORDINATES, RAW_SCHEMA, Split
from penstock.registry import RegisteredSchema
from penstock.registry.protobuf import protobuf_reader

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string", "aliases": ["title"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID"], "default": "NEW"}},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 4}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "labels", "type": {"type": "map", "values": "long"}},
        {"name": "any", "type": ["null", "long", "string"], "default": None},
        {
            "name": "item",
            "type": {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": ["null", "string"]}]},
        },
    ],
}
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/struct.proto";
message Order {
  message Item { string sku = 1; optional int32 qty = 2; }
  enum Status { NEW = 0; PAID = 1; }
  int64 id = 1;
  string name = 2;
  google.protobuf.Timestamp at = 4;
  repeated Item items = 5;
  map<string, int32> labels = 6;
  oneof pay { string card = 7; uint64 cash = 8; }
  Status status = 9;
  google.protobuf.Struct extra = 10;
  repeated sint32 scores = 12;
  bytes raw = 13;
}
"""
JSON_COLUMNS = (
    "id BIGINT NOT NULL, name STRING, amount DOUBLE, ratio FLOAT, price DECIMAL(38, 2), at TIMESTAMP, day DATE, "
    "raw BINARY, tags ARRAY<STRING>, nested ARRAY<ARRAY<BIGINT>>, labels MAP<STRING, BIGINT>, "
    "item STRUCT<sku: STRING NOT NULL, qty: INT>"
)
DESCRIPTORS = protobuf_reader(RegisteredSchema(1, "PROTOBUF", PROTO))

DECODERS: dict[str, Decoder] = {
    "avro": AvroDecoder(json.dumps(AVRO), framing="none"),
    "protobuf": ProtobufDecoder(DESCRIPTORS, "shop.Order", framing="none"),
    # A map is beyond the fast reader, so there are two.
    "json": JsonDecoder(parse_columns(JSON_COLUMNS)),
    "json_fast": JsonDecoder(parse_columns(JSON_COLUMNS.replace("labels MAP<STRING, BIGINT>, ", "")), "keep"),
}


@cache
def good_messages(kind: str) -> list[bytes]:
    """Messages that the decoder of this name reads."""
    return [_MADE[kind.removesuffix("_fast")](n) for n in range(20)]


def decoded(kind: str, messages: Sequence[bytes]) -> Split:
    """What becomes of messages; each is a row or a bad record with a code, once."""
    split = DECODERS[kind].decode(raw_batch(messages))
    good = split.good.column(COORDINATES).field("offset").to_pylist()
    bad = split.bad.column("offset").to_pylist()
    assert sorted([*good, *bad]) == list(range(len(messages)))
    assert all(split.bad.column("code").to_pylist()) and all(split.bad.column("message").to_pylist())
    return split


def raw_batch(messages: Sequence[bytes]) -> pa.RecordBatch:
    count = len(messages)
    columns = {
        "value": pa.array(messages, pa.binary()),
        "topic": pa.repeat(pa.scalar("t"), count),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(range(count), pa.int64()),
    }
    return pa.RecordBatch.from_arrays(
        [columns.get(field.name, pa.nulls(count, field.type)) for field in RAW_SCHEMA], schema=RAW_SCHEMA
    )


def _avro(n: int) -> bytes:
    out = io.BytesIO()
    row = {
        "id": n << n,
        "name": "Ann Ö" * (n % 3),
        "price": Decimal(n).scaleb(-2),
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "day": date(2026, 1, 1 + n),
        "status": ("NEW", "PAID")[n % 2],
        "code": b"code",
        "tags": ["a", "ü"][: n % 3],
        "labels": {f"l{at}": at for at in range(n % 4)},
        "any": (None, n, "text")[n % 3],
        "item": {"sku": (None, "s")[n % 2]},
    }
    fastavro.schemaless_writer(out, AVRO, row)
    return out.getvalue()


@cache
def _classes() -> dict[str, Any]:
    return message_classes({"order.proto": PROTO})


def _protobuf(n: int) -> bytes:
    order = _classes()["shop.Order"]
    made = order(
        id=n << n,
        name="Ann Ö" * (n % 3),
        items=[order.Item(sku=f"s{at}", qty=at or None) for at in range(n % 4)],
        labels={"a": n} if n % 2 else {},
        status=n % 2,
        scores=[n, -n][: n % 3],
        raw=bytes(range(n)),
        **({"card": "c"} if n % 2 else {"cash": 2**64 - 1}),
    )
    made.extra.update({"a": [n, None, {"b": True}]})
    return bytes(made.SerializeToString())


def _json(n: int) -> bytes:
    row = {
        "id": n << n,
        "name": 'Ann "Ö"' * (n % 3),
        "amount": n / 4,
        "ratio": n / 8,
        "price": n,
        "at": "2026-01-01T00:00:00Z",
        "day": "2026-01-01",
        "raw": "AAE=",
        "tags": ["a", "ü"][: n % 3],
        "nested": [[n], []],
        "labels": {f"l{at}": at for at in range(n % 4)},
        "item": {"sku": "s", "qty": n},
        "more": [None, {"x": 1.5}],
    }
    return json.dumps(row, ensure_ascii=n % 2 == 0).encode()


_MADE = {"avro": _avro, "protobuf": _protobuf, "json": _json}

"""The events of the formats part: the same orders as JSON, as Avro and as Protobuf, behind a registry where it has one.

The Avro schema has three versions, each with one optional field more; the columns are those of the third. One topic
has every event in the third, one has the three by turns.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from events import MANY, PARTITIONS, Sender, create_topic, moment
from fastavro import parse_schema, schemaless_writer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from penstock.registry import RegistrySettings, client_of

COLUMNS = (
    "order_id BIGINT NOT NULL, customer_id STRING, amount DOUBLE, event_time TIMESTAMP, "
    "status STRING, channel STRING, discount DOUBLE"
)
MESSAGE = "bench.Order"
JSON, AVRO, MIXED, PROTOBUF = "orders-json", "orders-avro", "orders-avro-mixed", "orders-protobuf"
"""The topics."""

_STATUS = ("new", "paid", "sent", "done")
_CHANNEL = ("web", "store", "phone")
_FIRST = 1_767_225_600_000_000  # 2026-01-01 in microseconds

_FIELDS: list[dict[str, Any]] = [
    {"name": "order_id", "type": "long"},
    {"name": "customer_id", "type": "string"},
    {"name": "amount", "type": "double"},
    {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "status", "type": "string"},
]
_LATER: list[dict[str, Any]] = [
    {"name": "channel", "type": ["null", "string"], "default": None},
    {"name": "discount", "type": ["null", "double"], "default": None},
]
AVRO_VERSIONS = tuple(
    json.dumps({"type": "record", "name": "Order", "namespace": "bench", "fields": _FIELDS + _LATER[:more]})
    for more in range(len(_LATER) + 1)
)
_PROTO = """syntax = "proto3";
package bench;
import "google/protobuf/timestamp.proto";
message Order {
  int64 order_id = 1;
  string customer_id = 2;
  double amount = 3;
  google.protobuf.Timestamp event_time = 4;
  string status = 5;
  optional string channel = 6;
  optional double discount = 7;
}
"""


@dataclass(frozen=True)
class Sent:
    """What a topic holds."""

    topic: str
    bytes_each: float


def send_formats(brokers: str, registry: str, topics: Sequence[str], rows: int) -> list[Sent]:
    """Fill these topics with the same orders, and register the schemas that they need."""
    writers = {
        JSON: lambda: order_json,
        AVRO: lambda: _avro_writer(registry, AVRO, AVRO_VERSIONS[-1:]),
        MIXED: lambda: _avro_writer(registry, MIXED, AVRO_VERSIONS),
        PROTOBUF: lambda: _protobuf_writer(registry),
    }
    return [_send(brokers, topic, rows, writers[topic]()) for topic in topics]


def _send(brokers: str, topic: str, rows: int, write: Callable[[int], bytes]) -> Sent:
    create_topic(brokers, topic)
    sender, size = Sender(brokers, MANY), 0
    for number in range(rows):
        value = write(number)
        size += len(value)
        # In runs, so that each partition has all the schema versions.
        sender.send(topic, value, number // 100 % PARTITIONS)
    sender.finish()
    return Sent(topic, size / rows)


def order(number: int) -> dict[str, Any]:
    """The order of that number; its amount in cents is the number."""
    return {
        "order_id": number,
        "customer_id": f"c-{number % 50_000:05d}",
        "amount": number / 100,
        "event_time": _FIRST + number % 2_419_200_000 * 1000,
        "status": _STATUS[number % 4],
        "channel": _CHANNEL[number % 3],
        "discount": number % 7 / 100,
    }


def order_json(number: int) -> bytes:
    """The order as JSON, its time as text."""
    return json.dumps({**order(number), "event_time": moment(number)}, separators=(",", ":")).encode()


def _avro_writer(registry: str, topic: str, versions: Sequence[str]) -> Callable[[int], bytes]:
    client = client_of(RegistrySettings(registry))
    known: list[tuple[bytes, Any]] = []
    for text in versions:
        schema_id = client.register(f"{topic}-value", "AVRO", text)
        known.append((b"\0" + schema_id.to_bytes(4, "big"), parse_schema(json.loads(text))))

    def write(number: int) -> bytes:
        header, schema = known[number % len(known)]
        body = io.BytesIO()
        schemaless_writer(body, schema, order(number))
        return header + body.getvalue()

    return write


def _protobuf_writer(registry: str) -> Callable[[int], bytes]:
    schema_id = client_of(RegistrySettings(registry)).register(f"{PROTOBUF}-value", "PROTOBUF", _PROTO)
    # After the id come the message's indexes in the file; one zero stands for the first message.
    header = b"\0" + schema_id.to_bytes(4, "big") + b"\0"
    order_class = _order_class()

    def write(number: int) -> bytes:
        values = order(number)
        seconds, micros = divmod(values.pop("event_time"), 1_000_000)
        message = order_class(**values)
        message.event_time.seconds, message.event_time.nanos = seconds, micros * 1000
        return header + bytes(message.SerializeToString())

    return write


@cache
def _order_class() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        source, compiled = Path(folder, "order.proto"), Path(folder, "order.bin")
        source.write_text(_PROTO, encoding="utf-8")
        included = Path(protoc.__file__).with_name("_proto")
        words = ["", f"-I{folder}", f"-I{included}", "--include_imports", f"-o{compiled}", str(source)]
        if protoc.main(words):
            raise RuntimeError("protoc did not take the schema of the bench")
        files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(MESSAGE))

"""Fill the topics of the examples, and register the schemas of their messages.

python produce.py            # send to localhost:9092 and the registry of `penstock dev up --registry`
python produce.py --later    # send 100 more Avro orders, with a third version of their schema
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import requests
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

PARTITIONS = {"orders.avro": 4, "orders.proto": 2, "payments": 2}
FIELDS: list[Any] = [
    {"name": "order_id", "type": "long"},
    {"name": "customer", "type": "string"},
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
    {"name": "ordered_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
]
CITY = {"name": "city", "type": ["null", "string"], "default": None}
CHANNEL = {"name": "channel", "type": {"type": "enum", "name": "Channel", "symbols": ["WEB", "SHOP"]}, "default": "WEB"}
VERSIONS = [FIELDS, [*FIELDS, CITY], [*FIELDS, CITY, CHANNEL]]
START = datetime(2026, 1, 1, tzinfo=UTC)

Message = tuple[str, bytes | None, bytes]
"""A topic, a key and a value."""


class Registry:
    """Registers schemas with the Confluent API."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def header(self, subject: str, schema: str, kind: str = "AVRO") -> bytes:
        """The header of a message: a zero byte and the schema's id in the registry."""
        body = {"schema": schema, "schemaType": kind}
        answer = requests.post(f"{self._url}/subjects/{subject}/versions", json=body, timeout=10)
        answer.raise_for_status()
        return b"\0" + int(answer.json()["id"]).to_bytes(4, "big")


def record(name: str, fields: list[Any]) -> dict[str, Any]:
    """An Avro schema."""
    return {"type": "record", "name": name, "namespace": "shop", "fields": fields}


def avro(schema: Any, row: Any) -> bytes:
    """A row as Avro."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, schema, row)
    return body.getvalue()


def avro_orders(registry: Registry, version: int, numbers: range) -> Iterator[Message]:
    """Orders written with one version of their schema, with Avro keys."""
    schema, key = record("Order", VERSIONS[version - 1]), record("OrderKey", FIELDS[:1])
    header = registry.header("orders.avro-value", json.dumps(schema))
    key_header = registry.header("orders.avro-key", json.dumps(key))
    for number in numbers:
        order = {
            "order_id": number,
            "customer": f"c-{number % 50:02d}",
            "amount": Decimal(number) / 4,
            "ordered_at": START + timedelta(minutes=number),
            "city": ("Bonn", "Ulm", None)[number % 3],
            "channel": ("WEB", "SHOP")[number % 2],
        }
        yield "orders.avro", key_header + avro(key, order), header + avro(schema, order)


def no_avro_orders(registry: Registry) -> Iterator[Message]:
    """Four messages that cannot be read, each for a different reason."""
    good = next(value for _, _, value in avro_orders(registry, 1, range(1)))
    yield "orders.avro", None, b"\0\0"
    yield "orders.avro", None, b'{"order_id": 1}'
    yield "orders.avro", None, b"\0\x7f\xff\xff\xff" + good[5:]
    yield "orders.avro", None, good[:-2]


def protobuf_orders(registry: Registry) -> Iterator[Message]:
    """Orders as Protobuf, and one message that is not an order."""
    file = Path(__file__).with_name("order.proto")
    kind = compiled(file, "shop.Order")
    header = registry.header("orders.proto-value", file.read_text(), "PROTOBUF")
    index = b"\x02\x02"  # which message of the file: a count of 1, then the index 1, as zigzag varints
    for number in range(500):
        order = kind(order_id=number, customer=f"c-{number % 50:02d}", amount=number / 4, status=number % 3)
        order.ordered_at.FromDatetime(START + timedelta(minutes=number * 10))
        for line in range(number % 4):
            order.lines.add(sku=f"s-{line}", quantity=line + 1)
        yield "orders.proto", str(number).encode(), header + index + order.SerializeToString()
    yield "orders.proto", None, header + index + b"\x0a\xff"


def compiled(file: Path, message: str) -> Any:
    """The class of a message in a .proto file."""
    found = descriptor_pb2.FileDescriptorSet()
    with TemporaryDirectory() as folder:
        out = Path(folder, "out")
        arguments = ["protoc", f"-I{file.parent}", "--include_imports", f"-o{out}", str(file)]
        if protoc.main([*arguments, f"-I{Path(protoc.__file__).parent / '_proto'}"]):
            raise SystemExit(f"{file} cannot be compiled")
        found.ParseFromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for one in found.file:
        pool.Add(one)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))


def payments() -> Iterator[Message]:
    """Payments as JSON: one in five is unpaid, one in ten is sent twice, and one message is not a payment."""
    for number in range(200):
        payment = {"order_id": number, "method": "card", "amount": f"{number / 4:.2f}", "paid": number % 5 != 0}
        for _ in range(2 if number % 10 == 3 else 1):
            yield "payments", str(number).encode(), json.dumps(payment).encode()
    yield "payments", None, b'{"order_id": "two hundred"}'


def messages(registry: Registry) -> Iterator[Message]:
    """All messages, in the order in which they are sent."""
    yield from avro_orders(registry, 1, range(600))
    yield from avro_orders(registry, 2, range(600, 1_000))
    yield from no_avro_orders(registry)
    yield from protobuf_orders(registry)
    yield from payments()


def produce(brokers: str, registry: Registry, later: bool) -> int:
    """Create the topics and send the messages; return their number."""
    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    if not later:
        for created in admin.create_topics([NewTopic(name, count, 1) for name, count in PARTITIONS.items()]).values():
            try:
                created.result(30)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise SystemExit(f"creating topics at {brokers}: {error.args[0].str()}") from error
    producer = Producer({"bootstrap.servers": brokers, "log_level": 0, "enable.idempotence": True})
    failed, sent = [], 0
    for topic, key, value in avro_orders(registry, 3, range(1_000, 1_100)) if later else messages(registry):
        producer.produce(topic, value, key, on_delivery=lambda error, _: failed.append(error) if error else None)
        sent += 1
    if producer.flush(30) or failed:
        raise SystemExit(f"sending to {brokers}: not everything was delivered: {failed[:1]}")
    return sent


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--brokers", default="localhost:9092")
    options.add_argument("--registry", default="http://localhost:8081/apis/ccompat/v7")
    options.add_argument("--later", action="store_true", help="send only orders of the third schema version")
    given = options.parse_args()
    print(f"sent {produce(given.brokers, Registry(given.registry), given.later):,} messages to {given.brokers}")

"""Fills the topics of the examples, and registers the schemas that the messages are written by.

python produce.py            # to localhost:9092 and the registry of `penstock dev up --registry`
python produce.py --later    # 100 more Avro orders, by a third version of their schema
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import requests
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

PARTITIONS = {"orders.avro": 4, "orders.proto": 2, "payments": 2}
FIRST = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "order_id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "ordered_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
CITY = {"name": "city", "type": ["null", "string"], "default": None}
CHANNEL = {"name": "channel", "type": {"type": "enum", "name": "Channel", "symbols": ["WEB", "SHOP"]}, "default": "WEB"}
SECOND = {**FIRST, "fields": [*FIRST["fields"], CITY]}
THIRD = {**FIRST, "fields": [*FIRST["fields"], CITY, CHANNEL]}
KEY = {"type": "record", "name": "OrderKey", "namespace": "shop", "fields": [{"name": "order_id", "type": "long"}]}

Message = tuple[str, bytes | None, bytes]
"""A topic, a key and a value."""


class Registry:
    """Tells a registry schemas, by the Confluent API, and gives their ids as they stand before a message."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def header(self, subject: str, schema: str, kind: str) -> bytes:
        """The zero byte and the id of a schema."""
        answer = requests.post(
            f"{self._url}/subjects/{subject}/versions", json={"schema": schema, "schemaType": kind}, timeout=10
        )
        answer.raise_for_status()
        return b"\0" + int(answer.json()["id"]).to_bytes(4, "big")


def avro_orders(registry: Registry, schema: dict[str, Any], numbers: range) -> Iterator[Message]:
    """Orders by one version of their schema, with Avro keys."""
    header = registry.header("orders.avro-value", json.dumps(schema), "AVRO")
    key_header = registry.header("orders.avro-key", json.dumps(KEY), "AVRO")
    cities = ("Bonn", "Ulm", None)
    for number in numbers:
        order = {
            "order_id": number,
            "customer": f"c-{number % 50:02d}",
            "amount": fastavro.schemaless_reader,  # replaced below
        }
        yield "orders.avro", key_header, header


if __name__ == "__main__":
    pass

"""Producers that are not ours: Confluent's own serializers in front of a real registry and a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext


class RegistryProducer:
    """Sends rows by a schema, which the serializer registers under the topic's subject."""

    def __init__(self, brokers: str, registry: str) -> None:
        self.client = SchemaRegistryClient({"url": registry})
        self._producer = Producer({"bootstrap.servers": brokers, "log_level": 0, "enable.idempotence": True})

    def avro(self, topic: str, schema: Any, rows: Iterable[Any], key_schema: Any = None, keys: Any = None) -> None:
        text = schema if isinstance(schema, Schema) else json.dumps(schema)
        encode = AvroSerializer(self.client, text)
        encode_key = AvroSerializer(self.client, json.dumps(key_schema)) if key_schema is not None else None
        names = list(keys) if keys is not None else None
        for number, row in enumerate(rows):
            key = names[number] if names is not None else None
            if encode_key is not None:
                key = encode_key(key, SerializationContext(topic, MessageField.KEY))
            self.send(topic, encode(row, SerializationContext(topic, MessageField.VALUE)), key)
        self.flush()

    def protobuf(self, topic: str, kind: Any, messages: Iterable[Any]) -> None:
        encode = ProtobufSerializer(kind, self.client, {"use.deprecated.format": False})
        for message in messages:
            self.send(topic, encode(message, SerializationContext(topic, MessageField.VALUE)))
        self.flush()

    def json(self, topic: str, schema: dict[str, Any], rows: Iterable[Any]) -> None:
        encode = JSONSerializer(json.dumps(schema), self.client)
        for row in rows:
            self.send(topic, encode(row, SerializationContext(topic, MessageField.VALUE)))
        self.flush()

    def send(self, topic: str, value: bytes | None, key: bytes | str | None = None, partition: int = 0) -> None:
        self._producer.produce(topic, value, key, partition)
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(30) == 0

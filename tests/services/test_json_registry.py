"""JSON Schema behind the real registry, written by the Confluent serializer: values, references, ids that are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from penstock.decoders import JsonDecoder
from penstock.decoders.framing import writer_schema
from penstock.decoders.json.schema import json_schema_columns
from penstock.decoders.refusal import Reason
from penstock.errors import TransientError
from penstock.model import RAW_SCHEMA
from penstock.registry import RegistrySettings, client_of

pytestmark = pytest.mark.services

CUSTOMER = {
    "type": "object",
    "title": "Customer",
    "properties": {"name": {"type": "string"}, "born": {"type": "string", "format": "date"}},
    "required": ["name"],
}
ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "title": "Order",
    "properties": {
        "order_id": {"type": "integer"},
        "customer": {"$ref": "customer.json"},
        "amount": {"type": ["number", "null"]},
        "placed_at": {"type": "string", "format": "date-time"},
        "status": {"enum": ["new", "paid"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "labels": {"type": "object", "additionalProperties": {"type": "integer"}},
        "gift": {"type": "boolean"},
    },
    "required": ["order_id", "customer", "placed_at"],
}
ROW = {
    "order_id": 2**53 + 1,
    "customer": {"name": "Ann Ö", "born": "2000-02-29"},
    "amount": 12.5,
    "placed_at": "2026-01-02T03:04:05.678901+02:00",
    "status": "paid",
    "tags": ["a", ""],
    "labels": {"x": 1},
    "gift": True,
}


@pytest.fixture
def settings(registry: Any) -> RegistrySettings:
    return RegistrySettings(registry.url, retries=0)


@pytest.fixture
def topic() -> str:
    return f"orders-{uuid4().hex[:8]}"


@pytest.fixture
def serialize(settings: RegistrySettings) -> Callable[..., bytes]:
    """Writes a value as a producer would that registers its schema: framed, with the id."""
    client = SchemaRegistryClient({"url": settings.url})

    def write(
        topic: str, schema: dict[str, Any], value: dict[str, Any], refs: list[SchemaReference] | None = None
    ) -> bytes:
        written = Schema(json.dumps(schema), "JSON", refs or [])
        message = JSONSerializer(written, client)(value, SerializationContext(topic, MessageField.VALUE))
        assert message is not None
        return message

    return write


@pytest.fixture
def customer(settings: RegistrySettings, topic: str) -> SchemaReference:
    subject = f"{topic}-customer"
    client = SchemaRegistryClient({"url": settings.url})
    client.register_schema(subject, Schema(json.dumps(CUSTOMER), "JSON"))
    return SchemaReference("customer.json", subject, 1)


def batch(*values: bytes) -> pa.RecordBatch:
    rows = [
        {"value": value, "topic": "t", "partition": 0, "offset": n, "timestamp": datetime.now(UTC)}
        for n, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RAW_SCHEMA)


def test_order_with_a_referenced_customer_comes_out_as_it_was_written(settings, topic, serialize, customer):
    message = serialize(topic, ORDER, ROW, [customer])
    latest = client_of(settings).latest(f"{topic}-value")
    columns = json_schema_columns(latest.text, latest.references)

    split = JsonDecoder(columns, framing="confluent", registry=settings, subject=f"{topic}-value").decode(
        batch(message)
    )

    assert split.bad.num_rows == 0
    [row] = split.good.drop_columns(["_penstock"]).to_pylist(maps_as_pydicts="strict")
    assert row == ROW | {
        "customer": {"name": "Ann Ö", "born": date(2000, 2, 29)},
        "placed_at": datetime(2026, 1, 2, 1, 4, 5, 678901, tzinfo=UTC),
    }


def test_two_versions_in_one_batch_are_read_in_their_order(settings, topic, serialize):
    first = {"type": "object", "title": "O", "properties": {"id": {"type": "integer"}}}
    second = {**first, "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}}
    messages = [
        serialize(topic, first, {"id": 1}),
        serialize(topic, second, {"id": 2, "note": "x"}),
        serialize(topic, first, {"id": 3}),
    ]
    assert messages[0][:5] == messages[2][:5] != messages[1][:5]
    columns = json_schema_columns(client_of(settings).latest(f"{topic}-value").text)

    split = JsonDecoder(columns, framing="confluent", registry=settings, subject=f"{topic}-value").decode(
        batch(*messages)
    )

    assert split.good.column("id").to_pylist() == [1, 2, 3]
    assert split.good.column("note").to_pylist() == [None, "x", None]


def test_id_unknown_or_of_another_subject_costs_only_its_records(settings, topic, serialize):
    ours = {"type": "object", "title": topic, "properties": {"id": {"type": "integer"}}}
    theirs = {**ours, "title": "theirs"}
    good = serialize(topic, ours, {"id": 1})
    stray = serialize(f"{topic}-other", theirs, {"id": 2})
    unknown = b"\0" + (999_999_999).to_bytes(4, "big") + good[5:]
    beyond = b"\0\xff\xff\xff\xff" + good[5:]
    raw = batch(good, stray, unknown, beyond, good)
    columns = json_schema_columns(json.dumps(ours))

    split = JsonDecoder(columns, framing="confluent", registry=settings, subject=f"{topic}-value").decode(raw)

    assert [at["offset"] for at in split.good.column("_penstock").to_pylist()] == [0, 4]
    assert split.bad.column("code").to_pylist() == ["WRONG_SUBJECT", "UNKNOWN_SCHEMA_ID", "UNKNOWN_SCHEMA_ID"]
    assert split.bad.select(raw.schema.names) == raw.slice(1, 3)
    message = split.bad.column("message")[0].as_py()
    assert f"{topic}-other-value" in message
    assert f"not to {topic}-value" in message
    assert JsonDecoder(columns, framing="confluent", registry=settings).decode(raw).good.num_rows == 3


def test_subject_registered_after_the_id_was_seen_is_believed(settings, topic, serialize):
    schema = {"type": "object", "title": topic, "properties": {"id": {"type": "integer"}}}
    schema_id = int.from_bytes(serialize(topic, schema, {"id": 1})[1:5], "big")
    assert isinstance(writer_schema(settings, schema_id, f"{topic}-late-value", False), Reason)

    assert serialize(f"{topic}-late", schema, {"id": 1})[1:5] == schema_id.to_bytes(4, "big")

    found = writer_schema(settings, schema_id, f"{topic}-late-value", False)
    assert not isinstance(found, Reason)
    assert found.kind == "JSON"


def test_frozen_decoder_reads_known_ids_and_waits_for_new_ones(settings, topic, serialize):
    schema = {"type": "object", "title": topic, "properties": {"id": {"type": "integer"}}}
    columns = json_schema_columns(json.dumps(schema))
    known, new = serialize(topic, schema, {"id": 1}), serialize(topic, {**schema, "title": "new"}, {"id": 2})
    subject = f"{topic}-value"
    JsonDecoder(columns, framing="confluent", registry=settings, subject=subject).decode(batch(known))
    frozen = JsonDecoder(columns, framing="confluent", registry=settings, subject=subject, frozen=True)

    assert frozen.decode(batch(known)).good.column("id").to_pylist() == [1]
    with pytest.raises(TransientError) as caught:
        frozen.decode(batch(known, new))
    assert caught.value.code == "REGISTRY_UNREACHABLE"

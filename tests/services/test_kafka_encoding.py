"""The Kafka sink by schemas of a real registry, read back by the clients of Confluent, which are not ours."""

from __future__ import annotations

import base64
import itertools
import json
import urllib.request
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from tests.committed import committed
from tests.committing import commit
from tests.contract.rows import token

from penstock.errors import MissingError
from penstock.kafka import KafkaSettings
from penstock.model import COORDINATES_FIELD, Refusal, SlotAttempt
from penstock.registry import RegistrySettings, client_of
from penstock.registry.protobuf import find_message
from penstock.sinks.kafka import Encoding, KafkaAtLeastOnceSink, KafkaSink
from penstock.sinks.kafka.encode.protobuf_rows import compiled

pytestmark = pytest.mark.services

_numbers = itertools.count()
WHEN = datetime(2026, 1, 1, 0, 0, 1, 500_999, tzinfo=UTC)
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("street", pa.string())])),
        COORDINATES_FIELD,
    ]
)
MORE = pa.schema([*COLUMNS, ("more", pa.int64())])


def rows_of(count: int, columns: pa.Schema = COLUMNS, **changes: Any) -> pa.RecordBatch:
    rows = [
        {
            "id": n,
            "customer": f"c{n % 3}" if n % 7 else None,
            "price": Decimal(n).scaleb(-2),
            "at": WHEN,
            "tags": ["a", "b"][: n % 3],
            "place": {"street": "ü"} if n % 2 else None,
            "more": n,
            "_penstock": {"topic": "orders", "partition": 0, "offset": n, "timestamp": WHEN},
            **changes,
        }
        for n in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=columns)


class Bench:
    """A sink of its own topic, and what the registry holds for it."""

    def __init__(self, topics: Any, url: str) -> None:
        self.number = next(_numbers)
        self.topic = topics.create(3, prefix="encoded")
        self.settings = KafkaSettings(topics.brokers)
        self.registry = RegistrySettings(url)
        self.client = client_of(self.registry)
        self.confluent = SchemaRegistryClient({"url": url})
        self.url = url
        self.batches = itertools.count()

    def encoding(self, format: Any, **settings: Any) -> Encoding:
        return Encoding(format, self.registry, **settings)

    def sink(self, value: Encoding, key: Encoding | None = None) -> KafkaSink:
        given = {"topic": self.topic, "slots": 1, "encode_value": value, "encode_key": key}
        return KafkaSink(f"shop-{self.number}", "orders_out", self.settings, **given)

    def ready(self, sink: KafkaSink, schema: pa.Schema = COLUMNS) -> KafkaSink:
        sink.prepare(schema)
        sink.pin(1)
        return sink

    def land(self, sink: KafkaSink, rows: pa.RecordBatch) -> list[Refusal]:
        number = next(self.batches)
        stage = sink.stage(token(number, number, number + 1), SlotAttempt(0, "0"), rows.schema)
        refused = list(stage.write(rows))
        commit(sink, token(number, number, number + 1), [stage.finish()])
        return refused

    def messages(self) -> list[Any]:
        return committed(self.settings.brokers, self.topic)

    def context(self, part: str) -> SerializationContext:
        return SerializationContext(self.topic, MessageField.KEY if part == "key" else MessageField.VALUE)

    def versions(self, part: str = "value") -> list[int]:
        return self.client.versions(f"{self.topic}-{part}")

    def compatibility(self, subject: str, level: str) -> None:
        body = json.dumps({"compatibility": level}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/config/{subject}", body, headers, method="PUT")
        urllib.request.urlopen(request, timeout=10).close()

    def message_class(self, subject: str, name: str) -> Any:
        descriptors = compiled(self.client.latest(subject).text, {})
        return message_factory.GetMessageClass(find_message(descriptors, name))


@pytest.fixture
def bench(topics: Any, registry: Any) -> Bench:
    return Bench(topics, registry.url)


def without_place(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "_penstock"}


def test_avro_values_and_keys_are_read_by_confluents_deserializer(bench: Bench) -> None:
    sink = bench.ready(bench.sink(bench.encoding("avro"), bench.encoding("avro", columns=("customer",))))
    rows = rows_of(50)
    assert bench.land(sink, rows) == []
    read = AvroDeserializer(bench.confluent)
    found = [(read(m.key(), bench.context("key")), read(m.value(), bench.context("value"))) for m in bench.messages()]
    expected = [without_place(row) for row in rows.to_pylist()]
    assert sorted(found, key=lambda pair: pair[1]["id"]) == [(row["customer"], row) for row in expected]
    assert json.loads(bench.client.latest(f"{bench.topic}-key").text) == "string"
    assert json.loads(bench.client.latest(f"{bench.topic}-value").text)["name"] == "OrdersOut"
    by_key: dict[Any, set[int]] = {}
    for message in bench.messages():
        by_key.setdefault(message.key(), set()).add(message.partition())
    assert all(len(partitions) == 1 for key, partitions in by_key.items() if key is not None)


def test_key_goes_where_any_client_puts_the_same_bytes(bench: Bench) -> None:
    sink = bench.ready(bench.sink(bench.encoding("avro"), bench.encoding("avro", columns=("id", "customer"))))
    bench.land(sink, rows_of(20))
    placed = {message.key(): message.partition() for message in bench.messages()}
    where: dict[bytes, int] = {}
    producer = Producer({"bootstrap.servers": bench.settings.brokers, "partitioner": "murmur2_random", "log_level": 0})
    for key in placed:
        producer.produce(bench.topic, b"", key, on_delivery=lambda _, m: where.update({m.key(): m.partition()}))
    producer.flush(30)
    assert len(set(placed.values())) > 1
    assert where == placed


def test_protobuf_values_and_keys_are_read_by_confluents_deserializer(bench: Bench) -> None:
    key = bench.encoding("protobuf", columns=("id", "customer"), message="shop.Key")
    sink = bench.ready(bench.sink(bench.encoding("protobuf"), key))
    rows = rows_of(50)
    assert bench.land(sink, rows) == []
    # Without the registry: that client wants descriptors of it, and Apicurio has the text that it was given.
    config = {"use.deprecated.format": False}
    value_class = bench.message_class(f"{bench.topic}-value", f"shop_{bench.number}.OrdersOut")
    values = ProtobufDeserializer(value_class, config)
    keys = ProtobufDeserializer(bench.message_class(f"{bench.topic}-key", "shop.Key"), config)
    found = {}
    for message in bench.messages():
        value, its_key = values(message.value(), bench.context("value")), keys(message.key(), bench.context("key"))
        assert its_key.id == value.id
        found[value.id] = value
    assert len(found) == 50
    for row in rows.to_pylist():
        value = found[row["id"]]
        assert (value.customer if value.HasField("customer") else None) == row["customer"]
        assert value.price == str(row["price"])
        assert (value.at.seconds, value.at.nanos) == (int(WHEN.timestamp()), 500_999_000)
        assert list(value.tags) == row["tags"]
        assert (value.place.street if value.HasField("place") else None) == ("ü" if row["place"] else None)


def test_json_values_are_read_by_confluents_deserializer_and_fit_their_schema(bench: Bench) -> None:
    sink = bench.ready(bench.sink(bench.encoding("json")))
    rows = rows_of(5)
    bench.land(sink, rows)
    text = bench.client.latest(f"{bench.topic}-value").text
    read = JSONDeserializer(text, schema_registry_client=bench.confluent)
    found = sorted((read(m.value(), bench.context("value")) for m in bench.messages()), key=lambda row: row["id"])
    assert [row["tags"] for row in found] == rows.column("tags").to_pylist()
    assert found[1]["price"] == 0.01


@pytest.mark.parametrize("format", ["avro", "protobuf", "json"])
def test_second_prepare_with_one_more_column_gives_version_two(bench: Bench, format: str) -> None:
    sink = bench.ready(bench.sink(bench.encoding(format)))
    bench.compatibility(f"{bench.topic}-value", "BACKWARD")
    bench.land(sink, rows_of(3))
    bench.ready(sink)
    assert bench.versions() == [1]
    bench.ready(sink, MORE)
    assert bench.versions() == [1, 2]
    bench.land(sink, rows_of(3, MORE))
    ids = {message.value()[1:5] for message in bench.messages()}
    expected = {bench.client.version(f"{bench.topic}-value", number).id for number in (1, 2)}
    assert ids == {number.to_bytes(4, "big") for number in expected}


def test_protobuf_version_that_says_the_same_in_other_words_is_used_and_not_registered_again(bench: Bench) -> None:
    bench.sink(bench.encoding("protobuf")).prepare(COLUMNS)
    text = bench.client.latest(f"{bench.topic}-value").text
    *_, root = FileDescriptorSet.FromString(compiled(text, {})).file
    schema = base64.b64encode(root.SerializeToString()).decode()
    other = bench.client.register(f"{bench.topic}-value", "PROTOBUF", schema)
    sink = bench.ready(bench.sink(bench.encoding("protobuf")))
    bench.land(sink, rows_of(1))
    assert bench.versions() == [1, 2]
    assert [message.value()[1:5] for message in bench.messages()] == [other.to_bytes(4, "big")]


@pytest.mark.parametrize("format", ["avro", "protobuf", "json"])
def test_check_never_registers(bench: Bench, format: str) -> None:
    bench.sink(bench.encoding(format), bench.encoding(format, columns=("id",))).check(COLUMNS)
    for part in ("value", "key"):
        with pytest.raises(MissingError, match="REGISTRY_SUBJECT_MISSING"):
            bench.versions(part)


@pytest.mark.parametrize("schema", [None, '{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}'])
@pytest.mark.parametrize("call", ["check", "prepare"])
def test_unregistered_schema_with_register_false_is_refused(bench: Bench, schema: str | None, call: str) -> None:
    encoding = bench.encoding("avro", register=False, schema=schema, columns=("id",))
    with pytest.raises(MissingError, match="SINK_SCHEMA_NOT_REGISTERED") as refused:
        getattr(bench.sink(encoding), call)(COLUMNS)
    assert refused.value.context["latest in the registry"] == "none"
    assert "id" in refused.value.context["of the rows"]
    with pytest.raises(MissingError, match="REGISTRY_SUBJECT_MISSING"):
        bench.versions()


@pytest.mark.parametrize("format", ["avro", "protobuf"])
def test_register_false_writes_by_the_subjects_latest_and_refuses_columns_it_lacks(bench: Bench, format: str) -> None:
    bench.sink(bench.encoding(format)).prepare(MORE)
    sink = bench.ready(bench.sink(bench.encoding(format, register=False)), COLUMNS)
    assert bench.land(sink, rows_of(3)) == []
    latest = bench.client.latest(f"{bench.topic}-value")
    assert {message.value()[1:5] for message in bench.messages()} == {latest.id.to_bytes(4, "big")}
    wider = pa.schema([*MORE, ("unknown", pa.int64())])
    with pytest.raises(MissingError, match="SINK_SCHEMA_MISMATCH") as refused:
        sink.check(wider)
    assert "unknown" in refused.value.summary
    assert bench.versions() == [1]


@pytest.mark.parametrize("format", ["avro", "protobuf", "json"])
def test_incompatible_schema_is_refused_with_both_sides(bench: Bench, format: str) -> None:
    sink = bench.ready(bench.sink(bench.encoding(format)))
    bench.compatibility(f"{bench.topic}-value", "FULL")
    fields = [pa.field("id", pa.bool_()) if field.name == "id" else field for field in COLUMNS]
    with pytest.raises(MissingError, match="REGISTRY_REFUSED") as refused:
        sink.prepare(pa.schema(fields))
    assert "409" in refused.value.context["it answered"]
    assert refused.value.context["latest in the registry"].startswith("version 1: ")
    assert "bool" in refused.value.context["of the rows"]
    assert bench.versions() == [1]


def test_row_that_the_schema_cannot_hold_is_refused_and_the_others_are_sent(bench: Bench) -> None:
    sink = bench.ready(bench.sink(bench.encoding("protobuf")))
    rows = pa.Table.from_batches([rows_of(2), rows_of(1, tags=["a", None])]).combine_chunks().to_batches()[0]
    [refusal] = bench.land(sink, rows)
    assert (refusal.code, refusal.record.topic) == ("SINK_VALUE_NULL", "orders")
    assert len(bench.messages()) == 2


def test_at_least_once_sink_sends_the_same_bytes(bench: Bench) -> None:
    exactly = bench.ready(bench.sink(bench.encoding("avro"), bench.encoding("avro", columns=("id",))))
    bench.land(exactly, rows_of(5))
    sent = {(message.key(), message.value()) for message in bench.messages()}
    loosely = KafkaAtLeastOnceSink(
        f"shop-{bench.number}",
        "orders_out",
        bench.settings,
        topic=bench.topic,
        encode_value=bench.encoding("avro"),
        encode_key=bench.encoding("avro", columns=("id",)),
    )
    loosely.check(COLUMNS)
    loosely.prepare(COLUMNS)
    stage = loosely.stage(token(0, 0, 5), SlotAttempt(0, "0"), COLUMNS)
    assert stage.write(rows_of(5)) == []
    stage.finish()
    messages = [(message.key(), message.value()) for message in bench.messages()]
    assert sorted(messages) == sorted([*sent, *sent])
    assert bench.versions() == [1]

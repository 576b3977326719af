"""Chunks of records are cut by their bytes, from the first one: against librdkafka's own broker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import Producer

from penstock.kafka import KafkaSettings
from penstock.model import OffsetRange
from penstock.readers import kafka
from penstock.readers.kafka import KafkaReader

MIB = 1 << 20


@dataclass
class Broker:
    producer: Producer
    address: str

    def sizes(self, topic: str, count: int, chunk_bytes: int = MIB) -> list[list[int]]:
        """The values' sizes, chunk by chunk."""
        reader = KafkaReader(KafkaSettings(self.address), chunk_bytes=chunk_bytes)
        chunks = list(reader.read([OffsetRange(topic, 0, 0, count)]))
        offsets = [offset for chunk in chunks for offset in chunk.column("offset").to_pylist()]
        assert offsets == list(range(count))
        return [[len(value or b"") for value in chunk.column("value").to_pylist()] for chunk in chunks]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    producer = Producer(
        {
            "bootstrap.servers": "mock:1",
            "test.mock.num.brokers": 1,
            "compression.type": "gzip",
            "linger.ms": 100,
            "batch.size": 100 * MIB,
            "message.max.bytes": 100 * MIB,
            "log_level": 0,
        }
    )
    [found] = producer.list_topics(timeout=10).brokers.values()
    yield Broker(producer, f"{found.host}:{found.port}")


def test_small_packed_batch_of_large_records_leaves_in_chunks_of_bounded_bytes(broker: Broker) -> None:
    for _ in range(60):
        broker.producer.produce("bomb", b"a" * 400_000, partition=0)
    broker.producer.flush(30)
    chunks = broker.sizes("bomb", 60)
    assert max(map(sum, chunks)) <= MIB


def test_large_records_after_many_small_ones_are_cut_as_well(broker: Broker) -> None:
    for n in range(3_000):
        broker.producer.produce("late", b"a" * (300_000 if n >= 2_970 else 10), partition=0)
    broker.producer.flush(30)
    chunks = broker.sizes("late", 3_000)
    assert max(map(sum, chunks)) <= MIB
    assert len(chunks) < 40


def test_bytes_of_keys_and_headers_count(broker: Broker) -> None:
    for n in range(20):
        given = {"key": b"k" * 400_000} if n % 2 else {"headers": [("h", b"h" * 400_000)]}
        broker.producer.produce("keyed", b"v", partition=0, **given)
    broker.producer.flush(30)
    assert max(map(len, broker.sizes("keyed", 20))) <= 2


def test_record_larger_than_a_chunk_leaves_alone(broker: Broker) -> None:
    for size in (10, 3 * MIB, 10, 10):
        broker.producer.produce("huge", b"a" * size, partition=0)
    broker.producer.flush(30)
    assert [3 * MIB] in broker.sizes("huge", 4)


def test_more_messages_than_a_chunk_may_have_leave_in_several(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "_CHUNK_MESSAGES", 100)
    for _ in range(250):
        broker.producer.produce("many", b"a", partition=0)
    broker.producer.flush(30)
    assert max(map(len, broker.sizes("many", 250))) == 100


def test_one_fetch_brings_few_packed_bytes_unless_the_options_say_more() -> None:
    """What comes out of them may be a thousand times as much."""
    assert kafka._DEFAULTS["fetch.max.bytes"] == 4 * MIB

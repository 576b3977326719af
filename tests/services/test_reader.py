"""The reader against a real broker: ranges, holes, headers, several topics, what is gone."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from penstock.errors import TerminalError, TransientError
from penstock.kafka import Cluster, KafkaSettings
from penstock.model import RAW_SCHEMA, OffsetRange, TopicPartition
from penstock.readers import KafkaReader

pytestmark = pytest.mark.services


@pytest.fixture
def reader(stack: Any) -> KafkaReader:
    return KafkaReader(KafkaSettings(stack.bootstrap), patience=10)


def rows(reader: KafkaReader, *ranges: OffsetRange) -> list[dict[str, Any]]:
    found = []
    for batch in reader.read(ranges):
        assert batch.schema == RAW_SCHEMA
        found += batch.to_pylist()
    return found


def test_reader_range_inside_the_log_gives_exactly_its_records(reader: KafkaReader, topics: Any) -> None:
    topic = topics.create(2)
    topics.send(topic, [b"%d" % n for n in range(1000)], partition=0)
    topics.send(topic, [b"%d" % n for n in range(1000)], partition=1)
    found = rows(reader, OffsetRange(topic, 0, 100, 350), OffsetRange(topic, 1, 0, 1000))
    first = [r for r in found if r["partition"] == 0]
    assert [r["offset"] for r in first] == list(range(100, 350))
    assert [r["value"] for r in first] == [b"%d" % n for n in range(100, 350)]
    assert [r["offset"] for r in found if r["partition"] == 1] == list(range(1000))


def test_reader_second_read_of_the_same_worker_is_whole(reader: KafkaReader, topics: Any) -> None:
    topic = topics.create()
    topics.send(topic, [b"x"] * 500)
    for _ in range(3):
        assert len(rows(reader, OffsetRange(topic, 0, 0, 500))) == 500
        assert len(rows(reader, OffsetRange(topic, 0, 490, 500))) == 10


def test_reader_keys_headers_nulls_and_times_are_kept(reader: KafkaReader, topics: Any) -> None:
    topic = topics.create()
    topics.send(topic, [None], key=b"\x00k", headers=[("h", b"\xff"), ("h", None)], timestamp=1_700_000_000_123)
    topics.send(topic, [b""])
    one, two = rows(reader, OffsetRange(topic, 0, 0, 2))
    assert (one["key"], one["value"], two["key"], two["value"]) == (b"\x00k", None, None, b"")
    assert one["headers"] == [{"key": "h", "value": b"\xff"}, {"key": "h", "value": None}]
    assert two["headers"] is None
    assert one["timestamp"].timestamp() == pytest.approx(1_700_000_000.123)


def test_reader_two_topics_with_equal_partition_numbers_do_not_mix(reader: KafkaReader, topics: Any) -> None:
    one, two = topics.create(), topics.create()
    topics.send(one, [b"one"] * 300)
    topics.send(two, [b"two"] * 200)
    found = rows(reader, OffsetRange(one, 0, 0, 250), OffsetRange(two, 0, 50, 200))
    assert {(r["topic"], r["value"]) for r in found} == {(one, b"one"), (two, b"two")}
    assert [r["offset"] for r in found if r["topic"] == one] == list(range(250))
    assert [r["offset"] for r in found if r["topic"] == two] == list(range(50, 200))


def transaction(stack: Any, topic: str, values: list[bytes], commit: bool) -> None:
    producer = Producer({"bootstrap.servers": stack.bootstrap, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(10)
    (producer.commit_transaction if commit else producer.abort_transaction)(30)


def test_reader_aborted_transactions_are_holes_not_rows(reader: KafkaReader, topics: Any, stack: Any) -> None:
    topic = topics.create()
    transaction(stack, topic, [b"a", b"b"], commit=True)
    transaction(stack, topic, [b"no"] * 5, commit=False)
    transaction(stack, topic, [b"c"], commit=True)
    transaction(stack, topic, [b"no"], commit=False)
    at = TopicPartition(topic, 0)
    end = Cluster(KafkaSettings(stack.bootstrap)).bounds([at])[at].end
    assert end == 3 + 6 + 2 + 2
    assert [r["value"] for r in rows(reader, OffsetRange(topic, 0, 0, end))] == [b"a", b"b", b"c"]
    # A range that lies wholly in a hole ends too.
    assert rows(reader, OffsetRange(topic, 0, 3, 9)) == []


def test_reader_offset_before_the_log_start_is_gone_not_skipped(reader: KafkaReader, topics: Any) -> None:
    from confluent_kafka import TopicPartition as ClientPartition

    topic = topics.create()
    topics.send(topic, [b"x"] * 100)
    for future in topics.admin.delete_records([ClientPartition(topic, 0, 40)]).values():
        future.result(10)
    with pytest.raises(TransientError) as raised:
        rows(reader, OffsetRange(topic, 0, 10, 100))
    assert raised.value.code == "OFFSETS_GONE"
    assert len(rows(reader, OffsetRange(topic, 0, 40, 100))) == 60


def test_reader_topic_that_is_not_there_is_said(stack: Any) -> None:
    reader = KafkaReader(KafkaSettings(stack.bootstrap), patience=1)
    with pytest.raises((TerminalError, TransientError)) as raised:
        rows(reader, OffsetRange("never-created", 0, 0, 10))
    assert raised.value.code in ("PARTITION_GONE", "BROKER_SILENT")


def test_reader_large_messages_come_in_bounded_chunks(reader: KafkaReader, topics: Any) -> None:
    topic = topics.create()
    topics.send(topic, [bytes(200_000)] * 300)
    sizes = [batch.nbytes for batch in reader.read([OffsetRange(topic, 0, 0, 300)])]
    assert sum(sizes) > 60_000_000
    assert max(sizes) < 64_000_000

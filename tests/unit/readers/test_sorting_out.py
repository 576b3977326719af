"""What a reader makes of one handful of messages: rows of the ranges, and the partitions that are read to their end."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaError

from penstock.errors import TransientError
from penstock.kafka import KafkaSettings
from penstock.model import LAST_TIMESTAMP, TopicPartition, beyond_timestamps
from penstock.readers.kafka import KafkaReader

READER = KafkaReader(KafkaSettings("127.0.0.1:9"))
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@dataclass(frozen=True)
class Message:
    """As the client gives them: a record, or a word about a partition."""

    at: TopicPartition
    number: int
    code: int | None = None
    time: int = 1_700_000_000_000

    def error(self) -> KafkaError | None:
        return None if self.code is None else KafkaError(self.code)

    def topic(self) -> str:
        return self.at.topic

    def partition(self) -> int:
        return self.at.partition

    def offset(self) -> int:
        return self.number

    def timestamp(self) -> tuple[int, int]:
        return 1, self.time

    def headers(self) -> None:
        return None

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return f"{self.at.topic}{self.at.partition}:{self.number}".encode()


def sorted_out(
    messages: list[Message], pending: dict[TopicPartition, int], topics: list[str]
) -> tuple[list[str], set[TopicPartition]]:
    rows, ended = READER._sort_out(messages, pending, topics)
    return [] if rows is None else [bytes(v).decode() for v in rows.column("value").to_pylist()], ended


def test_end_of_a_partition_told_twice_ends_it_once() -> None:
    end = Message(A0, 5, KafkaError._PARTITION_EOF)
    assert sorted_out([end, Message(A1, 1), end], {A0: 5, A1: 9}, ["a"]) == (["a1:1"], {A0})


def test_end_told_and_read_ends_a_partition_once() -> None:
    end = Message(A0, 5, KafkaError._PARTITION_EOF)
    assert sorted_out([Message(A0, 4), end], {A0: 5}, ["a"]) == (["a0:4"], {A0})


def test_end_before_the_range_ends_is_waited_past() -> None:
    assert sorted_out([Message(A0, 3, KafkaError._PARTITION_EOF)], {A0: 5}, ["a"]) == ([], set())


def test_record_behind_the_range_is_left_out_and_ends_it() -> None:
    """A compacted log has no record at the end of the range."""
    assert sorted_out([Message(A0, 2), Message(A0, 7)], {A0: 5}, ["a"]) == (["a0:2"], {A0})


def test_record_of_a_partition_that_was_read_to_its_end_is_left_out() -> None:
    assert sorted_out([Message(A0, 5), Message(A1, 0)], {A1: 9}, ["a"]) == (["a1:0"], set())


def test_partitions_of_one_number_in_two_topics_are_told_apart() -> None:
    messages = [Message(A0, 4), Message(B0, 4), Message(B0, 9)]
    assert sorted_out(messages, {A0: 5, B0: 9}, ["a", "b"]) == (["a0:4", "b0:4"], {A0, B0})
    # The other topic has ended: its records in the queue are not taken for those of this one.
    assert sorted_out([Message(A0, 4), Message(B0, 5)], {B0: 9}, ["a", "b"]) == (["b0:5"], set())


def test_rows_keep_their_order_and_their_coordinates() -> None:
    messages = [Message(A1, 7), Message(A0, 2), Message(A1, 8), Message(A0, 3)]
    rows, ended = READER._sort_out(messages, {A0: 9, A1: 9}, ["a"])
    assert rows is not None and ended == {A1}
    assert list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)) == [
        (1, 7),
        (0, 2),
        (1, 8),
        (0, 3),
    ]


def test_offset_that_is_gone_is_raised() -> None:
    with pytest.raises(TransientError, match="OFFSETS_GONE"):
        sorted_out([Message(A0, 0, KafkaError._AUTO_OFFSET_RESET)], {A0: 5}, ["a"])


def test_time_beyond_the_last_timestamp_is_told_from_a_missing_one() -> None:
    last = LAST_TIMESTAMP // 1000
    times = [-1, 0, last, last + 1, 2**63 - 1]
    messages = [Message(A0, number, time=time) for number, time in enumerate(times)]
    rows, _ = READER._sort_out(messages, {A0: 5}, ["a"])
    assert rows is not None
    found = rows.column("timestamp")
    assert found.cast("int64").to_pylist() == [None, 0, last * 1000, 2**63 - 1, 2**63 - 1]
    beyond = beyond_timestamps(found)
    assert beyond is not None and beyond.to_pylist() == [False, False, False, True, True]
    assert beyond_timestamps(found.slice(0, 3)) is None

"""A consumer group that cannot be written to: the stream never hears of it but by one word. No broker."""

from __future__ import annotations

import threading
import time

import pytest

from penstock.errors import TransientError
from penstock.kafka import KafkaSettings
from penstock.kafka.groups import GroupCommitter, GroupOffsets
from penstock.model import TopicPartition

AWAY = KafkaSettings("127.0.0.1:1", {"socket.timeout.ms": "300"})
ORDERS = TopicPartition("orders", 0)


class Heard:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str | None] = []
        self.anything = threading.Event()

    def __call__(self, text: str | None) -> None:
        self.told.append(text)
        self.anything.set()


def test_group_offsets_with_brokers_away_is_an_error_that_may_pass() -> None:
    group = GroupOffsets(AWAY, "penstock.orders")
    with pytest.raises(TransientError) as raised:
        group.commit({ORDERS: 5})
    assert raised.value.code == "BROKER_UNREACHABLE"
    assert "consumer group penstock.orders" in raised.value.summary
    with pytest.raises(TransientError):
        group.committed([ORDERS])
    group.close()


def test_group_offsets_of_no_partitions_asks_nobody() -> None:
    group = GroupOffsets(AWAY, "penstock.orders")
    group.commit({})
    assert group.committed([]) == {}


def test_committer_with_brokers_away_never_waits_and_tells_once() -> None:
    heard = Heard()
    committer = GroupCommitter(AWAY, "penstock.orders", heard)
    began = time.monotonic()
    for offset in range(1000):
        committer.put({ORDERS: offset})
    assert time.monotonic() - began < 0.5
    assert heard.anything.wait(10)
    committer.put({ORDERS: 1000})
    began = time.monotonic()
    committer.close()
    assert time.monotonic() - began < 6
    assert len(heard.told) == 1
    assert (heard.told[0] or "").startswith("BROKER_UNREACHABLE committing offsets to consumer group penstock.orders")


def test_committer_with_a_setting_that_is_refused_tells_and_goes_on() -> None:
    heard = Heard()
    committer = GroupCommitter(KafkaSettings("a:1", {"no.such.setting": "1"}), "g", heard)
    committer.put({ORDERS: 1})
    assert heard.anything.wait(10)
    committer.close()
    assert "opening a Kafka client" in str(heard.told[0])


def test_committer_whose_listener_fails_goes_on_and_ends() -> None:
    called = threading.Event()

    def fail(_: str | None) -> None:
        called.set()
        raise RuntimeError("the disk is full")

    committer = GroupCommitter(KafkaSettings("a:1", {"no.such.setting": "1"}), "g", fail)
    committer.put({ORDERS: 1})
    assert called.wait(10)
    began = time.monotonic()
    committer.close()
    assert time.monotonic() - began < 3


def test_committer_with_nothing_to_commit_ends_at_once_and_tells_nothing() -> None:
    heard = Heard()
    began = time.monotonic()
    GroupCommitter(AWAY, "g", heard).close()
    assert time.monotonic() - began < 1
    assert heard.told == []

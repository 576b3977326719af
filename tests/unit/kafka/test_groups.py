"""A consumer group that cannot be written to: the stream never hears of it but by one word. No broker."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

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


class Answers:
    """What a client raises or gives, call after call; the last one again and again."""

    def __init__(self, *answers: int | list[Any]) -> None:
        self.left = list(answers)

    def __call__(self) -> list[Any]:
        answer = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(answer, int):
            raise KafkaException(KafkaError(answer))
        return answer


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError._WAIT_COORD,
    ],
)
def test_group_offsets_wait_for_a_coordinator_that_is_not_there_yet(code: int) -> None:
    patient, hurried = (GroupOffsets(AWAY, "penstock.orders", timeout=seconds) for seconds in (30, 0.3))
    patient._brokers._is_accepted = hurried._brokers._is_accepted = True
    held = ClientPartition("orders", 0, 5)
    refused = SimpleNamespace(topic="orders", partition=0, error=KafkaError(code))
    assert patient._ask(Answers(code, [refused], [held]), "asking") == [held]
    with pytest.raises(TransientError) as raised:
        hurried._ask(Answers(code), "asking")
    # The client's own word for it says only that nobody answered.
    away = "BROKER_UNREACHABLE" if code == KafkaError._WAIT_COORD else "GROUP_COORDINATOR_AWAY"
    assert raised.value.code == away


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
    assert time.monotonic() - began < 10
    assert heard.anything.wait(10)
    committer.put({ORDERS: 1000})
    began = time.monotonic()
    committer.close()
    assert time.monotonic() - began < 15
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
    assert time.monotonic() - began < 4.5


def test_committer_with_nothing_to_commit_ends_at_once_and_tells_nothing() -> None:
    heard = Heard()
    began = time.monotonic()
    GroupCommitter(AWAY, "g", heard).close()
    assert time.monotonic() - began < 4.5
    assert heard.told == []

"""The first unread record where there are no brokers: nothing is told, in time. With brokers: tests/services."""

from __future__ import annotations

import time

import pytest

from penstock.errors import TransientError
from penstock.kafka import KafkaSettings
from penstock.kafka.ages import first_unread
from penstock.model import TopicPartition


def test_first_unread_of_nothing_asks_nobody() -> None:
    assert first_unread(KafkaSettings("nowhere", {"no.such.setting": "1"}), {}) == {}


def test_first_unread_with_brokers_away_ends_in_time_with_nothing() -> None:
    began = time.monotonic()
    assert first_unread(KafkaSettings("127.0.0.1:1"), {TopicPartition("orders", 0): 5}, timeout=0.5) == {}
    assert time.monotonic() - began < 10


def test_first_unread_with_a_setting_that_is_refused_says_so() -> None:
    with pytest.raises(Exception, match="opening a Kafka client") as raised:
        first_unread(KafkaSettings("a:1", {"no.such.setting": "1"}), {TopicPartition("orders", 0): 5})
    assert not isinstance(raised.value, TransientError)

"""How long the first unread record has waited, by what was seen of its partition."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.kafka import KafkaSettings
from penstock.supervision import lag_monitor
from penstock.supervision.lag_monitor import LagMonitor, LagSample, unread_since

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_unread_since_is_the_time_of_the_record_where_that_was_read() -> None:
    assert unread_since(10, (10, at(3)), [(at(5), 10)]) == at(3)


def test_unread_since_of_a_record_that_was_not_read_is_the_last_look_without_it() -> None:
    looks = [(at(0), 10), (at(5), 20), (at(10), 30)]
    assert unread_since(20, (10, at(-2)), looks) == at(5)
    assert unread_since(29, (10, at(-2)), looks) == at(5)


def test_unread_since_is_no_earlier_than_a_record_before_it() -> None:
    assert unread_since(20, (10, at(7)), [(at(5), 20)]) == at(7)
    assert unread_since(20, (30, at(7)), [(at(5), 20)]) == at(5)


def test_unread_since_is_not_known_where_all_looks_had_the_record_and_none_was_read() -> None:
    assert unread_since(5, None, [(at(0), 10), (at(5), None)]) is None


def test_look_that_outlives_the_run_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write into a history that is another run's by then."""
    asked, answered = threading.Event(), threading.Event()

    class SlowCluster:
        def __init__(self, *_: Any) -> None:
            pass

        def bounds(self, _: Any) -> dict[Any, Any]:
            asked.set()
            answered.wait(30)
            return {}

    monkeypatch.setattr(lag_monitor, "Cluster", SlowCluster)
    told: list[LagSample] = []
    monitor = LagMonitor(KafkaSettings("127.0.0.1:9"), dict, told.append)
    monitor.wake()
    assert asked.wait(30)
    monitor.close()
    [sampling] = [one for one in threading.enumerate() if one.name == "penstock-lag"]
    answered.set()
    sampling.join(30)
    assert not sampling.is_alive() and told == []

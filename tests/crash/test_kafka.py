"""Kafka to Kafka while the driver and its tasks are killed. A reader of committed records reads all the while."""

from __future__ import annotations

from typing import Any

import pytest
from tests.crash.targets import KAFKA, KAFKA_AT_LEAST_ONCE
from tests.crash.trial import POINTS, TASK_POINTS

pytestmark = [pytest.mark.services, pytest.mark.crash, pytest.mark.long]


def test_kafka_at_least_once_the_same_kill_shows_duplicates(trial: Any) -> None:
    """The checker and the kills themselves: on a sink that promises less they must find what they are there to find."""
    run = trial(KAFKA_AT_LEAST_ONCE, rows=4_000, max_offsets=2_000)
    run.kill(["committed"])
    verdict = run.judge(run.crashes.finish())["topic"]
    assert verdict.twice, "a batch was sent again, and the checker sees none of it"
    assert not verdict.lost
    assert not verdict.unknown


def test_kafka_twenty_kills_lose_nothing(trial: Any) -> None:
    run = trial(KAFKA, rows=100_000)
    run.kill(TASK_POINTS * 3 + POINTS + ["random"] * 8)
    run.prove(run.crashes.finish())

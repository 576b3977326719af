"""Kafka to Delta while the driver is killed: nothing lost, nothing twice, whether rows are appended or merged."""

from __future__ import annotations

from typing import Any

import pytest
from tests.crash.targets import DELTA, DELTA_MERGE
from tests.crash.trial import POINTS

pytestmark = [pytest.mark.services, pytest.mark.crash]


@pytest.mark.long
def test_delta_append_driver_killed_loses_nothing(trial: Any) -> None:
    """The shortest of all: the table has the batch, and Spark does not know."""
    run = trial(DELTA, rows=1_200, max_offsets=400, by_spark=False)
    run.kill(["between"])
    run.prove(run.crashes.finish())


@pytest.mark.long
def test_delta_merge_driver_killed_loses_nothing(trial: Any) -> None:
    run = trial(DELTA_MERGE, rows=10_000, max_offsets=2_500)
    run.kill(["write@merged"])
    run.prove(run.crashes.finish())


@pytest.mark.long
def test_delta_append_twenty_kills_lose_nothing(trial: Any) -> None:
    run = trial(DELTA, rows=100_000)
    run.kill(POINTS * 3 + ["random"] * 7)
    run.prove(run.crashes.finish())


@pytest.mark.long
def test_delta_append_frame_lane_killed_loses_nothing(trial: Any) -> None:
    run = trial(DELTA, rows=40_000, lane="frame")
    run.kill(POINTS)
    run.prove(run.crashes.finish())


@pytest.mark.long
def test_delta_merge_twenty_kills_lose_nothing(trial: Any) -> None:
    run = trial(DELTA_MERGE, rows=100_000, max_offsets=2_500)
    run.kill(POINTS * 3 + ["random"] * 7)
    run.prove(run.crashes.finish())

"""Every kind of sink in one pipeline while the driver is killed, between two of their commits too."""

from __future__ import annotations

from typing import Any

import pytest
from tests.crash.targets import DELTA, DELTA_MERGE, ICEBERG, ICEBERG_MERGE, KAFKA, PARQUET, POSTGRES_UPSERT
from tests.crash.trial import TASK_POINTS

pytestmark = [pytest.mark.services, pytest.mark.crash]


@pytest.mark.long
def test_all_sinks_killed_between_their_commits_lose_nothing(trial: Any) -> None:
    """The two moments at which the sinks differ: the slots have committed and no table has; some tables have."""
    run = trial(DELTA, ICEBERG, KAFKA, POSTGRES_UPSERT, PARQUET, rows=5_000)
    run.kill(["finished", "between@pg"])
    run.prove(run.crashes.finish())


@pytest.mark.long
def test_all_sinks_driver_killed_lose_nothing(trial: Any) -> None:
    run = trial(DELTA, ICEBERG, KAFKA, POSTGRES_UPSERT, PARQUET, rows=10_000)
    run.kill(["offsets", "finished", "write@ice", "between@pg", "committed"])
    last = run.crashes.finish()
    run.crashes.forget_last_commit()
    run.crashes.finish()
    run.prove(last)


@pytest.mark.long
def test_all_sinks_twenty_kills_lose_nothing(trial: Any) -> None:
    run = trial(DELTA, ICEBERG, KAFKA, POSTGRES_UPSERT, PARQUET, rows=100_000)
    inside = [f"{point}@{sink}" for sink in ("delta", "ice", "pg", "files") for point in ("write", "between")]
    run.kill([*inside, *TASK_POINTS, "offsets", "staged", "committed", *["random"] * 8])
    run.prove(run.crashes.finish())


@pytest.mark.long
def test_all_sinks_merging_killed_lose_nothing(trial: Any) -> None:
    run = trial(DELTA_MERGE, ICEBERG_MERGE, KAFKA, POSTGRES_UPSERT, PARQUET, rows=40_000, max_offsets=2_500)
    inside = [f"{point}@{sink}" for sink in ("merged", "ice", "pg") for point in ("write", "between")]
    run.kill([*inside, "finishing", "random"])
    run.prove(run.crashes.finish())

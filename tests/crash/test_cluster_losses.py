"""A cluster with three brokers that loses any of its parts, at random and under load: every row is once."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.crash.cluster import Brokers
from tests.crash.losses import Losses
from tests.crash.readers import CommittedReader
from tests.crash.targets import (
    DELTA,
    DELTA_MERGE,
    ICEBERG,
    ICEBERG_MERGE,
    KAFKA,
    KAFKA_AT_LEAST_ONCE,
    PARQUET,
    POSTGRES,
    POSTGRES_UPSERT,
)
from tests.crash.test_attempts import SPECULATION

pytestmark = [pytest.mark.services, pytest.mark.crash, pytest.mark.long]
ROUNDS = int(os.environ.get("PENSTOCK_CRASH_ROUNDS", "3"))
SEED = int(os.environ.get("PENSTOCK_CRASH_SEED", "7"))
APPENDING = (DELTA, ICEBERG, KAFKA, POSTGRES_UPSERT, PARQUET)
MERGING = (DELTA_MERGE, ICEBERG_MERGE, POSTGRES, PARQUET)


@pytest.mark.parametrize(
    ("targets", "settings"), [(APPENDING, {}), (MERGING, SPECULATION)], ids=["every kind", "merging and speculated"]
)
def test_cluster_parts_killed_at_random_under_load_lose_nothing(
    targets: tuple[Any, ...], settings: dict[str, str], cluster: Any, brokers: Brokers, trial: Any
) -> None:
    run = trial(
        *targets,
        rows=150_000,
        topics=brokers.topics,
        replicas=3,
        spark={"spark.master": cluster.url, **settings},
    )
    assert brokers.least_in_sync(run.events.topic) == 2
    losses = Losses(run, cluster, brokers, SEED)
    try:
        last = losses.suffer(ROUNDS)
    finally:
        cluster.start()
        print(losses.table())
    assert brokers.replicas() == {3}, "a topic that was made on the way has fewer replicas"
    run.prove(last)


def test_cluster_parts_killed_while_they_write_show_duplicates_where_a_sink_promises_less(
    cluster: Any, brokers: Brokers, trial: Any
) -> None:
    """The losses and the checker themselves: with a sink that promises less they find what they are there to find."""
    run = trial(
        KAFKA_AT_LEAST_ONCE,
        rows=200_000,
        max_offsets=20_000,
        topics=brokers.topics,
        replicas=3,
        spark={"spark.master": cluster.url},
    )
    losses = Losses(run, cluster, brokers, SEED, kinds=("executor", "driver", "executor"), moment=_grows(run.reader))
    try:
        last = losses.suffer(1)
    finally:
        cluster.start()
    verdict = run.judge(last)["topic"]
    assert verdict.twice, "batches were sent in part and again, and the checker sees none of it"
    assert not verdict.lost
    assert not verdict.unknown


def _grows(reader: CommittedReader) -> Callable[[], bool]:
    """Whether some of a batch has just been written, and not all of it for long."""
    before = reader.seen

    def grows() -> bool:
        nonlocal before
        earlier, before = before, reader.seen
        return before > earlier

    return grows

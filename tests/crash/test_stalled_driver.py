"""A driver that is stopped, with its tasks, past the timeout of its transactions, and wakes beside its successor.

On one machine the lock on the checkpoint keeps the successor out; between two machines there is none.
"""

from __future__ import annotations

import subprocess
from typing import Any

import psutil
import pytest
from tests.crash.harness import wait_for
from tests.crash.readers import log_ends
from tests.crash.targets import DELTA, ICEBERG, KAFKA_HASTY, PARQUET, POSTGRES_UPSERT

pytestmark = [pytest.mark.services, pytest.mark.crash, pytest.mark.long]
OTHERS = (DELTA, ICEBERG, POSTGRES_UPSERT, PARQUET)


def reaches(run: Any, written: list[int]) -> bool:
    """Whether a reader of committed records gets past all that was written."""
    found = log_ends(run.brokers, run.output, "read_committed")
    return all(end >= before for end, before in zip(found, written, strict=True))


@pytest.mark.parametrize(
    ("point", "others"), [("finish", ()), ("staged", OTHERS)], ids=["in its transaction", "before its commits"]
)
def test_driver_stopped_and_resumed_beside_its_successor_writes_nothing_twice(
    point: str, others: tuple[Any, ...], trial: Any
) -> None:
    run = trial(KAFKA_HASTY, *others, rows=20_000)
    stalled = run.crashes.start(kill=f"{point}:2", whom="all", signal="STOP")
    wait_for(lambda: psutil.Process(stalled.pid).status() == psutil.STATUS_STOPPED, 120, "the driver stops")
    sleepers = run.crashes.processes()
    if point == "finish":
        committed = log_ends(run.brokers, run.output, "read_committed")
        written = log_ends(run.brokers, run.output, "read_uncommitted")
        assert committed != written, "the driver was to be stopped in an open transaction"
        wait_for(lambda: reaches(run, written), 60, "the brokers end the transaction")
    successor = run.crashes.start(unlocked="1")
    run.crashes.await_batches(1, successor)
    assert successor.poll() is None, run.crashes.log.read_text()[-4000:]
    for process in sleepers:
        process.resume()
    assert psutil.Process(stalled.pid).status() != psutil.STATUS_STOPPED
    for driver in (successor, stalled):
        try:
            driver.wait(120)
        except subprocess.TimeoutExpired:
            driver.kill()
    run.crashes.end_all()
    run.prove(run.crashes.finish(), kills=1)

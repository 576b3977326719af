"""Hosts that lose each other: driver, two workers, three brokers, registry, database, each with an address of its own.

Links are cut and slow while a pipeline runs on the cluster. It has to recover by itself, and every target must hold
each row once.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Topics
from tests.crash.harness import Crashes, wait_for
from tests.crash.targets import DELTA, KAFKA, POSTGRES_UPSERT
from tests.crash.trial import Cut
from tests.hosts.faults import RUNS, Fault
from tests.hosts.network import Network, why_not
from tests.hosts.registered import registered_values
from tests.hosts.services import DRIVER, Hosts, hosts

pytestmark = [
    pytest.mark.services,
    pytest.mark.crash,
    pytest.mark.long,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]
ROWS = 45_000
BEFORE = 3
"""Batches that are committed before the next thing happens."""
RECOVERS_SECONDS = 90


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with hosts(tmp_path_factory.mktemp("hosts")) as made:
        yield made


@pytest.fixture
def database_there(machines: Hosts) -> Iterator[str]:
    name = machines.database.create_database()
    yield machines.database.url(name)
    machines.database.drop_database(name)


@pytest.mark.parametrize("faults", RUNS.values(), ids=RUNS)
def test_hosts_that_lose_each_other_lose_no_row(
    faults: Sequence[Fault], machines: Hosts, database_there: str, trial: Any, tmp_path: Path
) -> None:
    driver_at = machines.network.address[DRIVER]
    run = trial(
        *(DELTA, KAFKA, POSTGRES_UPSERT),
        rows=ROWS,
        topics=Topics(machines.bootstrap),
        replicas=3,
        database=database_there,
        within=machines.network.within(DRIVER),
        values=partial(registered_values, registry=machines.registry),
        decode={"format": "json", "registry": {"url": machines.registry, "timeout": "2 seconds"}},
        cluster={"shared_paths": [str(tmp_path)], "environment": "installed", "python": sys.executable},
        spark={
            "spark.master": machines.master,
            "spark.driver.host": driver_at,
            "spark.driver.bindAddress": driver_at,
            "spark.executor.memory": "512m",
        },
    )
    began, driver = time.monotonic(), run.crashes.start()
    cuts = []
    for fault in faults:
        run.crashes.await_batches(BEFORE, driver)
        cuts.append(_happens(fault, machines.network, run.crashes, driver))
    assert driver.wait(240) == 0, run.crashes.log.read_text()[-4000:]
    run.prove(time.monotonic() - began, cuts=cuts)


def _happens(fault: Fault, network: Network, crashes: Crashes, driver: subprocess.Popen[bytes]) -> Cut:
    assert driver.poll() is None, (
        f"the run was done before {fault}: give it more rows\n{crashes.log.read_text()[-999:]}"
    )
    before = crashes.batches()
    with fault.on(network):
        pass
    healed, there = time.monotonic(), crashes.batches()
    # Where only one broker is away, or a link is slow, the run goes on and may be done.
    done = driver.poll() == 0
    wait_for(lambda: crashes.batches() > there or driver.poll() is not None, RECOVERS_SECONDS, f"a batch after {fault}")
    return Cut(str(fault), there - before, None if done else time.monotonic() - healed)

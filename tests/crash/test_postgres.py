"""Kafka to PostgreSQL while the driver is killed, and while the server is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.targets import POSTGRES, POSTGRES_UPSERT
from tests.crash.trial import POINTS
from tests.postgres import PostgresServer, running_server

pytestmark = [pytest.mark.services, pytest.mark.crash, pytest.mark.long]


def test_postgres_append_twenty_kills_lose_nothing(trial: Any) -> None:
    run = trial(POSTGRES, rows=100_000)
    run.kill(POINTS * 3 + ["random"] * 7)
    run.prove(run.crashes.finish())


def test_postgres_upsert_twenty_kills_lose_nothing(trial: Any) -> None:
    run = trial(POSTGRES_UPSERT, rows=100_000)
    run.kill(POINTS * 3 + ["random"] * 7)
    run.prove(run.crashes.finish())


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[PostgresServer]:
    """A server of the test's own, to be killed."""
    with running_server(tmp_path / "server") as server:
        yield server


@pytest.mark.parametrize("target", [POSTGRES, POSTGRES_UPSERT], ids=["append", "upsert"])
def test_postgres_server_killed_under_load_the_run_goes_on(target: Any, trial: Any, mortal: PostgresServer) -> None:
    run = trial(target, rows=100_000, database=mortal.url())
    began, driver, kills = time.monotonic(), run.crashes.start(), 5
    for _ in range(kills):
        run.crashes.await_batches(4, driver)
        assert driver.poll() is None, run.crashes.log.read_text()[-4000:]
        mortal.kill()
        mortal.start()
    assert driver.wait(300) == 0, run.crashes.log.read_text()[-4000:]
    run.prove(time.monotonic() - began, kills=kills)

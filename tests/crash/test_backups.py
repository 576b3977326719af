"""A stream under load, copied every second: each of the copies, restored, gives a table that is right.

`PENSTOCK_BACKUP_SECONDS` says how long the stream runs; a minute by default.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.agreements import sink_findings
from tests.tables import read_table

from penstock.assembly.build import build
from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.backup import Backup, backups_of, make_backup
from penstock.checkpoint.findings import file_findings
from penstock.config import load
from penstock.engine.listener import BatchDone, Event
from penstock.engine.patience import StopRequest
from penstock.ops.checkpoint.restore import apply_restore, plan_restore
from penstock.preflight.options import RunOptions
from penstock.preflight.standings import standings
from penstock.supervision.run import run

pytestmark = [pytest.mark.services, pytest.mark.long]
SECONDS = int(os.environ.get("PENSTOCK_BACKUP_SECONDS", "60"))
START = datetime(2026, 1, 1, tzinfo=UTC)
A_SEND = 50
"""How many events are sent at once, ten times a second; event N is N tenths of a second after the start."""


@dataclass
class Load:
    """Sends events that are numbered without a gap, until it is told to stop."""

    topics: Any
    topic: str
    sent: int = 0

    def send(self, count: int = A_SEND) -> None:
        """The next events."""
        numbers = range(self.sent, self.sent + count)
        self.topics.send(self.topic, [event(number) for number in numbers])
        self.sent += count

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send until the block is left."""
        over = threading.Event()

        def go() -> None:
            while not over.wait(0.1):
                self.send()

        sender = threading.Thread(target=go)
        sender.start()
        try:
            yield
        finally:
            over.set()
            sender.join()


def event(number: int) -> dict[str, Any]:
    time_of = (START + timedelta(seconds=number / 10)).isoformat()
    return {"order_id": number, "customer_id": "c", "amount": 1.5, "event_time": time_of}


def copied_every_second(file: Path, spark: Any, load_on: Load) -> list[Backup]:
    """Run the stream under load, and give the copies that were made meanwhile."""
    config, stop, begun = load(file), StopRequest(), threading.Event()
    failed: list[BaseException] = []

    def listen(told: Event) -> None:
        if isinstance(told, BatchDone):
            begun.set()

    def stream() -> None:
        try:
            run(config, RunOptions(), listen, stop, session=spark)
        except BaseException as error:
            failed.append(error)
            begun.set()

    running = threading.Thread(target=stream)
    made: list[Backup] = []
    with load_on.running():
        running.start()
        try:
            assert begun.wait(120)
            until = time.monotonic() + SECONDS
            while time.monotonic() < until and not failed:
                at = time.monotonic()
                checkpoint = SparkCheckpoint(config.checkpoint)
                if checkpoint.last_committed() is not None:
                    made.append(make_backup(checkpoint, backups_of(config.checkpoint), config.name))
                time.sleep(max(0.0, 1 - (time.monotonic() - at)))
        finally:
            stop.ask()
            running.join()
    assert not failed, failed
    assert len(made) > SECONDS // 2
    return made


def restored(file: Path, spark: Any, backup: Backup, load_on: Load) -> None:
    """Restore a copy and run to the end with events that are new."""
    config = load(file)
    apply_restore(plan_restore(config, backup.path))
    load_on.send()
    run(config, RunOptions(available_now=True), session=spark)
    checkpoint = SparkCheckpoint(config.checkpoint)
    assert file_findings(checkpoint) == []
    assert sink_findings(checkpoint, standings(build(config).targets)) == []


def test_backup_every_second_under_load_each_restores_to_a_table_that_is_right(
    spark: Any, topics: Any, pipeline_file: Callable[..., Path]
) -> None:
    topic = topics.create(4)
    sinks = [{"name": name, "type": "delta", "path": f"lake/{name}"} for name in ("out", "more")]
    file, load_on = pipeline_file(topic, trigger={"every": "200 ms"}, sinks=sinks), Load(topics, topic)
    for backup in copied_every_second(file, spark, load_on):
        restored(file, spark, backup, load_on)
        for sink in ("out", "more"):
            found = read_table(file.parent / "lake" / sink, ["order_id"]).column(0).to_pylist()
            assert sorted(found) == list(range(load_on.sent)), (backup.name, sink)


def test_backup_of_state_under_load_restores_to_windows_that_are_right(
    spark: Any, topics: Any, pipeline_file: Callable[..., Path]
) -> None:
    """Of state every batch since is run again, so only some of the copies are tried: the oldest, the newest, one
    between."""
    topic = topics.create(1)
    steps = [
        {"watermark": {"column": "event_time", "delay": "1 second"}},
        {"window": {"size": "10 seconds", "aggregates": {"orders": "count(*)"}}},
    ]
    file, load_on = pipeline_file(topic, trigger={"every": "1 second"}, transforms=steps), Load(topics, topic)
    made = copied_every_second(file, spark, load_on)
    for backup in (made[0], made[-1], made[len(made) // 2]):
        restored(file, spark, backup, load_on)
        rows = read_table(file.parent / "lake/out", ["window_start", "orders"]).to_pylist()
        found = sorted(((row["window_start"] - START) // timedelta(seconds=10), row["orders"]) for row in rows)
        assert found == [(window, 100) for window in range(len(found))], backup.name
        assert len(found) >= (load_on.sent - 10) // 100 - 1

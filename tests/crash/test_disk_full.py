"""A disk that is full under the checkpoint, the table or the broker: the run says so, and goes on with room."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Topics
from tests.crash.harness import wait_for
from tests.crash.targets import DELTA, KAFKA, PARQUET

from penstock.devstack import DevStack
from penstock.spark.jars import broker_classpath
from penstock.spark.java import find_java

pytestmark = [
    pytest.mark.services,
    pytest.mark.crash,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="a small disk is mounted by root"),
]
ROOM = "400m"


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[None]:
    """A disk in memory of that size, as long as nobody makes it larger."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def make_room(place: Path) -> None:
    subprocess.run(["mount", "-o", f"remount,size={ROOM}", str(place)], check=True)


@pytest.mark.parametrize(("place", "size"), [("lake", "320k"), ("checkpoints", "160k")])
def test_disk_full_stops_the_run_with_the_cause_and_goes_on_with_room(place: str, size: str, trial: Any) -> None:
    run = trial(DELTA, PARQUET, rows=20_000)
    with small_disk(run.folder / place, size):
        assert run.crashes.start().wait(240) == 4, run.crashes.log.read_text()[-3000:]
        log = run.crashes.log.read_text()
        assert "No space left" in log, log[-3000:]
        assert f"least room here: {run.folder / place}/" in log, log[-3000:]
        assert "free space" in log, log[-3000:]
        assert run.crashes.batches() > 0
        make_room(run.folder / place)
        run.prove(run.crashes.finish(), kills=1)


def test_disk_full_under_the_broker_is_waited_for(trial: Any, tmp_path: Path) -> None:
    place = tmp_path / "kafka"
    with small_disk(place, "60m"):
        stack = DevStack(place / "dev", java=find_java().executable, classpath=broker_classpath(), brokers=1)
        with stack:
            run = trial(KAFKA, rows=40_000, topics=Topics(stack.bootstrap))
            began, driver = time.monotonic(), run.crashes.start()
            run.crashes.await_batches(2, driver)
            _fill(place / "filler")
            wait_for(lambda: not stack.nodes[0].alive, 120, "the broker ends, for it cannot write")
            # A transaction that is under way has its own time first, a minute.
            wait_for(lambda: "no answer from the brokers" in run.crashes.log.read_text(), 180, "the run tells why")
            assert driver.poll() is None, run.crashes.log.read_text()[-3000:]
            make_room(place)
            (place / "filler").unlink()
            stack.restart(1)
            assert driver.wait(400) == 0, run.crashes.log.read_text()[-3000:]
            run.prove(time.monotonic() - began, kills=1)


def _fill(file: Path) -> None:
    """Take all the room there is."""
    with file.open("wb", buffering=0) as out:
        for size in (65_536, 512, 1):
            with suppress(OSError):
                while True:
                    out.write(b"\0" * size)

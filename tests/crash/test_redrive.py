"""A redrive killed again and again: no record twice, none lost, each marked once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.harness import wait_for
from tests.services.running import PENSTOCK
from tests.tables import read_table

from penstock.config import load
from penstock.ops.quarantine.listing import list_records
from penstock.ops.quarantine.place import quarantine_of

pytestmark = [pytest.mark.services, pytest.mark.crash]
STRICT = "order_id BIGINT NOT NULL, amount DOUBLE NOT NULL"
MENDED = "order_id BIGINT NOT NULL, amount DOUBLE"
EVERY_OOPS = 10


@pytest.mark.long
def test_redrive_of_many_records_killed_in_the_middle_loses_nothing(
    topics: Any, pipeline_file: Callable[..., Path]
) -> None:
    redrive_through_kills(topics, pipeline_file, rows=100_000, a_batch=2_500, kills=8)


def redrive_through_kills(
    topics: Any, pipeline_file: Callable[..., Path], *, rows: int, a_batch: int, kills: int
) -> None:
    """Quarantine records, mend the file, kill the redrive so often at any moment, and run it to its end."""
    topic = topics.create(4)
    sent = [b"{oops" if n % EVERY_OOPS == 0 else {"order_id": n, "amount": None} for n in range(rows)]
    topics.send(topic, sent)
    file = pipeline_file(topic, decode={"format": "json", "schema": STRICT})
    assert _command(file, "run", str(file)).wait(300) == 0
    file = pipeline_file(topic, decode={"format": "json", "schema": MENDED}, source={"max_offsets": a_batch})
    chance, batches = random.Random(7), rows // a_batch
    for number in range(kills):
        _kill_in_the_middle(file, batches * (number + 1) // (kills + 2), chance.uniform(0, 1), whole=number % 2 == 0)
    assert _command(file, "quarantine", "redrive", str(file)).wait(600) == 0, file.with_suffix(".log").read_text()

    landed = Counter(read_table(file.parent / "lake/out", ["order_id"]).column("order_id").to_pylist())
    good = [n for n in range(rows) if n % EVERY_OOPS]
    assert [n for n, times in landed.items() if times > 1] == []
    assert sorted(landed) == good
    config = load(file)
    assert list_records(config).states == {"failed": rows - len(good), "redriven": len(good)}
    marks = quarantine_of(config).read_marks()
    assert (marks.height, marks["run"].n_unique()) == (rows, 1)
    assert marks.select("topic", "partition", "offset").is_unique().all()
    assert read_table(file.parent / "lake/quarantine", ["offset"]).num_rows == rows


def _kill_in_the_middle(file: Path, batches: int, delay: float, *, whole: bool) -> None:
    """Kill a redrive a moment after so many batches are done, with its JVM and tasks or without."""
    running = _command(file, "quarantine", "redrive", str(file))
    goal = max(_done(file) + 1, batches)
    wait_for(lambda: _done(file) >= goal or running.poll() is not None, 120, f"{goal} batches")
    assert running.poll() is None, file.with_suffix(".log").read_text()
    time.sleep(delay)
    if whole:
        os.killpg(running.pid, signal.SIGKILL)
    else:
        running.kill()
    assert running.wait(30) == -signal.SIGKILL


def _done(file: Path) -> int:
    """How many batches of the redrive are noted as done."""
    notes = list(file.parent.glob("checkpoints/orders-redrives/*/0/progress.json"))
    return sum(int(json.loads(note.read_text())["done"]) for note in notes)


def _command(file: Path, *words: str) -> subprocess.Popen[bytes]:
    with file.with_suffix(".log").open("ab") as log:
        return subprocess.Popen([PENSTOCK, *words], stdout=log, stderr=log, start_new_session=True)

"""`penstock run` of several files as a process: what it prints, how it stops, and that nothing is left of it."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.orders import order
from tests.services.fleets import ids_in
from tests.services.running import Running, wait_for

from penstock.checkpoint import SparkCheckpoint
from penstock.metrics.history import RunEnded, history_of

pytestmark = pytest.mark.services
Write = Callable[..., Path]
NOISE = ("terminate called", "Traceback", "Exception", "at org.apache", "at java.")


def write_all(write: Write, folder: Path, names: list[str], topic: str, **keys: Any) -> list[Path]:
    return [
        write(
            topic,
            name,
            folder=folder,
            **{
                "sinks": [{"name": "out", "type": "delta", "path": f"lake/{name}", "mode": "append"}],
                "quarantine": {"table": "lake/quarantine"},
                "checkpoint": f"checkpoints/{name}",
                "trigger": {"every": "200 ms"},
                **keys,
            },
        )
        for name in names
    ]


@pytest.mark.long
def test_run_of_a_folder_asked_to_stop_finishes_every_batch_and_leaves_nothing(
    topics: Any, pipeline_file: Write, tmp_path: Path
) -> None:
    names = ["a", "b", "c"]
    topic = topics.create(2)
    topics.send(topic, [order(number) for number in range(50)])
    folder = tmp_path / "pipelines"
    write_all(pipeline_file, folder, names, topic)
    (folder / "broken.yaml").write_text("name: broken\n")
    with Running(tmp_path, "run", str(folder), "--log-format", "json") as running:
        for name in names:
            wait_for(lambda name=name: _rows(running, name) >= 50, f"the rows of {name}", 90)
        assert running.look_around()
        running.send(signal.SIGTERM)
        assert running.process.wait(40) == 2, running.complained
        running.await_nobody_left()
    assert not [word for word in NOISE if word in running.complained + running.printed], running.complained
    events = [json.loads(line) for line in running.printed.splitlines()]
    assert all("pipeline" in event for event in events)
    assert {event["pipeline"] for event in events if event.get("event") == "ended"} == set(names)
    assert [event["code"] for event in events if event.get("event") == "waiting"] == ["INVALID_DEFINITION"]
    for name in names:
        assert ids_in(folder / f"lake/{name}") == Counter(range(50))
        checkpoint = SparkCheckpoint(str(folder / f"checkpoints/{name}"))
        assert checkpoint.last_begun() == checkpoint.last_committed()
        assert history_of(str(folder / f"checkpoints/{name}")).read(RunEnded)[-1].fact == RunEnded(None)
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]


def _rows(running: Running, name: str) -> int:
    assert running.process.poll() is None, running.printed + running.complained
    found = (json.loads(line) for line in running.printed.splitlines() if line.endswith("}"))
    return sum(one.get("rows_in", 0) for one in found if one.get("pipeline") == name and "batch_id" in one)


@pytest.mark.long
def test_run_of_several_whose_spark_dies_ends_with_a_code_to_start_it_again(
    topics: Any, pipeline_file: Write, tmp_path: Path
) -> None:
    topic = topics.create(1)
    files = write_all(pipeline_file, tmp_path, ["a", "b"], topic)
    with Running(tmp_path, "run", *map(str, files)) as running:
        running.await_text("a started")
        running.await_text("b started")
        [java] = [p for p in running.look_around() if "java" in p.name()]
        os.kill(java.pid, signal.SIGKILL)
        assert running.process.wait(60) == 75, running.complained
        running.await_nobody_left()
    assert "SPARK_LOST running the pipelines: the Spark process has ended" in running.complained

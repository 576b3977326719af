"""Stops and deaths of `penstock` as a process: the batch in hand is finished, no process is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from deltalake import DeltaTable
from tests.orders import order
from tests.services.running import PENSTOCK, Running, wait_for

from penstock.checkpoint import SparkCheckpoint, checkpoint_lock
from penstock.devstack import stop_stack
from penstock.devstack.processes import free_ports

pytestmark = pytest.mark.services
Write = Callable[..., Path]
NOISE = ("terminate called", "Traceback", "Exception", "at org.apache", "at java.")


@contextmanager
def arriving(topics: Any, topic: str) -> Iterator[None]:
    """Orders keep coming, so that a signal meets a run at work."""
    done = threading.Event()

    def send() -> None:
        number = 0
        while not done.wait(0.05):
            topics.send(topic, [order(number + i) for i in range(20)])
            number += 20

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        done.set()
        sender.join()


def check_clean_end(file: Path, running: Running) -> None:
    """Exit 0, in order, with every row of the committed batches in the table once and nothing of an open one."""
    assert running.process.wait(40) == 0, running.complained
    running.await_nobody_left()
    assert not [word for word in NOISE if word in running.complained + running.printed], running.complained
    assert "stopping: finishing the current batch" in running.complained
    checkpoint = SparkCheckpoint(str(file.parent / "checkpoints/orders"))
    begun, done = checkpoint.last_begun(), checkpoint.last_committed()
    assert done is not None and begun in (done, done + 1)
    rows = DeltaTable(file.parent / "lake/out").to_pyarrow_table(columns=["_penstock"]).column(0).to_pylist()
    found = sorted((r["partition"], r["offset"]) for r in rows)
    expected = sorted((at.partition, o) for at, end in checkpoint.ends(done).items() for o in range(end))
    assert found == expected


@pytest.mark.parametrize("how", ["Ctrl-C to the group", pytest.param("SIGTERM to the process", marks=pytest.mark.long)])
def test_run_asked_to_stop_finishes_the_batch_and_leaves_nothing(
    topics: Any, pipeline_file: Write, tmp_path: Path, how: str
) -> None:
    topic = topics.create(2)
    file = pipeline_file(topic, trigger={"every": "200 ms"})
    with arriving(topics, topic), Running(tmp_path, "run", str(file)) as running:
        running.await_text("batch 3:")
        assert running.look_around(), "Spark runs below the command"
        if how.startswith("SIGTERM"):
            running.send(signal.SIGTERM)
        else:
            running.interrupt_group()
        check_clean_end(file, running)
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]


def test_run_interrupted_while_spark_starts_ends_at_once(topics: Any, pipeline_file: Write, tmp_path: Path) -> None:
    topic = topics.create(1)
    file = pipeline_file(topic, trigger={"every": "200 ms"})
    with Running(tmp_path, "run", str(file)) as running:
        wait_for(running.look_around, "Spark's process")
        running.interrupt_group()
        assert running.process.wait(15) == 0, running.complained
        running.await_nobody_left()
        assert running.complained.strip() == "stopped before the first batch"


@pytest.mark.long
def test_run_killed_leaves_no_spark_behind(topics: Any, pipeline_file: Write, tmp_path: Path) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    file = pipeline_file(topic, trigger={"every": "200 ms"})
    with Running(tmp_path, "run", str(file)) as running:
        running.await_text("batch 0:")
        running.send(signal.SIGKILL)
        running.process.wait()
        running.await_nobody_left(15)


def test_run_second_on_one_checkpoint_names_the_first(topics: Any, pipeline_file: Write, tmp_path: Path) -> None:
    file = pipeline_file(topics.create(1))
    with checkpoint_lock(str(tmp_path / "checkpoints/orders")):
        second = subprocess.run([PENSTOCK, "run", str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 3
    told = second.stderr.splitlines()
    assert told[0] == f"CHECKPOINT_IN_USE another run holds the checkpoint {tmp_path / 'checkpoints/orders'}"
    assert told[1].startswith(f"  held by: process {os.getpid()} on ")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_dev_up_interrupted_while_the_broker_starts_leaves_nothing(tmp_path: Path, number: int) -> None:
    port = str(free_ports(1)[0])
    try:
        with Running(tmp_path, "dev", "up", "--port", port, "--dir", str(tmp_path / "dev")) as running:
            wait_for(running.look_around, "the broker's process")
            running.send(number)
            assert running.process.wait(20) == 130
            running.await_nobody_left()
            assert "Traceback" not in running.complained
    finally:
        stop_stack(tmp_path / "dev")


@pytest.mark.parametrize(
    ("number", "when"), [(signal.SIGTERM, "broker"), pytest.param(signal.SIGINT, "Spark", marks=pytest.mark.long)]
)
def test_demo_interrupted_leaves_nothing(tmp_path: Path, number: int, when: str) -> None:
    with Running(tmp_path, "demo", "--dir", str(tmp_path / "demo")) as running:
        least = 1 if when == "broker" else 2
        wait_for(lambda: len(running.look_around()) >= least, f"the {when}'s process")
        if when == "Spark":
            wait_for((tmp_path / "demo/checkpoints/orders/offsets/0").exists, "the first batch")
        running.send(number)
        assert running.process.wait(40) == 130, running.complained
        running.await_nobody_left()
        assert "Traceback" not in running.complained


@pytest.mark.long
def test_demo_with_the_dashboard_goes_on_until_ctrl_c(tmp_path: Path) -> None:
    with Running(tmp_path, "demo", "--dashboard", "--dir", str(tmp_path / "demo")) as running:
        running.await_text("dashboard at ")
        running.await_text("batch 6:")
        link = re.search(r"(http://127\.0\.0\.1:\d+)/\?token=(\S+)", running.complained)
        assert link is not None and "nothing duplicated" in running.printed
        shown = requests.get(f"{link[1]}/api/overview", headers={"Authorization": f"Bearer {link[2]}"}, timeout=10)
        [row] = shown.json()["pipelines"]
        assert (row["name"], row["state"]) == ("orders", "running")
        running.interrupt_group()
        assert running.process.wait(40) == 0, running.complained
        running.await_nobody_left()
        assert not [word for word in NOISE if word in running.complained + running.printed], running.complained

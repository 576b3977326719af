"""Asking a run to stop: a real process that holds the lock, looks for the request, and ends as it is told to."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.checkpoint.lock import checkpoint_lock
from penstock.checkpoint.presence import Presence
from penstock.config import PipelineConfig, load
from penstock.errors import MissingError
from penstock.ops.stop import ask, doing, plan_stop, wait_until_stopped

FILE = """\
name: orders
source: {type: kafka, brokers: "localhost:9092", topics: [orders]}
decode: {format: json, schema: "order_id BIGINT NOT NULL"}
quarantine: {table: lake/bad}
sinks: [{name: out, type: delta, path: lake/orders}]
checkpoint: checkpoints/orders
"""
RUN = """
import sys, threading
from penstock.checkpoint.lock import checkpoint_lock
from penstock.checkpoint.presence import Presence, RunFacts
path, how = sys.argv[1:]
presence, asked = Presence(path), threading.Event()
with checkpoint_lock(path):
    presence.begin(RunFacts(pipeline="orders", doing="running", batch_id=4))
    with presence.heartbeat(asked.set):
        print("running", flush=True)
        asked.wait()
        if how == "deaf":
            sys.stdin.read()
    presence.end("DATA_LOSS" if how == "fails" else None)
"""
Started = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    (tmp_path / "orders.yaml").write_text(FILE)
    return load(tmp_path / "orders.yaml")


@pytest.fixture
def start(config: PipelineConfig) -> Iterator[Started]:
    started: list[subprocess.Popen[str]] = []

    def run(how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", RUN, config.checkpoint, how]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("how", "outcome", "error"), [("ends", "stopped", None), ("fails", "failed", "DATA_LOSS")])
def test_stop_asked_of_a_run_waits_until_it_is_gone(
    config: PipelineConfig, start: Started, how: str, outcome: str, error: str | None
) -> None:
    process = start(how)
    planned = plan_stop(config)
    assert ask(planned).outcome == "asked"
    [done] = wait_until_stopped([planned], 20)
    assert (done.outcome, done.error) == (outcome, error)
    assert str(process.pid) in (done.run or "")
    assert not Presence(config.checkpoint).stop_asked()


def test_stop_of_a_run_that_does_not_end_is_told_with_what_it_does(config: PipelineConfig, start: Started) -> None:
    start("deaf")
    planned, told = plan_stop(config), list[str]()
    ask(planned)
    [done] = wait_until_stopped([planned], 1.0, lambda pipeline, text: told.append(text))
    assert (done.outcome, done.doing) == ("still running", "running")
    assert told
    assert Presence(config.checkpoint).stop_asked()


def test_stop_says_which_batch_the_run_has_committed_or_has_begun(config: PipelineConfig, start: Started) -> None:
    checkpoint = Path(config.checkpoint)
    for name in ("offsets/3", "commits/3"):
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text("v1\n{}")
    start("deaf")
    planned = plan_stop(config)
    assert doing(config.checkpoint, planned.found) == "running, batch 3 committed"
    (checkpoint / "offsets/4").write_text("v1\n{}")
    assert doing(config.checkpoint, planned.found) == "running, batch 3 committed, batch 4 begun"


def test_stop_of_a_run_that_is_killed_meanwhile_says_so(config: PipelineConfig, start: Started) -> None:
    process = start("deaf")
    planned = plan_stop(config)
    ask(planned)
    threading.Timer(0.5, lambda: process.send_signal(signal.SIGKILL)).start()
    [done] = wait_until_stopped([planned], 20)
    assert done.outcome == "killed"
    assert not Presence(config.checkpoint).stop_asked()


def test_stop_of_a_pipeline_that_does_not_run_asks_nobody(config: PipelineConfig) -> None:
    planned = plan_stop(config)
    assert ask(planned).outcome == "not running"
    assert [done.outcome for done in wait_until_stopped([planned], 1)] == ["not running"]
    assert not Path(config.checkpoint).exists()


def test_stop_lost_to_the_beginning_of_the_run_is_asked_again(config: PipelineConfig, start: Started) -> None:
    start("ends")
    planned = plan_stop(config)
    [done] = wait_until_stopped([planned], 20)
    assert done.outcome == "stopped"


def test_stop_where_the_next_run_has_begun_leaves_that_one_alone(config: PipelineConfig, start: Started) -> None:
    start("ends")
    planned = plan_stop(config)
    ask(planned)
    wait_until_stopped([planned], 20)
    start("ends")
    assert [done.outcome for done in wait_until_stopped([planned], 1)] == ["stopped"]
    assert plan_stop(config).found.running
    assert not Presence(config.checkpoint).stop_asked()


def test_stop_where_somebody_else_holds_the_checkpoint_is_refused(config: PipelineConfig) -> None:
    with checkpoint_lock(config.checkpoint), pytest.raises(MissingError) as raised:
        plan_stop(config)
    assert raised.value.code == "RUN_UNKNOWN"

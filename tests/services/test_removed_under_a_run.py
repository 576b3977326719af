"""What a run says when its table, its checkpoint or its topic is removed under it, and whether the way out works."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import command
from tests.orders import drain, ids, order
from tests.services.running import wait_for

from penstock import load
from penstock.engine.listener import BatchDone, Event, Retrying
from penstock.engine.patience import StopRequest
from penstock.errors import PenstockError
from penstock.preflight.options import RunOptions
from penstock.supervision.run import run

pytestmark = pytest.mark.services
Write = Callable[..., Path]


class Background:
    """A run in a thread, and how it ends."""

    def __init__(self, file: Path, session: Any) -> None:
        self.events: list[Event] = []
        self.error: PenstockError | None = None
        self._stop = StopRequest()
        self._thread = threading.Thread(target=self._run, args=(file, session), daemon=True)
        self._thread.start()
        wait_for(lambda: any(isinstance(event, BatchDone) for event in self.events) or self.error, "a batch")

    def _run(self, file: Path, session: Any) -> None:
        try:
            run(load(file).config, RunOptions(give_up_after=0.1), self.events.append, self._stop, session)
        except PenstockError as error:
            self.error = error

    def ended_by(self) -> PenstockError:
        self._thread.join(60)
        self._stop.ask()
        assert self.error is not None
        return self.error


def test_table_removed_under_a_run_is_written_again_by_the_way_out_that_is_told(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    file = pipeline_file(topic, trigger={"every": "200 ms"})
    running = Background(file, session)
    shutil.rmtree(file.parent / "lake/out")
    topics.send(topic, [order(1)])
    told = running.ended_by()
    assert told.code in ("TARGET_WENT_BACK", "SINK_TABLE_GONE") and "--catch-up" in str(told.hint)
    # What the batch staged is there, and no table.
    assert list((file.parent / "lake/out").glob("part-*"))
    drain(file, session, catch_up=True)
    assert ids(file) == [0, 1]


def test_checkpoint_removed_under_a_run_is_called_so(spark: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    file = pipeline_file(topic, trigger={"every": "200 ms"})
    running = Background(file, spark)
    # In one step: the run goes on writing its notes there.
    Path(load(file).config.checkpoint).rename(file.parent / "removed")
    topics.send(topic, [order(1)])
    told = running.ended_by()
    assert told.code == "CHECKPOINT_GONE", str(told)
    assert "===" not in str(told) and "--resume-from-table" in str(told.hint)


def test_topic_removed_under_a_run_is_not_called_brokers_that_are_away(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(0)])
    running = Background(pipeline_file(topic, trigger={"every": "200 ms"}), session)
    topics.admin.delete_topics([topic])[topic].result(10)
    told = running.ended_by()
    assert (told.code, told.exit_code) == ("TOPIC_GONE", 75)
    assert {event.error.code for event in running.events if isinstance(event, Retrying)} <= {"TOPIC_GONE"}


@pytest.mark.parametrize(("wrong", "code"), [("password", "SINK_ACCESS_DENIED"), ("port", "SINK_DATABASE_UNAVAILABLE")])
def test_plan_with_a_database_that_cannot_be_asked_says_so_once(
    topics: Any, postgres: Any, pipeline_file: Write, wrong: str, code: str
) -> None:
    topic = topics.create(1)
    url = postgres.url(password="guess") if wrong == "password" else postgres.url().replace(str(postgres.port), "1")
    sink = {"name": "db", "type": "postgres", "url": "${env:PENSTOCK_TEST_URL}", "table": "orders", "mode": "append"}
    file = pipeline_file(topic, sinks=[sink])
    _committed(file.parent / "checkpoints/orders", topic)
    planned = command("plan", str(file), "--json", folder=file.parent, PENSTOCK_TEST_URL=url)
    problems = json.loads(planned.stdout)["problems"]
    assert [one["code"] for one in problems] == [code], problems
    assert problems[0]["hint"] and "guess" not in planned.stdout


def _committed(checkpoint: Path, topic: str) -> None:
    """A checkpoint with one batch that is committed, and no record in it."""
    files = {
        "metadata": '{"id":"11111111-1111-1111-1111-111111111111"}',
        "sources/0/0": "v1\n" + json.dumps({topic: {"0": 0}}),
        "offsets/0": 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n' + json.dumps({topic: {"0": 0}}),
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
    }
    for name, text in files.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(text)

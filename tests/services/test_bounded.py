"""Bounded runs against a real broker and Spark: resumed, committed at once; and topics that were made again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.orders import drain, ids, order
from tests.tables import read_table

from penstock.assembly.build import build
from penstock.config import PipelineConfig, load
from penstock.engine.listener import BatchDone, Event
from penstock.engine.patience import StopRequest
from penstock.errors import TerminalError
from penstock.model import OffsetRange
from penstock.supervision.bounded import BoundedRun, batches_done, cut, run_bounded

pytestmark = pytest.mark.services
Write = Callable[..., Path]


def into(config: PipelineConfig, name: str, path: str) -> PipelineConfig:
    [sink] = config.sinks
    return config.model_copy(update={"name": name, "sinks": (sink.model_copy(update={"path": path}),)})


@pytest.mark.parametrize(
    ("at_once", "session"),
    [(False, "local"), (True, "local"), pytest.param(True, "spark", marks=pytest.mark.long)],
    indirect=["session"],
)
def test_bounded_run_stopped_and_called_again_writes_its_ranges_once(
    session: Any, topics: Any, pipeline_file: Write, at_once: bool
) -> None:
    topic = topics.create(1)
    topics.send(topic, [*(order(n) for n in range(60)), b"bad"])
    file = pipeline_file(topic)
    config = into(load(file), "orders.replay-x", str(file.parent / "lake/again"))
    batches = cut([OffsetRange(topic, 0, 10, 61)], 20)
    bounded = BoundedRun(build(config), "x", batches, file.parent / "replays/x", at_once=at_once)
    stop = StopRequest()

    def stop_after_one(event: Event) -> None:
        if isinstance(event, BatchDone):
            stop.ask()

    assert run_bounded(bounded, stop_after_one, stop, session).batches == 1
    assert (batches_done(bounded), bounded.finished) == (1, False)
    if at_once:
        assert ids(file, "lake/again") == []
    # As if it had died after the commit of its first batch and before noting it: the target knows.
    (bounded.folder / "progress.json").unlink()
    again = replace(bounded, pipeline=build(config))
    assert run_bounded(again, session=session).batches == 2
    assert again.finished
    shutil.rmtree(bounded.folder)
    assert run_bounded(again, session=session).batches == 0
    assert ids(file, "lake/again") == list(range(10, 60))
    assert read_table(file.parent / "lake/quarantine", ["pipeline"]).to_pylist() == [{"pipeline": "orders.replay-x"}]


def test_run_topic_made_again_and_grown_past_the_checkpoint_is_refused_then_read_whole(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(n) for n in range(5)])
    file = pipeline_file(topic)
    drain(file, session)
    topics.create_again(topic, 1)
    topics.send(topic, [order(n) for n in range(100, 120)])
    with pytest.raises(TerminalError) as refused:
        drain(file, session)
    assert refused.value.code == "TOPIC_RECREATED"
    file = pipeline_file(topic, source={"on_data_loss": "record"})
    drain(file, session)
    assert ids(file) == [*range(5), *range(100, 120)]
    [gap] = read_table(file.parent / "lake/quarantine_gaps").to_pylist()
    assert (gap["from_offset"], gap["to_offset"], gap["reason"]) == (5, None, "the topic was re-created")
    topics.send(topic, [order(n) for n in range(120, 125)])
    drain(pipeline_file(topic), session)
    assert ids(file) == [*range(5), *range(100, 125)]

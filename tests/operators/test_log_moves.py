"""The log moves while a batch is open: retention removes records between the check and the read, or the log ends
before the batch does, as for a moment after a broker was lost.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from tests.committed import committed
from tests.operators import local
from tests.tables import read_table

from penstock.checkpoint import SparkCheckpoint
from penstock.config import load
from penstock.engine import batches as batches_module
from penstock.engine import direct
from penstock.engine.batch import BatchRunner
from penstock.engine.work import pinned_slot
from penstock.errors import PenstockError, TerminalError, TransientError
from penstock.model import TopicPartition

Write = Callable[..., Path]


def order(number: int) -> dict[str, Any]:
    return {"order_id": number, "amount": 1.0}


def trim(topics: Any, topic: str, before: int, partition: int = 0) -> None:
    for future in topics.admin.delete_records([KafkaPartition(topic, partition, before)]).values():
        future.result(10)


def ids(file: Path) -> list[int]:
    return sorted(read_table(file.parent / "lake/out").column("order_id").to_pylist())


def gaps(file: Path) -> list[tuple[int, int, int | None]]:
    rows = read_table(file.parent / "lake/quarantine_gaps").to_pylist()
    return sorted((row["partition"], row["from_offset"], row["to_offset"]) for row in rows)


@pytest.fixture
def begun(topics: Any, pipeline_file: Write) -> Callable[..., tuple[str, Path]]:
    """A topic whose first ten records are in the table, and twenty more that are not."""

    def make(**source: Any) -> tuple[str, Path]:
        topic = topics.create(1)
        file = pipeline_file(topic, name=f"orders-{topic}", source=source)
        topics.send(topic, [order(n) for n in range(10)])
        local.run_local(load(file))
        topics.send(topic, [order(n) for n in range(10, 30)])
        return topic, file

    return make


def test_log_start_that_moves_before_the_read_stops_the_run_with_the_exact_range(topics: Any, begun: Any) -> None:
    topic, file = begun()

    def remove(batch: int, phase: str) -> None:
        if phase == "stage":
            trim(topics, topic, 17)

    for enter in (remove, lambda batch, phase: None):
        with pytest.raises(TerminalError) as raised:
            local.run_local(load(file), enter=enter)
        assert (raised.value.code, list(raised.value.context)) == ("DATA_LOSS", [f"{topic}[0] 10-17"])
        assert ids(file) == list(range(10))


@pytest.mark.parametrize("before", [17, 30], ids=["some", "all"])
def test_log_start_that_moves_before_the_read_is_recorded_as_a_gap_and_the_rest_is_read(
    topics: Any, begun: Any, before: int
) -> None:
    topic, file = begun(on_data_loss="record")

    def remove(batch: int, phase: str) -> None:
        if phase == "stage":
            trim(topics, topic, before)

    summary = local.run_local(load(file), enter=remove)
    assert (summary.rows_in, summary.rows_out) == (30 - before, 30 - before)
    topics.send(topic, [order(30)])
    local.run_local(load(file))
    assert ids(file) == [*range(10), *range(before, 31)]
    assert gaps(file) == [(0, 10, before)]


def test_log_start_that_moves_on_and_on_ends_the_try_and_the_next_one_has_each_record_once(
    topics: Any, begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, file = begun(on_data_loss="record")
    run_slot, starts = direct.run_slot, iter((14, 19))

    def run_after_removal(*task: Any) -> Any:
        trim(topics, topic, next(starts, 19))
        return run_slot(*task)

    monkeypatch.setattr(direct, "run_slot", run_after_removal)
    with pytest.raises(TransientError) as raised:
        local.run_local(load(file))
    assert raised.value.code == "OFFSETS_GONE"
    assert ids(file) == list(range(10))
    local.run_local(load(file))
    assert ids(file) == [*range(10), *range(19, 30)]
    assert gaps(file) == [(0, 10, 19)]


@pytest.mark.parametrize("bad", [False, True], ids=["committed-in-its-slot", "waiting-for-the-quarantine"])
def test_log_start_that_moves_when_one_slot_is_done_leaves_each_record_once_in_every_target(
    topics: Any, pipeline_file: Write, monkeypatch: pytest.MonkeyPatch, bad: bool
) -> None:
    """The first slot is staged twice, and into a topic it may be committed by then."""
    topic, clean = topics.create(2), topics.create(1, prefix="clean")
    sinks = [
        {"name": "out", "type": "delta", "path": "lake/out"},
        {"name": "topic", "type": "kafka", "topic": clean, "slots": 2},
    ]
    file = pipeline_file(topic, name=f"orders-{topic}", sinks=sinks, source={"on_data_loss": "record"})
    first, last = sorted((0, 1), key=lambda partition: pinned_slot(topic, partition, 2))
    for partition in (first, last):
        topics.send(topic, [order(partition * 10 + n) for n in range(5)], partition=partition)
    topics.send(topic, [b"{broken"] if bad else [order(first * 10 + 5)], partition=first)
    run_slot, done = direct.run_slot, []

    def run_then_remove(work: Any, slot: int, ranges: Any) -> Any:
        report = run_slot(work, slot, ranges)
        done.append(slot)
        trim(topics, topic, 3, last)
        return report

    monkeypatch.setattr(direct, "run_slot", run_then_remove)
    summary = local.run_local(load(file))
    assert done[:3] == [0, 0, 1], "the second slot found its records gone, and both were run again"
    expected = [*(first * 10 + n for n in range(5 if bad else 6)), *(last * 10 + n for n in (3, 4))]
    sent_on = [json.loads(m.value())["order_id"] for m in committed(topics.brokers, clean)]
    assert Counter(ids(file)) == Counter(sent_on) == dict.fromkeys(expected, 1)
    assert gaps(file) == [(last, 0, 3)]
    assert read_table(file.parent / "lake/quarantine").num_rows == bad
    assert (summary.rows_in, summary.rows_out, summary.quarantined) == (8, 8 - bad, bad)


@pytest.mark.parametrize("loss", ["fail", "record"])
def test_log_start_that_moves_while_a_sink_waits_for_the_quarantine_is_data_loss_too(
    topics: Any, pipeline_file: Write, loss: str
) -> None:
    """The topic's slot waits until its bad record is quarantined, and then reads its records a second time."""
    topic, clean = topics.create(1), topics.create(1, prefix="clean")
    sinks = [
        {"name": "out", "type": "delta", "path": "lake/out"},
        {"name": "topic", "type": "kafka", "topic": clean, "slots": 1},
    ]
    file = pipeline_file(topic, name=f"orders-{topic}", sinks=sinks, source={"on_data_loss": loss})
    topics.send(topic, [b"{broken", *(order(n) for n in range(5))])

    def remove(batch: int, phase: str) -> None:
        if phase.startswith("commit:quarantine"):
            trim(topics, topic, 3)

    if loss == "fail":
        with pytest.raises(TerminalError) as raised:
            local.run_local(load(file), enter=remove)
        assert (raised.value.code, list(raised.value.context)) == ("DATA_LOSS", [f"{topic}[0] 0-3"])
        assert not [*committed(topics.brokers, clean)]
        return
    local.run_local(load(file), enter=remove)
    assert ids(file) == list(range(5))
    assert [json.loads(m.value())["order_id"] for m in committed(topics.brokers, clean)] == [2, 3, 4]
    assert gaps(file) == [(0, 0, 3)]


@pytest.fixture
def waiting(
    begun: Any, topics: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[float], bool]], tuple[str, Path]]:
    """An open batch that ends five offsets behind its log; what is called whenever the run waits for the log."""

    def make(stopped: Callable[[float], bool], **source: Any) -> tuple[str, Path]:
        topic, file = begun(**source)
        SparkCheckpoint(load(file).checkpoint).put_offsets(1, {TopicPartition(topic, 0): 35}, like=0)
        monkeypatch.setattr(local, "BatchRunner", partial(BatchRunner, stopped=stopped))
        return topic, file

    return make


def test_batch_that_ends_behind_its_log_waits_until_the_log_is_there_and_loses_nothing(
    topics: Any, waiting: Any
) -> None:
    waits: list[float] = []

    def arrive(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 2:
            topics.send(topic, [order(n) for n in range(30, 35)])
        return False

    topic, file = waiting(arrive, on_data_loss="record")
    local.run_local(load(file))
    assert len(waits) >= 2
    assert ids(file) == list(range(35))
    assert not (file.parent / "lake/quarantine_gaps").exists()


def test_batch_that_waits_for_its_log_ends_with_its_run_when_asked_to_stop(topics: Any, waiting: Any) -> None:
    stops = [False, True]
    topic, file = waiting(lambda seconds: stops.pop(0))
    with pytest.raises(TransientError) as raised:
        local.run_local(load(file))
    assert (raised.value.code, stops) == ("LOG_ENDS_EARLY", [])
    assert raised.value.context == {f"{topic}[0]": "ends at 30, the batch at 35"}
    assert ids(file) == list(range(10))
    topics.send(topic, [order(n) for n in range(30, 35)])
    local.run_local(load(file))
    assert ids(file) == list(range(35))


@pytest.mark.parametrize("loss", ["fail", "record"])
def test_log_that_stays_shorter_than_its_batch_is_data_loss_in_the_end(
    waiting: Any, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    monkeypatch.setattr(batches_module, "END_PATIENCE", 0.0)
    topic, file = waiting(lambda seconds: False, on_data_loss=loss)
    if loss == "record":
        local.run_local(load(file))
        assert (ids(file), gaps(file)) == (list(range(30)), [(0, 30, 35)])
        return
    with pytest.raises(PenstockError) as raised:
        local.run_local(load(file))
    assert (raised.value.code, raised.value.context) == ("DATA_LOSS", {f"{topic}[0] 30-35": "the log now ends at 30"})
    assert ids(file) == list(range(10))

"""Replays: into another table, into the table that a live run writes to, and by position into one that is merged."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.committed import committed
from tests.orders import drain
from tests.services.running import wait_for
from tests.sessions import ON_BOTH_LONG
from tests.tables import read_table

from penstock.config import PipelineConfig, load
from penstock.engine.listener import BatchDone, Event
from penstock.engine.patience import StopRequest
from penstock.errors import MissingError
from penstock.model import COORDINATES, OffsetRange
from penstock.ops.replay.folder import ReplayRequest
from penstock.ops.replay.replay import apply_replay, plan_replay
from penstock.preflight.options import RunOptions
from penstock.supervision.run import run

pytestmark = pytest.mark.services
Write = Callable[..., Path]
COLUMNS = "order_id BIGINT NOT NULL, customer_id STRING, amount DOUBLE, event_time TIMESTAMP"
DECODE = {"format": "json", "schema": COLUMNS, "tombstones": "quarantine"}


def orders(start: int, end: int, keys: int | None = None) -> list[dict[str, Any]]:
    return [
        {
            "order_id": n % keys if keys else n,
            "customer_id": f"c{n}",
            "amount": 1.0,
            "event_time": "2026-01-01T00:00:00Z",
        }
        for n in range(start, end)
    ]


def marked(file: Path, mark: str) -> PipelineConfig:
    """The same pipeline after a change of its steps: it writes this mark into every row."""
    config = load(file)
    changed = file.with_name(f"{mark}.yaml")
    changed.write_text(file.read_text().replace("'live'", f"'{mark}'"))
    assert load(changed).name == config.name
    return load(changed)


def offsets_and_marks(table: Path) -> list[tuple[int, int, str]]:
    rows = read_table(table).to_pylist()
    return sorted((row[COORDINATES]["partition"], row[COORDINATES]["offset"], row["mark"]) for row in rows)


def test_replay_into_another_table_writes_what_was_asked_and_leaves_the_live_run_alone(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(2)
    topics.send(topic, [*orders(0, 100), b"{broken"])
    file = pipeline_file(
        topic,
        source={"max_offsets": 30},
        transforms=[{"derive": {"mark": "'live'"}}],
        sinks=[
            {"name": "out", "type": "delta", "path": "lake/out"},
            {"name": "topic", "type": "kafka", "topic": f"{topic}.out", "create": True},
        ],
    )
    config, folder = load(file), file.parent
    drain(file, session)
    before = {path: path.read_bytes() for path in (folder / "checkpoints/orders").rglob("*") if path.is_file()}

    request = ReplayRequest(
        "0=10,1=20", "latest", None, (), (f"out={folder / 'lake/again'}", f"topic={topic}.again"), False
    )
    plan = plan_replay(config, request)
    assert plan.ranges == (OffsetRange(topic, 0, 10, 51), OffsetRange(topic, 1, 20, 50))
    assert plan.batches == 3
    assert plan.running is None
    assert plan.times is not None
    assert not plan.stored.folder.exists(), "a plan writes nothing"
    done = apply_replay(plan, session=session)
    assert done is not None
    assert (done.rows_in, done.rows_out, done.quarantined) == (71, 70, 1)

    expected = [(p, o, "live") for p, (start, end) in enumerate([(10, 50), (20, 50)]) for o in range(start, end)]
    assert offsets_and_marks(folder / "lake/again") == expected
    assert len(committed(topics.brokers, f"{topic}.again")) == 70
    assert len(offsets_and_marks(folder / "lake/out")) == 100
    after = {path: path.read_bytes() for path in (folder / "checkpoints/orders").rglob("*") if path.is_file()}
    assert after == before
    assert read_table(folder / "lake/quarantine").column("pipeline").to_pylist() == ["orders"]
    assert read_table(folder / "lake/again_quarantine").column("pipeline").to_pylist() == [plan.name]
    assert sorted(path.name for path in plan.stored.folder.iterdir() if not path.name.startswith(".")) == [
        *("plan.json", "progress.json", "summary.json")
    ]
    assert json.loads((plan.stored.folder / "summary.json").read_text())["rows_out"] == 70


@ON_BOTH_LONG
def test_replay_into_the_live_table_while_the_stream_runs_is_right_to_the_row(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(2)
    topics.send(topic, orders(0, 160))
    file = pipeline_file(
        topic,
        source={"max_offsets": 40},
        transforms=[{"derive": {"mark": "'live'"}}],
        sinks=[{"name": "out", "type": "delta", "path": "lake/out"}],
        trigger={"every": "200 ms"},
    )
    table, stop, batches = file.parent / "lake/out", StopRequest(), []

    def listen(event: Event) -> None:
        if isinstance(event, BatchDone):
            batches.append(event)

    def rows_read() -> int:
        return sum(event.metrics.rows_in for event in batches)

    live = threading.Thread(target=run, args=(load(file), RunOptions(), listen, stop, session))
    live.start()
    sent = 160
    try:
        wait_for(lambda: rows_read() >= 120, "the live run")
        plan = plan_replay(marked(file, "again"), ReplayRequest("0=10,1=30", "0=50,1=9000"))
        assert plan.running is not None
        assert plan.notices, "the cut of --to is said"
        assert plan.targets[0].replaces == sum(map(len, plan.ranges))
        replaying = threading.Thread(target=lambda: done.append(apply_replay(plan, session=session)))
        done: list[Any] = []
        replaying.start()
        while replaying.is_alive():
            topics.send(topic, orders(sent, sent + 20))
            sent += 20
            wait_for(lambda so_far=sent: rows_read() >= so_far, "the live run to read what was sent")  # type: ignore[misc]
        replaying.join()
        assert done[0] is not None
    finally:
        stop.ask()
        live.join()
    replayed = {(r.partition, offset) for r in plan.ranges for offset in range(r.start, r.end)}
    assert (0, 10) in replayed and (0, 50) not in replayed and (1, 29) not in replayed
    expected = [(p, o, "again" if (p, o) in replayed else "live") for p in (0, 1) for o in range(sent // 2)]
    assert offsets_and_marks(table) == expected


def test_replay_stopped_behind_a_batch_goes_on_with_the_same_request(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    topics.send(topic, orders(0, 90))
    file = pipeline_file(
        topic,
        source={"max_offsets": 30},
        transforms=[{"derive": {"mark": "'live'"}}],
        sinks=[{"name": "out", "type": "delta", "path": "lake/out"}],
    )
    drain(file, session)
    stop, request = StopRequest(), ReplayRequest("earliest", "committed")

    def stop_after_one(event: Event) -> None:
        if isinstance(event, BatchDone):
            stop.ask()

    plan = plan_replay(marked(file, "again"), request)
    assert apply_replay(plan, stop_after_one, stop, session=session) is None
    assert {mark for *_, mark in offsets_and_marks(file.parent / "lake/out")} == {"live"}, (
        "nothing appears before the end"
    )
    again = plan_replay(marked(file, "again"), request)
    assert (again.stored, again.resumed, again.done) == (plan.stored, True, 1)
    done = apply_replay(again, session=session)
    assert done is not None
    assert done.batches == 2
    assert offsets_and_marks(file.parent / "lake/out") == [(0, n, "again") for n in range(90)]
    with pytest.raises(MissingError) as refused:
        plan_replay(marked(file, "again"), request)
    assert refused.value.code == "REPLAY_FINISHED"
    assert not plan_replay(marked(file, "again"), replace(request, again=True)).resumed


def test_replay_into_a_merged_table_leaves_rows_of_later_positions(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    topics.send(topic, orders(0, 60, keys=20))
    file = pipeline_file(
        topic,
        decode=DECODE,
        transforms=[{"derive": {"mark": "'live'"}}],
        sinks=[{"name": "out", "type": "delta", "path": "lake/out", "mode": "merge", "keys": ["order_id"]}],
    )
    drain(file, session)
    done = apply_replay(plan_replay(marked(file, "again"), ReplayRequest("0=20", "0=50")), session=session)
    assert done is not None
    # Of offsets 40 to 59, which the table has, the replay read those up to 49 again.
    expected = [(0, n, "again" if n < 50 else "live") for n in range(40, 60)]
    assert offsets_and_marks(file.parent / "lake/out") == expected


def test_replay_of_offsets_that_retention_has_deleted_says_so_and_needs_consent(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    from confluent_kafka import TopicPartition

    topic = topics.create(1)
    topics.send(topic, orders(0, 50))
    file = pipeline_file(topic, transforms=[{"derive": {"mark": "'live'"}}])
    drain(file, session)
    for future in topics.admin.delete_records([TopicPartition(topic, 0, 20)]).values():
        future.result(30)
    plan = plan_replay(marked(file, "again"), ReplayRequest("0=5", "committed"))
    [lost] = plan.missing
    assert (lost.start, lost.end) == (5, 20)
    with pytest.raises(MissingError) as refused:
        apply_replay(plan, session=session)
    assert refused.value.code == "REPLAY_RANGE_GONE"
    accepted = plan_replay(marked(file, "again"), ReplayRequest("0=5", "committed", accept_missing=True))
    assert apply_replay(accepted, session=session) is not None
    expected = [(0, n, "again" if n >= 20 else "live") for n in range(50)]
    assert offsets_and_marks(file.parent / "lake/out") == expected

"""State that is restored from an older backup: the batches since are run again, and the table is as if nothing was."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.tables import read_table

from penstock.checkpoint import SparkCheckpoint
from penstock.config import load
from penstock.engine.listener import BatchDone, Event
from penstock.engine.patience import StopRequest
from penstock.errors import PenstockError
from penstock.ops.checkpoint.backup import apply_backup, plan_backup
from penstock.ops.checkpoint.repair import plan_repair, verify_checkpoint
from penstock.ops.checkpoint.restore import apply_restore, plan_restore
from penstock.ops.snapshot import take_snapshot
from penstock.preflight.options import RunOptions
from penstock.supervision.run import run

pytestmark = pytest.mark.services
START = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = [
    {"watermark": {"column": "event_time", "delay": "10 minutes"}},
    {"dedupe": {"keys": ["order_id"], "within": "1 hour"}},
]
SENT = [
    [(1, 0), (2, 0), (2, 1)],
    [(1, 2), (3, 3), (4, 4)],
    [(3, 5), (5, 40), (6, 31)],
    [(7, 41), (5, 42)],
]
AFTER = [(4, 31), (7, 43), (6, 44), (8, 45), (3, 46)]


def order(number: int, minutes: int) -> dict[str, Any]:
    time = (START + timedelta(minutes=minutes)).isoformat()
    return {"order_id": number, "customer_id": f"at {minutes}", "amount": 1.5, "event_time": time}


def rows(file: Path) -> list[tuple[int, str]]:
    found = read_table(file.parent / "lake/out", ["order_id", "customer_id"]).to_pylist()
    return sorted((row["order_id"], row["customer_id"]) for row in found)


@pytest.mark.long
def test_dedupe_restored_from_an_older_backup_lets_through_what_a_calm_run_does(
    spark: Any, topics: Any, pipeline_file: Callable[..., Path], tmp_path: Path
) -> None:
    topic = topics.create(1)
    calm = pipeline_file(topic, name="calm", folder=tmp_path / "calm", transforms=STEPS)
    file = pipeline_file(topic, transforms=STEPS)
    config = load(file)
    for number, sent in enumerate(SENT):
        topics.send(topic, [order(*one) for one in sent])
        for each in (calm, file):
            run(load(each), RunOptions(), session=spark)
        if number == 0:
            apply_backup(plan_backup(config))
    before = rows(file)
    left = len(apply_restore(plan_restore(config)).reconciled.again)
    assert left >= len(SENT) - 1
    found = verify_checkpoint(take_snapshot(config))
    assert (found.findings, "a run repeats the batches to" in found.state) == ((), True)
    plan = plan_repair(take_snapshot(config, brokers=None))
    assert (plan.changes, plan.refused) == ((), ())

    # A run that is stopped behind the first of these batches leaves the others to the next.
    stop = StopRequest()

    def listen(event: Event) -> None:
        if isinstance(event, BatchDone):
            stop.ask()

    run(config, RunOptions(), listen, stop, session=spark)
    assert SparkCheckpoint(config.checkpoint).again() != []
    assert verify_checkpoint(take_snapshot(config)).findings == ()
    assert rows(file) == before
    topics.send(topic, [order(*one) for one in AFTER])
    for each in (calm, file):
        run(load(each), RunOptions(), session=spark)
    assert SparkCheckpoint(config.checkpoint).again() == []
    assert rows(file) == rows(calm)
    assert len(rows(file)) > len(before)
    assert verify_checkpoint(take_snapshot(config)).findings == ()


def test_target_of_a_step_with_state_that_went_back_is_not_caught_up(
    spark: Any, topics: Any, pipeline_file: Callable[..., Path]
) -> None:
    topic = topics.create(1)
    file = pipeline_file(topic, transforms=STEPS)
    for sent in SENT[:2]:
        topics.send(topic, [order(*one) for one in sent])
        run(load(file), RunOptions(), session=spark)
    before = rows(file)
    assert [number for number, _ in before] == [1, 2, 3, 4]
    DeltaTable(file.parent / "lake/out").restore(1)
    with pytest.raises(PenstockError, match="the state of a step cannot catch up") as refused:
        run(load(file), RunOptions(catch_up=True), session=spark)
    assert refused.value.code == "RESUME_SINKS_DISAGREE"
    DeltaTable(file.parent / "lake/out").restore(DeltaTable(file.parent / "lake/out").version() - 1)
    run(load(file), RunOptions(), session=spark)
    assert rows(file) == before

"""Redrive against a real broker: back in through the pipeline as it is now, once, marked, from a table or a topic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.cli.command import command
from tests.orders import order
from tests.tables import read_table

from penstock.config import PipelineConfig, load
from penstock.errors import TerminalError
from penstock.ops.quarantine.listing import list_records
from penstock.ops.quarantine.place import Selection, quarantine_of
from penstock.ops.quarantine.show import show_record
from penstock.ops.redrive.redrive import apply_redrive, plan_redrive
from penstock.preflight.options import RunOptions
from penstock.quarantine.marks import RedriveMarks
from penstock.supervision.run import run

pytestmark = pytest.mark.services
Write = Callable[..., Path]
STRICT = "order_id BIGINT NOT NULL, customer_id STRING, amount DOUBLE NOT NULL"
MENDED = "order_id BIGINT NOT NULL, customer_id STRING, amount DOUBLE"


def decode(columns: str) -> dict[str, str]:
    return {"format": "json", "schema": columns}


def orders_in(path: Path) -> list[int]:
    return sorted(row["order_id"] for row in read_table(path).to_pylist())


def redrive(config: PipelineConfig, session: Any, **more: Any) -> Any:
    return apply_redrive(plan_redrive(config, Selection(), **more), session=session)


def states(config: PipelineConfig) -> dict[str, int]:
    return dict(list_records(config).states)


def test_redrive_after_the_file_is_mended_brings_records_in_once(
    topics: Any, session: Any, pipeline_file: Write, tmp_path: Path
) -> None:
    topic = topics.create(2)
    bad = [order(number, amount=None) for number in range(10, 20)]
    topics.send(topic, [order(1), *bad, b"{oops", order(2)])
    quarantine = {"table": "lake/quarantine", "max_redrives": 2}
    run(load(pipeline_file(topic, decode=decode(STRICT), quarantine=quarantine)), session=session)
    mended = load(pipeline_file(topic, decode=decode(MENDED), quarantine=quarantine, source={"max_offsets": 4}))
    assert (states(mended), orders_in(tmp_path / "lake/out")) == ({"waiting": 11}, [1, 2])

    done = redrive(mended, session)
    assert (done.redriven, done.failed, done.parked, done.finished) == (10, 1, 0, True)
    assert orders_in(tmp_path / "lake/out") == [1, 2, *range(10, 20)]
    marks = quarantine_of(mended).read_marks()
    assert set(marks["run"]) == set(done.runs)
    assert marks.height == 11
    assert marks.filter(pl.col("outcome") == "failed")["code"].to_list() == ["MALFORMED_JSON"]

    again = redrive(mended, session)
    assert (again.redriven, again.failed, again.parked) == (0, 1, 1)
    assert states(mended) == {"parked": 1, "redriven": 10}
    assert plan_redrive(mended, Selection()).records == 0
    assert plan_redrive(mended, Selection(), include_parked=True).records == 1
    assert orders_in(tmp_path / "lake/out") == [1, 2, *range(10, 20)]
    assert read_table(tmp_path / "lake/quarantine").num_rows == 11

    run(mended, RunOptions(available_now=True), session=session)
    topics.send(topic, [order(3)])
    assert run(mended, RunOptions(available_now=True), session=session).rows_out == 1

    offset = next(row.offset for row in _places(mended) if row.code == "MALFORMED_JSON")
    shown = show_record(mended, (topic, offset[0], offset[1]))
    assert (shown.value, [mark["outcome"] for mark in shown.marks]) == (b"{oops", ["failed", "failed"])
    assert [one["code"] for one in shown.now.refused] == ["MALFORMED_JSON"]
    assert "there" in {one.standing for one in shown.neighbours}


def test_redrive_from_a_topic_goes_only_to_the_sink_that_refused(
    topics: Any, session: Any, pipeline_file: Write, tmp_path: Path
) -> None:
    topic, bad = topics.create(2), topics.create(1, prefix="bad")
    topics.send(topic, [order(1), order(2, customer_id=None), order(3, customer_id=None), b"{oops"])
    sinks = [
        {"name": "every", "type": "delta", "path": "lake/every"},
        {"name": "merged", "type": "delta", "path": "lake/merged", "mode": "merge", "keys": ["customer_id"]},
    ]
    keys = {"decode": decode(MENDED), "quarantine": {"topic": bad}, "sinks": sinks}
    run(load(pipeline_file(topic, **keys)), session=session)
    assert orders_in(tmp_path / "lake/every") == [1, 2, 3]
    derive = [{"derive": {"customer_id": "coalesce(customer_id, concat('new-', cast(order_id AS STRING)))"}}]
    mended = load(pipeline_file(topic, transforms=derive, **keys))
    plan = plan_redrive(mended, Selection())
    assert plan.ways == {("merged",): 2, ("every", "merged"): 1}

    done = apply_redrive(plan, session=session)
    assert (done.redriven, done.failed) == (2, 1)
    assert orders_in(tmp_path / "lake/every") == [1, 2, 3]
    assert orders_in(tmp_path / "lake/merged") == [1, 2, 3]
    assert states(mended) == {"failed": 1, "redriven": 2}
    assert plan_redrive(mended, Selection()).ways == {("every", "merged"): 1}


def test_redrive_that_ends_before_its_marks_still_marks_what_a_sink_refused(
    topics: Any, session: Any, pipeline_file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(1, customer_id=None), order(2, amount=None)])
    sinks = [{"name": "merged", "type": "delta", "path": "lake/merged", "mode": "merge", "keys": ["customer_id"]}]
    run(load(pipeline_file(topic, decode=decode(STRICT), sinks=sinks)), session=session)
    mended = load(pipeline_file(topic, decode=decode(MENDED), sinks=sinks))

    def die(self: RedriveMarks, *_: Any) -> None:
        raise TerminalError("DEAD", "the sinks have the batch, and it is not marked")

    with monkeypatch.context() as dying, pytest.raises(TerminalError, match="DEAD"):
        dying.setattr(RedriveMarks, "land", die)
        redrive(mended, session)
    assert (states(mended), orders_in(tmp_path / "lake/merged")) == ({"waiting": 2}, [2])
    done = redrive(mended, session)
    assert (done.redriven, done.failed, len(done.runs)) == (1, 1, 1)
    assert (states(mended), orders_in(tmp_path / "lake/merged")) == ({"failed": 1, "redriven": 1}, [2])


def test_quarantine_commands_list_drop_and_take_back(topics: Any, session: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, [order(1), b"{oops", b"\xff\x00"])
    file = pipeline_file(topic, decode=decode(MENDED))
    run(load(file), session=session)
    listed = command("quarantine", "list", file.name, folder=file.parent)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.startswith("orders  2 records in ")
    shown = command("quarantine", "show", file.name, f"{topic}[0]@2", folder=file.parent)
    assert shown.returncode == 0
    assert "00000000  ff 00" in shown.stdout
    assert command("quarantine", "drop", file.name, "--code", "INVALID_UTF8", folder=file.parent).returncode == 0
    assert states(load(file)) == {"waiting": 1, "dropped": 1}
    planned = command("quarantine", "redrive", file.name, "--dry-run", folder=file.parent)
    assert "redrive of 1 record from" in planned.stdout
    assert command("quarantine", "drop", file.name, "--undo", folder=file.parent).returncode == 0
    assert states(load(file)) == {"waiting": 2}


class _At:
    def __init__(self, row: dict[str, Any]) -> None:
        self.code, self.offset = row["code"], (row["partition"], row["offset"])


def _places(config: PipelineConfig) -> list[_At]:
    return [_At(row) for row in quarantine_of(config).read().iter_rows(named=True)]

"""Where a forked or adopted checkpoint begins, as far as no broker is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.spark_checkpoint import write_checkpoint, write_state

from penstock.checkpoint import SparkCheckpoint
from penstock.config import load
from penstock.errors import PenstockError, TerminalError
from penstock.kafka import LogBounds
from penstock.model import TopicPartition
from penstock.ops.checkpoint.adopt import AdoptPlan, OpenBatch, apply_adopt, plan_adopt
from penstock.ops.checkpoint.adopt import _last_batch as last_batch
from penstock.ops.checkpoint.fork import (
    ForkPlan,
    apply_fork,
    parse_offsets,
    put_in_place,
    refuse_occupied,
    refuse_outside,
    write_fresh,
)

FILE = """\
name: orders
source: {type: kafka, brokers: "localhost:1", topics: [orders], options: {socket.timeout.ms: "1500"}}
decode: {format: json, schema: "order_id BIGINT NOT NULL"}
quarantine: {table: lake/bad}
sinks: [{name: out, type: delta, path: lake/orders}]
checkpoint: checkpoints/orders
"""
FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
BOUNDS = {FIRST: LogBounds(5, 50), SECOND: LogBounds(0, 9)}
NO_CLUSTER: Any = None


@pytest.mark.parametrize(
    ("spec", "offsets"),
    [
        ("earliest", {FIRST: 5, SECOND: 0}),
        ("latest", {FIRST: 50, SECOND: 9}),
        ("orders:0=7, orders:1=8", {FIRST: 7, SECOND: 8}),
    ],
)
def test_offsets_are_read(spec: str, offsets: dict[TopicPartition, int]) -> None:
    assert parse_offsets(spec, BOUNDS, NO_CLUSTER) == offsets


@pytest.mark.parametrize(
    ("spec", "code", "told"),
    [
        ("orders:0=7", "OFFSETS_INCOMPLETE", "orders[1]"),
        ("orders:0=7,orders:1=8,orders:2=0", "OFFSETS_INCOMPLETE", "orders[2]"),
        ("orders:0=x,orders:1=8", "OFFSETS_UNREADABLE", "orders:0=x"),
        ("oldest", "OFFSETS_UNREADABLE", "oldest"),
        ("2026-01-31T08:00:00", "OFFSETS_UNREADABLE", "no zone"),
    ],
)
def test_offsets_that_cannot_be_meant_are_refused(spec: str, code: str, told: str) -> None:
    with pytest.raises(PenstockError) as raised:
        parse_offsets(spec, BOUNDS, NO_CLUSTER)
    assert (raised.value.code, told in str(raised.value)) == (code, True)


@pytest.mark.parametrize("offset", [4, 51])
def test_offsets_outside_the_log_are_refused_with_both_sides(offset: int) -> None:
    refuse_outside({FIRST: 5, SECOND: 9}, BOUNDS, "asked for")
    with pytest.raises(PenstockError) as raised:
        refuse_outside({FIRST: offset, SECOND: 9, TopicPartition("gone", 0): 1}, BOUNDS, "asked for")
    assert raised.value.context == {
        "gone[0]": "asked for 1, but the partition does not exist",
        "orders[0]": f"asked for {offset}, the log holds 5-50",
    }


def test_checkpoint_is_put_in_place_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "forks/new"
    target.mkdir(parents=True)

    def half(folder: str) -> None:
        SparkCheckpoint(folder).put_initial([{FIRST: 7}])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        put_in_place(str(target), half)
    assert [path.name for path in target.parent.iterdir()] == ["new"]
    refuse_occupied(str(target), "--to")
    put_in_place(
        str(target), lambda folder: write_fresh(SparkCheckpoint(folder), "query-9", [{FIRST: 7}], {"orders": "id"})
    )
    made = SparkCheckpoint(str(target))
    assert (made.query_id(), made.last_begun(), made.starts(0)) == ("query-9", None, {FIRST: 7})
    assert made.topic_ids() == {"orders": "id"}
    with pytest.raises(PenstockError) as raised:
        refuse_occupied(str(target), "--to")
    assert raised.value.code == "CHECKPOINT_OCCUPIED"


def write_job(root: Path, *lines: str, batches: int = 2) -> None:
    """The checkpoint of a job that somebody wrote by hand."""
    SparkCheckpoint(str(root)).put_initial([{FIRST: 0}])
    for batch in range(batches):
        SparkCheckpoint(str(root)).put_offsets(batch, {FIRST: batch})
        if lines:
            (root / f"offsets/{batch}").write_text("\n".join(["v1", "{}", *lines]))
        SparkCheckpoint(str(root)).put_commit(batch)
    SparkCheckpoint(str(root)).put_metadata("query-0")


def refused(tmp_path: Path, **more: Any) -> PenstockError:
    (tmp_path / "orders.yaml").write_text(FILE)
    with pytest.raises(PenstockError) as raised:
        plan_adopt(load(tmp_path / "orders.yaml"), str(tmp_path / "old"), **more)
    return raised.value


@pytest.mark.parametrize(
    ("lines", "code", "named"),
    [
        (['{"logOffset":3}'], "ADOPT_OTHER_SOURCE", "files"),
        (['{"sourceVersion":1,"reservoirId":"a","reservoirVersion":3,"index":-1}'], "ADOPT_OTHER_SOURCE", "Delta"),
        (["7"], "ADOPT_OTHER_SOURCE", "an unknown one"),
        (['{"orders":{"0":1}}', '{"clicks":{"0":1}}'], "ADOPT_SEVERAL_SOURCES", "Kafka, Kafka"),
        (['{"orders":{"0":1}}', "-"], "ADOPT_SEVERAL_SOURCES", "nothing yet"),
    ],
)
def test_job_of_other_sources_is_not_adopted(tmp_path: Path, lines: list[str], code: str, named: str) -> None:
    write_job(tmp_path / "old", *lines)
    error = refused(tmp_path)
    assert (error.code, named in error.context["its sources"]) == (code, True)


def test_job_with_an_open_batch_is_adopted_only_when_it_is_said_how(tmp_path: Path) -> None:
    write_job(tmp_path / "old")
    (tmp_path / "old/commits/1").unlink()
    error = refused(tmp_path)
    assert (error.code, error.context["last batch begun"]) == ("ADOPT_BATCH_OPEN", "1")
    assert error.hint is not None
    assert "--open-batch again" in error.hint
    # Nobody listens there: it came as far as the broker.
    assert refused(tmp_path, open_batch="again").code == "BROKER_UNREACHABLE"


@pytest.mark.parametrize(
    ("batches", "how", "last"), [(2, "again", 0), (2, "skip", 1), (1, "again", None), (1, "skip", 0)]
)
def test_open_batch_of_an_adopted_job_is_begun_again_or_skipped(
    tmp_path: Path, batches: int, how: OpenBatch, last: int | None
) -> None:
    write_job(tmp_path / "old")
    for batch in range(batches - 1, 2):
        (tmp_path / f"old/commits/{batch}").unlink()
        if batch >= batches:
            (tmp_path / f"old/offsets/{batch}").unlink()
    assert last_batch(SparkCheckpoint(str(tmp_path / "old")), how) == last


def test_job_with_state_is_not_adopted(tmp_path: Path) -> None:
    write_job(tmp_path / "old")
    (tmp_path / "old/state/0/0").mkdir(parents=True)
    (tmp_path / "old/state/0/0/1.delta").write_bytes(b"")
    assert refused(tmp_path).code == "ADOPT_HAS_STATE"


def test_folder_without_a_job_is_not_adopted(tmp_path: Path) -> None:
    assert refused(tmp_path).code == "ADOPT_NOTHING_THERE"


def test_pipeline_that_has_a_checkpoint_adopts_nothing(tmp_path: Path) -> None:
    write_job(tmp_path / "old")
    write_job(tmp_path / "checkpoints/orders")
    assert refused(tmp_path).code == "CHECKPOINT_OCCUPIED"


def test_job_that_goes_on_while_it_is_adopted_is_refused(tmp_path: Path) -> None:
    write_job(tmp_path / "old", batches=2)
    (tmp_path / "orders.yaml").write_text(FILE)
    config = load(tmp_path / "orders.yaml")
    plan = AdoptPlan(config, str(tmp_path / "old"), 1, "query-9", ({FIRST: 1},), ())
    write_job(tmp_path / "old", batches=3)
    with pytest.raises(TerminalError) as raised:
        apply_adopt(plan)
    assert raised.value.code == "ADOPT_OVERTAKEN"
    assert SparkCheckpoint(config.checkpoint).query_id() is None
    write_job(tmp_path / "old", batches=2)
    (tmp_path / "old/offsets/2").unlink()
    (tmp_path / "old/commits/2").unlink()
    apply_adopt(plan)
    assert SparkCheckpoint(config.checkpoint).starts(0) == {FIRST: 1}


def test_fork_of_a_batch_whose_state_is_removed_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    old, to = write_checkpoint(tmp_path / "old", [{0: 5}, {0: 9}]), tmp_path / "new"
    write_state(old, 2)
    plan = ForkPlan("orders", str(old), str(to), "query-9", "behind batch 1", ({FIRST: 9},), 1, {}, ())
    version = next(old.glob("state/0/0/2.*"))
    version.rename(tmp_path / version.name)
    with pytest.raises(TerminalError) as raised:
        apply_fork(plan)
    assert raised.value.code == "BATCH_STATE_GONE"
    assert "state/0/0" in raised.value.context["missing"]
    assert not to.exists()
    (tmp_path / version.name).rename(version)
    apply_fork(plan)
    assert SparkCheckpoint(str(to)).last_committed() == 1

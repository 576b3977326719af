"""`checkpoint repair` on a real checkpoint folder beside a real Delta table: copied first, put right, left alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.committing import commit
from tests.spark_checkpoint import QUERY, lose, put, write_checkpoint

from penstock.checkpoint import SparkCheckpoint, checkpoint_lock
from penstock.checkpoint.backup import backups_of, make_backup, save_aside
from penstock.checkpoint.findings import file_findings
from penstock.checkpoint.logs import TOPICS_NOTE
from penstock.config import PipelineConfig, load
from penstock.errors import MissingError
from penstock.model import BatchToken, OffsetRange
from penstock.ops.checkpoint.repair import apply_repair, plan_repair, verify_checkpoint
from penstock.ops.snapshot import Brokers, take_snapshot
from penstock.sinks.delta import DeltaSink

PIPELINE = """\
name: orders
source: {type: kafka, brokers: "127.0.0.1:1", topics: [orders]}
decode: {format: json, schema: "order_id BIGINT NOT NULL"}
sinks:
  - {name: out, type: delta, path: lake/orders}
checkpoint: cp
"""


def token(batch: int) -> BatchToken:
    return BatchToken("orders", QUERY, batch, (OffsetRange("orders", 0, batch * 5, batch * 5 + 5),))


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    """Three batches, all in the table."""
    (tmp_path / "orders.yaml").write_text(PIPELINE)
    write_checkpoint(tmp_path / "cp", [{0: 5}, {0: 10}, {0: 15}])
    sink = DeltaSink("orders", "out", str(tmp_path / "lake/orders"))
    sink.prepare(pa.schema([pa.field("order_id", pa.int64())]))
    for batch in range(3):
        commit(sink, token(batch), [])
    return load(tmp_path / "orders.yaml")


def root(config: PipelineConfig) -> Path:
    return Path(config.checkpoint)


def test_repair_rebuilds_the_tail_after_a_copy_that_is_named(config: PipelineConfig) -> None:
    lose(root(config), "offsets/2", "metadata")
    (root(config) / "commits/.9.tmp").write_text("x")
    done = apply_repair(plan_repair(take_snapshot(config, brokers=None)))
    assert done.backup is not None
    kept = Path(done.backup)
    assert kept.parent == Path(f"{config.checkpoint}-backups")
    assert not (kept / "offsets/2").exists()
    assert (kept / "commits/.9.tmp").exists()
    checkpoint = SparkCheckpoint(config.checkpoint)
    assert (checkpoint.query_id(), checkpoint.ends(1), checkpoint.ends(2)) == (QUERY, token(1).ends, token(2).ends)
    assert json.loads((root(config) / "offsets/2").read_text().splitlines()[1])["conf"], "settings of its neighbour"
    assert not (root(config) / ".penstock.restoring").exists()
    assert done.left == ()
    assert file_findings(checkpoint) == []
    assert plan_repair(take_snapshot(config, brokers=None)).changes == ()


def test_repair_of_an_open_batch_that_the_table_holds_with_other_offsets_takes_those_of_the_table(
    config: PipelineConfig,
) -> None:
    put(root(config) / "offsets/2", (root(config) / "offsets/2").read_text().replace('"0":15', '"0":17'))
    lose(root(config), "commits/2")
    checkpoint = SparkCheckpoint(config.checkpoint)
    checkpoint.note_sinks({"out": "lake/orders"})
    noted = checkpoint.sinks_noted()
    plan = plan_repair(take_snapshot(config, brokers=None))
    assert [one.code for one in plan.findings if one.blocks] == ["SINK_TOKEN_MISMATCH"]
    assert apply_repair(plan).left == ()
    assert (checkpoint.ends(2), checkpoint.last_committed()) == (token(2).ends, 1)
    assert checkpoint.sinks_noted() == noted


def test_repair_planned_only_changes_nothing(config: PipelineConfig) -> None:
    put(root(config) / "commits/2", "")
    before = sorted(root(config).rglob("*"))
    plan = plan_repair(take_snapshot(config, brokers=None))
    assert [(one.act, one.name) for one in plan.changes] == [("remove", "commits/2")]
    assert sorted(root(config).rglob("*")) == before
    assert not Path(f"{config.checkpoint}-backups").exists()


def test_repair_under_a_live_run_is_refused(config: PipelineConfig) -> None:
    put(root(config) / "commits/2", "")
    plan = plan_repair(take_snapshot(config, brokers=None))
    with checkpoint_lock(config.checkpoint), pytest.raises(MissingError) as raised:
        apply_repair(plan)
    assert raised.value.code == "CHECKPOINT_IN_USE"
    assert (root(config) / "commits/2").exists()


def test_repair_of_a_checkpoint_that_moved_since_is_refused(config: PipelineConfig) -> None:
    put(root(config) / "commits/2", "")
    plan = plan_repair(take_snapshot(config, brokers=None))
    lose(root(config), "offsets/2")
    with pytest.raises(MissingError) as raised:
        apply_repair(plan)
    assert raised.value.code == "CHECKPOINT_MOVED"
    assert not Path(f"{config.checkpoint}-backups").exists()


def test_repair_broken_off_is_begun_again(config: PipelineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    lose(root(config), "offsets/2", "offsets/1")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(SparkCheckpoint, "remove", killed)
        apply_repair(plan_repair(take_snapshot(config, brokers=None)))
    found = file_findings(SparkCheckpoint(config.checkpoint))
    assert [one.code for one in found if one.blocks] == ["RESTORE_UNFINISHED"]
    assert "penstock checkpoint repair FILE" in found[0].way_out
    assert apply_repair(plan_repair(take_snapshot(config, brokers=None))).left == ()
    assert file_findings(SparkCheckpoint(config.checkpoint)) == []


def test_look_at_a_table_of_another_checkpoint_tells_the_ways_out(config: PipelineConfig) -> None:
    fresh = config.model_copy(update={"checkpoint": f"{config.checkpoint}-fresh"})
    (one,) = take_snapshot(fresh, brokers=None).foreign
    assert (one.code, one.blocks) == ("SINK_HOLDS_OTHER_RUN", True)
    assert "penstock run FILE --resume-from-table" in one.way_out


def test_look_at_a_table_under_a_former_name_tells_the_way_out(config: PipelineConfig) -> None:
    renamed = config.model_copy(update={"sinks": (config.sinks[0].model_copy(update={"name": "orders"}),)})
    assert [one.code for one in plan_repair(take_snapshot(renamed, brokers=None)).findings] == []
    lose(root(config), "commits/2")
    (one,) = plan_repair(take_snapshot(renamed, brokers=None)).findings
    assert (one.code, one.blocks) == ("SINK_RENAMED", True)
    assert one.way_out.startswith("put the name out back, and let a run finish the open batch: penstock run FILE")
    fresh = renamed.model_copy(update={"checkpoint": f"{config.checkpoint}-fresh"})
    assert [one.code for one in take_snapshot(fresh, brokers=None).foreign] == ["SINK_RENAMED"]


def test_repair_of_what_no_sink_proves_leaves_it(config: PipelineConfig, tmp_path: Path) -> None:
    (tmp_path / "lake").rename(tmp_path / "elsewhere")
    lose(root(config), "offsets/1")
    plan = plan_repair(take_snapshot(config, brokers=None))
    assert (plan.changes, [one.code for one in plan.refused]) == ((), ["CHECKPOINT_GAP"])
    assert plan.as_json()["refused"] == [{"code": "CHECKPOINT_GAP", "why": "no sink has the end of batch 1"}]


def test_verify_names_a_restore_only_where_there_is_a_backup(config: PipelineConfig) -> None:
    place = backups_of(config.checkpoint)
    (root(config) / TOPICS_NOTE).write_text("not a note")

    def ways() -> str:
        seen = replace(take_snapshot(config, brokers=None), brokers=Brokers({}))
        return "\n".join(one.way_out for one in verify_checkpoint(seen).findings)

    save_aside(SparkCheckpoint(config.checkpoint), place, "orders")
    assert "checkpoint restore" not in ways()
    make_backup(SparkCheckpoint(config.checkpoint), place, "orders")
    assert "checkpoint restore" in ways()

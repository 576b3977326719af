"""A restore with real Delta tables that hold the tokens, and no Spark: what is written, and when it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.committing import commit

from penstock.assembly.build import build
from penstock.checkpoint import SparkCheckpoint, checkpoint_lock
from penstock.checkpoint.backup import Backup, list_backups
from penstock.checkpoint.findings import file_findings
from penstock.checkpoint.logs import RESTORING
from penstock.config import PipelineConfig, load
from penstock.errors import PenstockError, TerminalError, TransientError
from penstock.model import BatchToken, OffsetRange, TopicPartition
from penstock.ops.checkpoint import restore as checkpoint_restore
from penstock.ops.checkpoint.backup import apply_backup, backups_there, plan_backup
from penstock.ops.checkpoint.restore import RestorePlan, apply_restore, plan_restore

FILE = """\
name: orders
source: {type: kafka, brokers: "localhost:9092", topics: [orders]}
decode: {format: json, schema: "order_id BIGINT NOT NULL"}
quarantine: {table: lake/bad}
sinks: [{name: out, type: delta, path: lake/orders}, {name: more, type: delta, path: lake/more}]
checkpoint: checkpoints/orders
"""
PLACE = TopicPartition("orders", 0)


def end(batch: int) -> int:
    return 10 * (batch + 1)


def batch_token(batch: int) -> BatchToken:
    return BatchToken("orders", "query-1", batch, (OffsetRange("orders", 0, end(batch - 1), end(batch)),))


class Situation:
    """A pipeline whose batches are run by hand: the checkpoint is written, then each sink is given its token."""

    def __init__(self, folder: Path) -> None:
        (folder / "orders.yaml").write_text(FILE)
        self.config: PipelineConfig = load(folder / "orders.yaml")
        self.root = Path(self.config.checkpoint)
        self.checkpoint = SparkCheckpoint(self.config.checkpoint)
        SparkCheckpoint(str(self.root)).put_initial([{PLACE: 0}])
        SparkCheckpoint(str(self.root)).put_metadata("query-1")
        self.pipeline = build(self.config)
        for sink, flow in zip(self.pipeline.sinks, [self.pipeline.flows[0]] * 2, strict=True):
            assert flow.schema is not None
            sink.prepare(flow.schema)

    def run(self, batch: int, sinks: int = 2, *, committed: bool = True) -> None:
        SparkCheckpoint(str(self.root)).put_offsets(batch, {PLACE: end(batch)})
        for sink in self.pipeline.sinks[:sinks]:
            commit(sink, batch_token(batch), [])
        if committed:
            SparkCheckpoint(str(self.root)).put_commit(batch)

    def back_up(self) -> Backup:
        return apply_backup(plan_backup(self.config))

    def restore(self, backup: Backup | None = None) -> RestorePlan:
        return apply_restore(plan_restore(self.config, backup.path if backup is not None else None))

    def logs(self) -> dict[str, list[int]]:
        return {log: sorted(int(p.name) for p in (self.root / log).iterdir()) for log in ("offsets", "commits")}


@pytest.fixture
def situation(tmp_path: Path) -> Situation:
    made = Situation(tmp_path)
    for batch in range(3):
        made.run(batch)
    return made


def test_restore_of_the_same_batch_puts_back_what_was_lost(situation: Situation) -> None:
    backup = situation.back_up()
    (situation.root / "offsets/2").write_bytes(b"")
    (situation.root / "metadata").unlink()
    done = situation.restore()
    assert (done.backup.path, done.reconciled.forward) == (backup.path, None)
    assert situation.checkpoint.ends(2) == {PLACE: end(2)}
    assert situation.checkpoint.query_id() == "query-1"
    assert file_findings(situation.checkpoint) == []
    assert done.saved is not None
    assert Path(done.saved, "offsets/2").read_bytes() == b""
    assert not Path(done.saved, "metadata").exists()


def test_restore_with_sinks_ahead_goes_forward_to_their_batch(situation: Situation) -> None:
    situation.back_up()
    for batch in range(3, 8):
        situation.run(batch)
    situation.restore()
    assert situation.logs() == {"offsets": [6, 7], "commits": [6, 7]}
    assert situation.checkpoint.ends(6) == {PLACE: end(6)}
    assert situation.checkpoint.ends(7) == {PLACE: end(7)}
    assert file_findings(situation.checkpoint) == []


def test_restore_with_sinks_one_ahead_keeps_the_log_before(situation: Situation) -> None:
    situation.back_up()
    situation.run(3)
    situation.restore()
    assert situation.logs() == {"offsets": [0, 1, 2, 3], "commits": [0, 1, 2, 3]}


def test_restore_that_goes_forward_keeps_the_topics_of_the_later_batch(situation: Situation) -> None:
    situation.checkpoint.note_topic_ids({"orders": "old"})
    backup = situation.back_up()
    situation.run(3)
    situation.checkpoint.note_topic_ids({"orders": "new"})
    situation.restore(backup)
    assert situation.checkpoint.topic_ids() == {"orders": "new"}


def test_restore_with_one_sink_behind_leaves_the_batch_open(situation: Situation) -> None:
    situation.back_up()
    for batch in range(3, 7):
        situation.run(batch)
    situation.run(7, sinks=1, committed=False)
    done = situation.restore()
    assert not done.reconciled.done
    assert situation.logs() == {"offsets": [6, 7], "commits": [6]}
    assert situation.checkpoint.starts(7) == {PLACE: end(6)}


def test_restore_after_which_sinks_were_cut_off_is_refused_and_changes_nothing(situation: Situation) -> None:
    old = situation.back_up()
    for batch in range(3, 6):
        situation.run(batch)
    commit(situation.pipeline.sinks[0], batch_token(6), [])
    commit(situation.pipeline.sinks[0], batch_token(7), [])
    before = situation.logs()
    with pytest.raises(TerminalError) as raised:
        situation.restore(old)
    assert raised.value.code == "SINKS_APART"
    assert situation.logs() == before
    assert len(backups_there(situation.config)) == 1


def test_restore_of_a_damaged_backup_is_refused_and_changes_nothing(situation: Situation) -> None:
    backup = situation.back_up()
    Path(backup.path, "offsets/2").write_bytes(b"v1\n{}\n{}")
    (situation.root / "metadata").unlink()
    with pytest.raises(TerminalError) as raised:
        situation.restore()
    assert raised.value.code == "BACKUP_DAMAGED"
    assert not (situation.root / RESTORING).exists()
    assert situation.logs()["offsets"] == [0, 1, 2]


def test_restore_under_a_live_run_is_refused_and_planning_is_not(situation: Situation) -> None:
    situation.back_up()
    with checkpoint_lock(str(situation.root)):
        plan = plan_restore(situation.config)
        with pytest.raises(PenstockError) as raised:
            apply_restore(plan)
    assert raised.value.code == "CHECKPOINT_IN_USE"
    assert len(backups_there(situation.config)) == 1


@pytest.mark.parametrize(
    ("step", "time"), [("remove", 2), ("copy_files", 2), ("put_offsets", 1), ("put", 4), ("put_commit", 2)]
)
def test_restore_killed_in_the_middle_is_refused_by_a_run_and_can_be_run_again(
    situation: Situation, step: str, time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    situation.back_up()
    for batch in range(3, 6):
        situation.run(batch)
    owner: object = checkpoint_restore if step == "copy_files" else SparkCheckpoint
    whole, calls = getattr(owner, step), []

    def killed(*parts: object, **more: object) -> None:
        calls.append(parts)
        if len(calls) == time:
            raise KeyboardInterrupt
        whole(*parts, **more)

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, killed)
        with pytest.raises(KeyboardInterrupt):
            situation.restore()
    assert next((f.code, f.blocks) for f in file_findings(situation.checkpoint)) == ("RESTORE_UNFINISHED", True)
    done = situation.restore()
    assert situation.logs() == {"offsets": [4, 5], "commits": [4, 5]}
    assert file_findings(situation.checkpoint) == []
    asides = [one for one in list_backups(f"{situation.root}-backups") if one.kind == "before restore"]
    assert [one.path for one in asides] == [done.saved]
    assert Path(asides[0].path, "commits/5").exists()


def test_restore_can_be_taken_back_from_what_it_saved(situation: Situation) -> None:
    situation.back_up()
    for batch in range(3, 6):
        situation.run(batch)
    SparkCheckpoint(str(situation.root)).put_offsets(6, {PLACE: 999})
    saved = situation.restore().saved
    assert saved is not None
    assert situation.logs()["offsets"] == [4, 5]
    apply_restore(plan_restore(situation.config, saved.rsplit("/", 1)[-1]))
    assert situation.logs() == {"offsets": [0, 1, 2, 3, 4, 5], "commits": [0, 1, 2, 3, 4, 5]}


def test_restore_by_default_takes_the_newest_backup_and_not_what_was_put_aside(situation: Situation) -> None:
    situation.back_up()
    situation.run(3)
    newest = situation.back_up()
    situation.restore()
    assert situation.restore().backup.path == newest.path


def test_restore_without_a_backup_says_where_it_looked(situation: Situation) -> None:
    with pytest.raises(PenstockError) as raised:
        plan_restore(situation.config)
    assert raised.value.code == "BACKUP_MISSING"
    assert raised.value.context["looked in"].endswith("checkpoints/orders-backups")


def test_restore_of_another_pipelines_backup_is_refused(situation: Situation, tmp_path: Path) -> None:
    backup = situation.back_up()
    (tmp_path / "other.yaml").write_text(FILE.replace("name: orders\n", "name: other\n", 1))
    with pytest.raises(TerminalError) as raised:
        plan_restore(load(tmp_path / "other.yaml"), backup.path)
    assert raised.value.code == "BACKUP_UNUSABLE"


def test_restore_of_state_takes_the_open_batch_as_it_was_written(situation: Situation) -> None:
    store = situation.root / "state/0/0"
    store.mkdir(parents=True)
    for version in range(1, 4):
        (store / f"{version}.changelog").write_bytes(b"changes")
    situation.back_up()
    situation.run(3)
    head = '{"batchWatermarkMs":77,"batchTimestampMs":5,"conf":{}}'
    (situation.root / "offsets/3").write_text(f'v1\n{head}\n{{"orders":{{"0":{end(3)}}}}}')
    (store / "3.changelog").unlink()
    situation.restore()
    assert situation.logs() == {"offsets": [0, 1, 2, 3], "commits": [0, 1, 2]}
    assert situation.checkpoint.watermark(3) == 77
    assert (store / "3.changelog").exists()
    assert situation.checkpoint.again() == []


def test_restore_of_state_notes_every_batch_to_run_again(situation: Situation) -> None:
    (situation.root / "state/0/0").mkdir(parents=True)
    for version in range(1, 4):
        (situation.root / f"state/0/0/{version}.changelog").write_bytes(b"changes")
    backup = situation.back_up()
    for batch in range(3, 6):
        situation.run(batch)
    done = situation.restore()
    assert situation.logs() == {"offsets": [0, 1, 2, 3], "commits": [0, 1, 2]}
    assert situation.checkpoint.again() == [batch_token(3), batch_token(4), batch_token(5)]
    assert situation.restore(backup).reconciled == done.reconciled
    (situation.root / ".penstock.again").unlink()
    with pytest.raises(TerminalError) as raised:
        situation.restore(backup)
    assert (raised.value.code, "batch 4" in raised.value.summary) == ("RESTORE_STATE_BEHIND", True)


def test_restore_of_a_backup_that_changes_meanwhile_is_to_be_tried_again(situation: Situation) -> None:
    backup = situation.back_up()
    plan = plan_restore(situation.config)
    file = Path(backup.path, "offsets/2")
    before = file.read_bytes()
    file.write_bytes(before + b" ")
    with pytest.raises(TransientError) as raised:
        apply_restore(plan)
    assert raised.value.code == "BACKUP_CHANGED"
    assert "offsets/2" in raised.value.summary
    assert not (situation.root / "metadata").exists(), "no run takes half a checkpoint for a whole one"
    file.write_bytes(before)
    apply_restore(plan)
    assert situation.checkpoint.query_id() == "query-1"

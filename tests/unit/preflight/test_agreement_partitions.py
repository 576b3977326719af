"""Partitions that a batch left out, batches that a restore left to run again, tables that were put back."""

from __future__ import annotations

from pathlib import Path

from tests.agreements import sink_findings
from tests.committing import position_at
from tests.spark_checkpoint import QUERY, write_checkpoint, write_state

from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.logs import read_files
from penstock.checkpoint.state_stores import read_state
from penstock.kafka import LogBounds
from penstock.model import BatchToken, Guarantee, OffsetRange, TopicPartition
from penstock.ops.checkpoint.repair_rules import Change, RepairRules
from penstock.preflight.loss import partition_findings
from penstock.preflight.standings import Standing

LOGS = {TopicPartition("orders", p): LogBounds(0, 20) for p in (0, 1)}


def token(batch: int, start: int, end: int, partitions: tuple[int, ...] = (0,)) -> BatchToken:
    return BatchToken("orders", QUERY, batch, tuple(OffsetRange("orders", p, start, end) for p in partitions))


def at(held: BatchToken | None) -> Standing:
    return Standing("out", Guarantee.EXACTLY_ONCE, position_at(held))


def codes(root: Path, held: BatchToken, logs: dict[TopicPartition, LogBounds] = LOGS) -> list[str]:
    return [one.code for one in partition_findings(str(root), read_files(str(root)), [at(held)], logs)]


def repaired(root: Path, held: BatchToken) -> list[str]:
    steps = RepairRules(read_files(str(root)), read_state(str(root)), [at(held)]).steps()
    return [f"{one.act} {one.name}" if isinstance(one, Change) else f"refused {one.code}" for one in steps]


def test_partition_left_out_of_an_open_batch_blocks_and_the_batch_is_forgotten(tmp_path: Path) -> None:
    root = write_checkpoint(tmp_path / "cp", [{0: 5, 1: 5}, {0: 10, 1: 10}, {0: 15}], committed=1)
    before = token(1, 5, 10, (0, 1))
    assert codes(root, before) == ["PARTITION_LEFT_OUT"]
    assert repaired(root, before) == ["remove offsets/2"]
    # Gone for good: what the run then does is for `on_data_loss` to say.
    assert codes(root, before, {TopicPartition("orders", 0): LogBounds(0, 20)}) == []


def test_partition_left_out_of_an_open_batch_that_a_sink_has_is_not_forgotten(tmp_path: Path) -> None:
    root = write_checkpoint(tmp_path / "cp", [{0: 5, 1: 5}, {0: 10, 1: 10}, {0: 15}], committed=1)
    assert codes(root, token(2, 10, 15)) == []
    assert repaired(root, token(2, 10, 15)) == []


def test_partition_left_out_before_and_read_again_blocks_with_the_offsets_to_go_on_from(tmp_path: Path) -> None:
    root = write_checkpoint(tmp_path / "cp", [{0: 5, 1: 5}, {0: 10}, {0: 15}])
    (found,) = partition_findings(str(root), read_files(str(root)), [], LOGS)
    assert (found.code, found.blocks) == ("PARTITION_BACK", True)
    assert "penstock checkpoint fork FILE --to PATH --offsets orders:0=15,orders:1=5" in found.way_out
    assert partition_findings(str(root), read_files(str(root)), [], LOGS, frozenset({"orders"})) == []


def test_partition_that_is_new_is_nothing(tmp_path: Path) -> None:
    root = write_checkpoint(tmp_path / "cp", [{0: 5}, {0: 10}])
    assert codes(root, token(1, 5, 10)) == []


def test_sink_ahead_by_batches_that_are_to_be_run_again_agrees(tmp_path: Path) -> None:
    root = write_checkpoint(tmp_path / "cp", [{0: 5}, {0: 10}], committed=0)
    write_state(root, 1)
    checkpoint = SparkCheckpoint(str(root))
    checkpoint.note_again([token(1, 5, 10), token(2, 10, 15)])
    assert sink_findings(checkpoint, [at(token(2, 10, 15))]) == []
    assert repaired(root, token(2, 10, 15)) == []
    assert [one.code for one in sink_findings(checkpoint, [at(token(2, 10, 14))])] == ["SINK_TOKEN_MISMATCH"]
    assert [one.code for one in sink_findings(checkpoint, [at(token(3, 15, 20))])] == ["CHECKPOINT_WENT_BACK"]

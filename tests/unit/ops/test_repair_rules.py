"""Which damages may be put right, and which must not: files as Spark writes them, tokens as sinks hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.committing import position_at
from tests.spark_checkpoint import QUERY, lose, put, write_checkpoint, write_state

from penstock.checkpoint.logs import read_files
from penstock.checkpoint.state_stores import read_state
from penstock.model import BatchToken, Guarantee, OffsetRange, TopicPartition
from penstock.ops.checkpoint.repair_rules import Change, NotRepaired, RepairRules
from penstock.preflight.standings import Standing

ENDS = [{0: 5, 1: 5}, {0: 10, 1: 10}, {0: 15, 1: 15}]


def token(batch: int, query: str = QUERY, step: int = 5) -> BatchToken:
    start, end = batch * 5, batch * 5 + step
    return BatchToken("orders", query, batch, tuple(OffsetRange("orders", p, start, end) for p in (0, 1)))


def at(batch: int | None, name: str = "out", **more: Any) -> Standing:
    held = more.pop("token", None) or (token(batch) if batch is not None else None)
    begun = position_at(more.pop("begun", None))
    return Standing(name, Guarantee.EXACTLY_ONCE, position_at(held), more.pop("torn", None), begun=begun, **more)


def told(root: Path, *standings: Standing) -> list[str]:
    steps = RepairRules(read_files(str(root)), read_state(str(root)), standings).steps()
    return [f"{one.act} {one.name}" if isinstance(one, Change) else f"refused {one.code}" for one in steps]


def why(root: Path, *standings: Standing) -> str:
    steps = RepairRules(read_files(str(root)), read_state(str(root)), standings).steps()
    (refused,) = [one for one in steps if isinstance(one, NotRepaired)]
    return refused.why


def ends(batch: int) -> dict[TopicPartition, int]:
    return {TopicPartition("orders", p): (batch + 1) * 5 for p in (0, 1)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "cp", ENDS)


def half_written(root: Path) -> Path:
    """Killed while the offsets of batch 2 were written."""
    put(root / "offsets/2", "")
    lose(root, "commits/2")
    return root


def test_repair_whole_checkpoint_changes_nothing(root: Path) -> None:
    assert told(root, at(2)) == []


def test_repair_half_written_offsets_of_no_sink_are_removed(root: Path) -> None:
    assert told(half_written(root), at(1)) == ["remove offsets/2"]
    assert told(root, at(1), at(None, "quarantine", sparse=True)) == ["remove offsets/2"]
    assert told(root, at(None, "log")) == ["remove offsets/2"]


def test_repair_half_written_offsets_that_a_sink_has_are_written_from_its_token(root: Path) -> None:
    half_written(root)
    (change,) = RepairRules(read_files(str(root)), read_state(str(root)), [at(2), at(1, "other")]).steps()
    assert isinstance(change, Change)
    assert (change.act, change.name, change.ends, change.like) == ("write offsets", "offsets/2", ends(2), 1)


@pytest.mark.parametrize(
    "holder",
    [at(2, "quarantine", sparse=True), at(1, torn="0: batch 2, 1: batch 1", begun=token(2))],
    ids=["quarantine", "torn"],
)
def test_repair_batch_that_only_a_part_of_a_sink_has_is_kept(root: Path, holder: Standing) -> None:
    assert told(half_written(root), at(1, "first"), holder) == ["write offsets offsets/2"]


def test_repair_half_written_offsets_with_a_sink_away_are_left(root: Path) -> None:
    away = Standing("pg", Guarantee.EXACTLY_ONCE, error="no answer")
    assert told(half_written(root), at(1), away) == ["refused CHECKPOINT_FILE_BROKEN"]
    assert "sink pg cannot be read" in why(root, at(1), away)


def test_repair_half_written_first_batch_is_removed(tmp_path: Path) -> None:
    root = write_checkpoint(tmp_path / "cp", ENDS[:1], committed=-1)
    put(root / "offsets/0", "v1\n{")
    assert told(root, at(None)) == ["remove offsets/0"]
    assert told(root, at(0)) == ["write offsets offsets/0"]


def test_repair_broken_commit_is_removed(root: Path) -> None:
    put(root / "commits/2", "")
    assert told(root, at(2)) == ["remove commits/2"]
    put(root / "commits/1", 'v1\n{"next')
    assert told(root, at(2)) == ["remove commits/2", "remove commits/1"]


def test_repair_offsets_before_the_newest_are_written_from_the_token(root: Path) -> None:
    lose(root, "offsets/1")
    (change,) = RepairRules(read_files(str(root)), read_state(str(root)), [at(2)]).steps()
    assert isinstance(change, Change)
    assert (change.name, change.ends) == ("offsets/1", ends(1))
    lose(root, "commits/2")
    assert told(root, at(1)) == ["write offsets offsets/1"]


def test_repair_gap_that_no_sink_knows_is_left(root: Path) -> None:
    lose(root, "offsets/1")
    assert told(root, at(None)) == ["refused CHECKPOINT_GAP"]
    assert why(root, at(None)) == "no sink has the end of batch 1"


def test_repair_commit_ahead_of_offsets_is_rebuilt(root: Path) -> None:
    lose(root, "offsets/2")
    assert told(root, at(2)) == ["write offsets offsets/2"]
    lose(root, "offsets/1")
    assert told(root, at(2)) == ["write offsets offsets/1", "write offsets offsets/2"]
    lose(root, "offsets/0")
    assert told(root, at(2)) == ["write offsets offsets/1", "write offsets offsets/2"]
    assert told(root, at(1)) == ["refused CHECKPOINT_GAP"]
    assert "batch 2 is committed, and no sink has" in why(root, at(1))


def test_repair_checkpoint_that_went_back_is_brought_to_the_sinks(root: Path) -> None:
    assert told(root, at(5), at(4, "other")) == [
        "write offsets offsets/4",
        "write offsets offsets/5",
        "write commit commits/4",
    ]
    assert told(root, at(3)) == ["write offsets offsets/3"]
    assert told(root, at(5), at(3, "other")) == ["refused CHECKPOINT_WENT_BACK"]


def test_repair_tokens_that_contradict_prove_nothing(root: Path) -> None:
    lose(root, "offsets/2")
    other = at(2, "other", token=token(2, step=4))
    assert told(root, at(2), other) == ["refused CHECKPOINT_GAP"]
    put(root / "offsets/1", (root / "offsets/1").read_text().replace('"0":10', '"0":9'))
    assert "does not start where" in why(root, at(2))


def test_repair_metadata_comes_from_the_tokens(root: Path) -> None:
    lose(root, "metadata")
    (change,) = RepairRules(read_files(str(root)), read_state(str(root)), [at(2), at(2, "other")]).steps()
    assert isinstance(change, Change)
    assert (change.act, change.query_id) == ("write metadata", QUERY)
    put(root / "metadata", "{")
    assert told(root, at(2)) == ["write metadata metadata"]


def test_repair_metadata_that_the_tokens_do_not_prove_is_left(root: Path) -> None:
    lose(root, "metadata")
    several = at(2, "other", token=token(2, "another"))
    assert told(root, at(2), several) == ["refused CHECKPOINT_METADATA_LOST"]
    assert told(root, at(2, token=token(2, step=4))) == ["refused CHECKPOINT_METADATA_LOST"]
    assert told(root, Standing("pg", Guarantee.EXACTLY_ONCE, error="away")) == ["refused CHECKPOINT_METADATA_LOST"]


def test_repair_metadata_of_no_sink_is_a_new_id_unless_a_batch_is_open(root: Path) -> None:
    lose(root, "metadata")
    assert told(root, at(None)) == ["write metadata metadata"]
    lose(root, "commits/2")
    assert told(root, at(None)) == ["refused CHECKPOINT_METADATA_LOST"]


def test_repair_metadata_and_tail_lost_together(root: Path) -> None:
    lose(root, "metadata", "offsets/2")
    assert told(root, at(2)) == ["write offsets offsets/2", "write metadata metadata"]
    lose(root, "offsets/1")
    assert told(root, at(2)) == ["refused CHECKPOINT_GAP", "refused CHECKPOINT_METADATA_LOST"]


def test_repair_strays_and_checksums(root: Path) -> None:
    (root / "offsets/.3.0.tmp").write_text("")
    (root / "offsets/.2.crc").write_bytes(b"crc\0\0\0\2\0nonenone")
    (root / "offsets/.1.crc").write_bytes(b"")
    (root / ".metadata.crc").write_bytes(b"crc\0\0\0\2\0none")
    assert told(root, at(2)) == [
        "remove offsets/.3.0.tmp",
        "remove checksum metadata",
        "remove checksum offsets/1",
        "remove checksum offsets/2",
    ]
    assert told(root, at(None)).count("refused CHECKPOINT_CHECKSUM_WRONG") == 2


def test_repair_changed_offsets_that_the_sinks_do_not_bear_out_are_left(root: Path) -> None:
    file = root / "offsets/2"
    file.write_text(file.read_text().replace('"0":15', '"0":14'))
    assert told(root, at(2)) == ["refused SINK_TOKEN_MISMATCH", "refused CHECKPOINT_CHECKSUM_WRONG"]


def test_repair_open_batch_that_the_sinks_hold_with_other_offsets_takes_those_of_the_sinks(root: Path) -> None:
    lose(root, "commits/2")
    held = token(2, step=7)
    steps = RepairRules(read_files(str(root)), read_state(str(root)), [at(2, token=held), at(1, "other")]).steps()
    assert [(one.act, one.name, one.ends) for one in steps if isinstance(one, Change)] == [
        ("write offsets", "offsets/2", held.ends)
    ]
    assert told(root, at(2, token=held), at(2, "other")) == ["refused SINK_TOKEN_MISMATCH"]
    write_state(root, 2)
    assert told(root, at(2, token=held)) == ["refused SINK_TOKEN_MISMATCH"]


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_repair_committed_batch_that_a_sink_holds_with_other_offsets_is_left(root: Path, batch: int) -> None:
    assert told(root, at(batch, token=token(batch, step=7)))[0] == "refused SINK_TOKEN_MISMATCH"


def test_repair_with_state_only_what_needs_no_rebuilding(root: Path) -> None:
    write_state(root, 3)
    put(root / "commits/2", "")
    assert told(root, at(2)) == ["remove commits/2"]
    lose(root, "state/0/0/2.changelog")
    assert told(root, at(2)) == ["refused CHECKPOINT_FILE_BROKEN"]


def test_repair_with_state_half_written_offsets(root: Path) -> None:
    write_state(root, 2)
    assert told(half_written(root), at(1)) == ["remove offsets/2"]
    assert told(root, at(2)) == ["refused CHECKPOINT_FILE_BROKEN"]
    # Batch 2 has written its state: another batch 2 would not replace a snapshot of that.
    write_state(root, 3)
    assert told(root, at(1)) == ["refused CHECKPOINT_FILE_BROKEN"]


def test_repair_with_state_gap_is_left(root: Path) -> None:
    write_state(root, 3)
    lose(root, "offsets/2")
    assert told(root, at(2)) == ["refused CHECKPOINT_GAP"]


def test_repair_after_an_unfinished_restore_is_refused_after_its_own_goes_on(root: Path) -> None:
    note = root / ".penstock.restoring"
    note.write_text("restore of b")
    assert told(root, at(2)) == ["refused RESTORE_UNFINISHED"]
    note.write_text("repair at 2026-01-01")
    lose(root, "offsets/2")
    assert told(root, at(2)) == ["write offsets offsets/2", "remove .penstock.restoring"]

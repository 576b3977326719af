"""What the files of a checkpoint alone show, damage by damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import fsspec
import pytest
from tests.spark_checkpoint import lose, put, write_checkpoint, write_state

from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.findings import Finding, file_findings

ENDS = [{0: 5, 1: 5}, {0: 10, 1: 10}, {0: 15, 1: 15}]


def found(root: Path, *, live: bool = False) -> list[Finding]:
    return file_findings(SparkCheckpoint(str(root)), live=live)


def codes(root: Path) -> list[tuple[str, bool]]:
    return [(one.code, one.blocks) for one in found(root)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "cp", ENDS)


def test_findings_whole_checkpoint_has_none(root: Path) -> None:
    assert found(root) == []
    write_state(root, 3)
    assert found(root) == []


def test_findings_no_checkpoint_has_none(tmp_path: Path) -> None:
    assert found(tmp_path / "none") == []


def test_findings_open_batch_is_none(tmp_path: Path) -> None:
    assert found(write_checkpoint(tmp_path / "cp", ENDS, committed=1)) == []
    assert found(write_checkpoint(tmp_path / "first", ENDS[:1], committed=-1)) == []


def test_findings_log_that_spark_purged_begins_later_and_is_whole(root: Path) -> None:
    lose(root, "offsets/0", "commits/0")
    assert found(root) == []


@pytest.mark.parametrize(
    "body",
    ["", "v1", "v1\n{}", 'v1\n{"batchWatermarkMs":0}\n{"orders":{"0":1', "{}\n{}\n{}", "v9\n{}\n{}", b"\xff\xfe"],
)
def test_findings_newest_offsets_half_written_block(root: Path, body: str | bytes) -> None:
    put(root / "offsets/2", body)
    lose(root, "commits/2")
    (one,) = found(root)
    assert (one.code, one.blocks) == ("CHECKPOINT_FILE_BROKEN", True)
    assert one.summary.endswith("offsets/2 cannot be used")


def test_findings_offsets_cut_at_the_end_of_a_line_lack_a_source(root: Path) -> None:
    for batch in range(3):
        file = root / f"offsets/{batch}"
        put(file, file.read_text() + ('\n{"payments":{"0":1}}' if batch < 2 else ""))
    assert [(one.code, one.context["found"]) for one in found(root)] == [
        ("CHECKPOINT_FILE_BROKEN", "offsets of 1 sources, and others have 2")
    ]


@pytest.mark.parametrize(("name", "blocks"), [("commits/2", True), ("commits/1", False), ("offsets/0", False)])
def test_findings_empty_file_blocks_where_spark_reads_it(root: Path, name: str, blocks: bool) -> None:
    put(root / name, "")
    assert codes(root) == [("CHECKPOINT_FILE_BROKEN", blocks)]


def test_findings_lost_and_broken_metadata(root: Path) -> None:
    put(root / "metadata", "")
    assert codes(root) == [("CHECKPOINT_FILE_BROKEN", True)]
    lose(root, "metadata")
    assert codes(root) == [("CHECKPOINT_METADATA_LOST", True)]


def test_findings_offsets_before_the_newest_gone_block(root: Path) -> None:
    lose(root, "offsets/1")
    (one,) = found(root)
    assert (one.code, one.blocks, one.context["missing"]) == ("CHECKPOINT_GAP", True, "offsets/1")


def test_findings_commit_ahead_of_its_offsets_blocks(root: Path) -> None:
    lose(root, "offsets/2")
    (one,) = found(root)
    assert (one.code, one.blocks) == ("CHECKPOINT_GAP", True)
    assert "batch 2 is committed, and its offsets are gone" in one.summary


def test_findings_holes_in_the_history_do_not_block(tmp_path: Path) -> None:
    root = write_checkpoint(tmp_path / "cp", [{0: n} for n in range(6)])
    lose(root, "offsets/2", "commits/3")
    (one,) = found(root)
    assert (one.code, one.blocks, one.context["missing"]) == ("CHECKPOINT_GAP", False, "offsets/2, commits/3")


def test_findings_beginning_of_an_open_first_batch_gone_blocks(tmp_path: Path) -> None:
    root = write_checkpoint(tmp_path / "cp", ENDS[:1], committed=-1)
    lose(root, "sources/0/0")
    assert codes(root) == [("CHECKPOINT_GAP", True)]


def test_findings_source_file_gone_later_is_nothing(root: Path) -> None:
    lose(root, "sources/0/0")
    assert found(root) == []


def test_findings_file_changed_by_hand_is_told_by_its_checksum(root: Path) -> None:
    for batch in (0, 2):
        file = root / f"offsets/{batch}"
        file.write_text(file.read_text().replace('"0":15', '"0":14').replace('"0":5', '"0":4'))
    assert [(one.code, one.blocks, one.context["file"]) for one in found(root)] == [
        ("CHECKPOINT_CHECKSUM_WRONG", False, "offsets/0"),
        ("CHECKPOINT_CHECKSUM_WRONG", True, "offsets/2"),
    ]


def test_findings_checksum_file_itself_broken_or_gone(root: Path) -> None:
    (root / "offsets/.2.crc").write_bytes(b"")
    (root / "offsets/.1.crc").unlink()
    commit = root / "commits/.2.crc"
    commit.write_bytes(commit.read_bytes()[:8])
    assert codes(root) == [("CHECKPOINT_CHECKSUM_WRONG", False)] * 2


def test_findings_left_of_a_killed_write_unless_a_run_is_live(root: Path) -> None:
    (root / "offsets/.3.5f0a9c52-0000.tmp").write_text("v1")
    (root / ".metadata.penstock-17").write_text("{")
    (root / ".penstock.run.1.2.tmp").write_text("{")
    (one,) = found(root)
    assert (one.code, one.blocks) == ("CHECKPOINT_STRAY_FILES", False)
    assert one.context["files"] == ".metadata.penstock-17, offsets/.3.5f0a9c52-0000.tmp"
    assert found(root, live=True) == []


def test_findings_unfinished_restore_blocks(root: Path) -> None:
    (root / ".penstock.restoring").write_text("restore of backup b")
    (one,) = found(root)
    assert (one.code, one.blocks, one.context["begun"]) == ("RESTORE_UNFINISHED", True, "restore of backup b")
    assert "penstock checkpoint restore FILE" in one.way_out


def test_findings_as_error_carry_the_way_out(root: Path) -> None:
    lose(root, "metadata")
    error = found(root)[0].as_error()
    assert (error.code, error.exit_code) == ("CHECKPOINT_METADATA_LOST", 4)
    assert error.hint is not None
    assert "penstock checkpoint repair FILE" in error.hint


@pytest.mark.parametrize(
    ("damage", "missing"),
    [
        (["state/0/0/3.changelog"], "state/0/0/3.changelog"),
        (["state/0/1/1.changelog"], "state/0/1/1.changelog"),
        ([f"state/0/1/{v}.changelog" for v in (1, 2, 3)], "state/0/1"),
    ],
)
def test_findings_state_that_the_next_batch_needs_gone_blocks(root: Path, damage: list[str], missing: str) -> None:
    write_state(root, 3)
    lose(root, *damage)
    (one,) = found(root)
    assert (one.code, one.blocks, one.context["missing"]) == ("STATE_MISSING", True, missing)
    assert one.context["needed"] == "version 3, of batch 2"


def test_findings_empty_state_file_and_state_gone_block(root: Path) -> None:
    write_state(root, 3)
    put(root / "state/0/0/3.changelog", b"")
    assert codes(root) == [("STATE_MISSING", True)]
    shutil.rmtree(root / "state")
    (one,) = found(root)
    assert (one.code, one.context["missing"]) == ("STATE_MISSING", "state/0")


def test_findings_state_from_a_snapshot_needs_only_what_follows_it(root: Path) -> None:
    write_state(root, 3, snapshot=2)
    lose(root, "state/0/0/1.changelog", "state/0/1/2.changelog")
    assert found(root) == []
    lose(root, "state/0/0/SSTs/000008-0.sst")
    (one,) = found(root)
    assert (one.code, one.context["missing"]) == ("STATE_MISSING", "state/0/0/SSTs/000008-0.sst")


def test_findings_state_of_an_open_batch_is_that_before_it(tmp_path: Path) -> None:
    root = write_checkpoint(tmp_path / "cp", ENDS, committed=1)
    write_state(root, 2)
    assert found(root) == []
    lose(root, "state/0/0/2.changelog")
    assert codes(root) == [("STATE_MISSING", True)]


def test_findings_in_an_object_store_are_the_same(root: Path) -> None:
    memory = fsspec.filesystem("memory")
    lose(root, "offsets/1")
    write_state(root, 2)
    memory.put(str(root), "/findings-cp", recursive=True)
    try:
        there = file_findings(SparkCheckpoint("memory://findings-cp"))
        assert [(one.code, one.blocks) for one in there] == [("CHECKPOINT_GAP", True), ("STATE_MISSING", True)]
    finally:
        memory.rm("/findings-cp", recursive=True)
    assert file_findings(SparkCheckpoint("memory://findings-cp")) == []

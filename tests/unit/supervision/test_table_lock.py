"""The lock of a table: the stream comes first, a compaction takes what is left, a crash frees everything."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.supervision import upkeep
from penstock.supervision.upkeep import TableLock


def soon(seconds: float = 0.2) -> float:
    return time.monotonic() + seconds


def test_turn_that_the_stream_has_is_not_taken(tmp_path: Path) -> None:
    table = TableLock(str(tmp_path), "out")
    with table.stream(), table.taken(soon(0.05)) as mine:
        assert not mine
        assert table.wanted()
    with table.taken(soon()) as mine:
        assert mine
        assert not table.wanted()


def test_locks_of_two_sinks_do_not_meet(tmp_path: Path) -> None:
    with TableLock(str(tmp_path), "a/b").stream(), TableLock(str(tmp_path), "a_b").taken(soon()) as mine:
        assert mine


def test_stream_that_finds_a_compaction_asks_waits_a_moment_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "STREAM_PATIENCE", 0.1)
    table = TableLock(str(tmp_path), "out")
    with table.taken(soon()) as mine:
        assert mine
        began = time.monotonic()
        with table.stream():
            # It does not wait for the end of the compaction, which is still at it.
            assert time.monotonic() - began > 0.09
            assert table.wanted()


def test_turn_of_a_killed_compaction_is_free(tmp_path: Path) -> None:
    code = (
        "import sys, time; from penstock.supervision.upkeep import TableLock\n"
        f"with TableLock({str(tmp_path)!r}, 'out').taken(time.monotonic() + 5) as mine:\n"
        "    print(mine, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "True\n"
        table = TableLock(str(tmp_path), "out")
        with table.taken(soon(0.05)) as mine:
            assert not mine
        process.kill()
    with table.taken(soon()) as mine:
        assert mine


@pytest.mark.parametrize("checkpoint", ["s3://bucket/checkpoint", "/nowhere/at/all"])
def test_locks_without_a_local_checkpoint_are_all_free(checkpoint: str) -> None:
    table = TableLock(checkpoint, "out")
    with table.stream(), table.taken(soon()) as mine:
        assert mine and not table.wanted()

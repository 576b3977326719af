"""Penstock's own notes in a checkpoint: written whole or not at all, and told where they cannot be used."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest
from tests.spark_checkpoint import write_checkpoint

from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.findings import file_findings
from penstock.checkpoint.logs import read_files
from penstock.model import BatchToken, OffsetRange

TOKEN = BatchToken("orders", "q", 3, (OffsetRange("orders", 0, 15, 20),))


@pytest.fixture
def checkpoint(tmp_path: Path) -> SparkCheckpoint:
    return SparkCheckpoint(str(write_checkpoint(tmp_path / "cp", [{0: 5}, {0: 10}])))


def test_notes_that_can_be_read_are_no_findings(checkpoint: SparkCheckpoint) -> None:
    checkpoint.note_topic_ids({"orders": "x"})
    checkpoint.note_again([TOKEN])
    assert file_findings(checkpoint) == []
    files = read_files(checkpoint.path)
    assert (files.again, files.begun, files.newest) == ((TOKEN,), 1, 3)


@pytest.mark.parametrize("name", [".penstock.topics", ".penstock.again", ".penstock.state"])
@pytest.mark.parametrize("body", [b"", b'{"orders": "x', b"\0\0"])
def test_notes_cut_short_block_and_raise_nothing(checkpoint: SparkCheckpoint, name: str, body: bytes) -> None:
    Path(checkpoint.path, name).write_bytes(body)
    (found,) = [one for one in file_findings(checkpoint) if name in one.summary]
    assert (found.code, found.blocks) == ("CHECKPOINT_FILE_BROKEN", True)
    assert "penstock checkpoint restore FILE" in found.way_out


def test_note_that_finds_no_room_leaves_the_one_that_was_there(checkpoint: SparkCheckpoint) -> None:
    checkpoint.note_topic_ids({"orders": "x"})
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))
        try:
            checkpoint.note_topic_ids({"orders": "another"})
        except OSError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert checkpoint.topic_ids() == {"orders": "x"}

"""Spark's files, written: compared with what Spark itself wrote, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.checkpoint import Offsets, SparkCheckpoint
from penstock.checkpoint.logs import RESTORING
from penstock.errors import TerminalError
from penstock.model import TopicPartition

HEAD = '{"batchWatermarkMs":5000,"batchTimestampMs":1794767810957,"conf":{"spark.sql.shuffle.partitions":"8"}}'


def at(topic: str, **ends: int) -> Offsets:
    return {TopicPartition(topic, int(name[1:])): end for name, end in ends.items()}


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_offsets_written_again_are_the_bytes_that_spark_wrote(tmp_path: Path) -> None:
    text = f'v1\n{HEAD}\n{{"orders":{{"0":7500,"2":7,"10":8}}}}'
    write(tmp_path, "offsets/4", text)
    SparkCheckpoint(str(tmp_path)).put_offsets(5, SparkCheckpoint(str(tmp_path)).ends(4), like=4)
    assert (tmp_path / "offsets/5").read_text() == text


def test_offsets_of_several_sources_go_to_the_line_of_their_topic(tmp_path: Path) -> None:
    write(tmp_path, "offsets/0", f'v1\n{HEAD}\n{{"clicks":{{"0":3}}}}\n-')
    write(tmp_path, "sources/1/0", '\0v1\n{"orders":{"0":0}}')
    SparkCheckpoint(str(tmp_path)).put_offsets(1, at("orders", p0=9) | at("clicks", p0=4), like=0)
    assert (tmp_path / "offsets/1").read_text() == f'v1\n{HEAD}\n{{"clicks":{{"0":4}}}}\n{{"orders":{{"0":9}}}}'
    SparkCheckpoint(str(tmp_path)).put_offsets(2, at("clicks", p0=4), like=0)
    assert (tmp_path / "offsets/2").read_text().splitlines()[2:] == ['{"clicks":{"0":4}}', "-"]


def test_offsets_of_a_topic_that_no_source_reads_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "offsets/0", f'v1\n{HEAD}\n{{"clicks":{{"0":3}}}}\n{{"orders":{{"0":3}}}}')
    with pytest.raises(TerminalError) as raised:
        SparkCheckpoint(str(tmp_path)).put_offsets(1, at("other", p0=9), like=0)
    assert "other" in raised.value.context["found"]
    assert not (tmp_path / "offsets/1").exists()


def test_offsets_without_a_batch_to_follow_can_be_read(tmp_path: Path) -> None:
    SparkCheckpoint(str(tmp_path)).put_offsets(3, at("orders", p0=9, p1=0))
    assert SparkCheckpoint(str(tmp_path)).ends(3) == at("orders", p0=9, p1=0)


def test_offsets_like_a_batch_that_is_gone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TerminalError) as raised:
        SparkCheckpoint(str(tmp_path)).put_offsets(3, at("orders", p0=9), like=2)
    assert (raised.value.code, "offsets/2" in raised.value.summary) == ("CHECKPOINT_BROKEN", True)


def test_checkpoint_written_by_hand_reads_as_one_of_spark(tmp_path: Path) -> None:
    root = str(tmp_path)
    SparkCheckpoint(root).put_initial([at("orders", p0=5), at("clicks", p0=1)])
    SparkCheckpoint(root).put_metadata("0b5ec5a3")
    SparkCheckpoint(root).put_offsets(0, at("orders", p0=9))
    SparkCheckpoint(root).put_commit(0)
    checkpoint = SparkCheckpoint(root)
    assert (tmp_path / "sources/0/0").read_bytes() == b'\0v1\n{"orders":{"0":5}}'
    assert (tmp_path / "metadata").read_text() == '{"id":"0b5ec5a3"}'
    assert checkpoint.initial() == at("orders", p0=5) | at("clicks", p0=1)
    assert (checkpoint.query_id(), checkpoint.last_begun(), checkpoint.last_committed()) == ("0b5ec5a3", 0, 0)


def test_commit_like_another_has_its_watermark(tmp_path: Path) -> None:
    write(tmp_path, "commits/1", 'v1\n{"nextBatchWatermarkMs":77}')
    SparkCheckpoint(str(tmp_path)).put_commit(2, like=1)
    assert (tmp_path / "commits/2").read_text() == 'v1\n{"nextBatchWatermarkMs":77}'


def test_file_written_over_another_leaves_no_checksum_of_it(tmp_path: Path) -> None:
    write(tmp_path, "offsets/1", "old")
    write(tmp_path, "offsets/.1.crc", "crc")
    SparkCheckpoint(str(tmp_path)).put("offsets/1", b"new")
    assert [p.name for p in (tmp_path / "offsets").iterdir()] == ["1"]
    assert (tmp_path / "offsets/1").read_text() == "new"


def test_file_removed_takes_its_checksum_with_it(tmp_path: Path) -> None:
    write(tmp_path, "commits/1", "old")
    write(tmp_path, "commits/.1.crc", "crc")
    SparkCheckpoint(str(tmp_path)).remove("commits/1")
    SparkCheckpoint(str(tmp_path)).remove("commits/1")
    assert not list((tmp_path / "commits").iterdir())


def test_restoring_that_does_not_end_leaves_its_note(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), SparkCheckpoint(str(tmp_path)).restoring("restore of x"):
        raise KeyboardInterrupt
    assert (tmp_path / RESTORING).read_text() == "restore of x"
    with SparkCheckpoint(str(tmp_path)).restoring("again"):
        pass
    assert not (tmp_path / RESTORING).exists()


def test_files_in_another_file_system_are_written_there() -> None:
    root = "memory://writing/checkpoint"
    SparkCheckpoint(root).put_metadata("id")
    SparkCheckpoint(root).put_offsets(0, at("orders", p0=9))
    assert SparkCheckpoint(root).ends(0) == at("orders", p0=9)
    SparkCheckpoint(root).remove("offsets/0")
    assert SparkCheckpoint(root).last_begun() is None

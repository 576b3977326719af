"""Spark's checkpoint files as data: written here by hand, in Spark's format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.checkpoint import Offsets, SparkCheckpoint, ranges_between, to_spark_json
from penstock.errors import TerminalError
from penstock.model import OffsetRange, TopicPartition

QUERY = "0b5ec5a3-6d4f-4a52-a1f4-1d3c4f0a4c7e"


def offsets(**ends: int) -> Offsets:
    return {TopicPartition("orders", int(name[1:])): end for name, end in ends.items()}


def write_batch(root: Path, batch_id: int, ends: Offsets, *, committed: bool = True) -> None:
    (root / "offsets").mkdir(parents=True, exist_ok=True)
    (root / "offsets" / f".{batch_id}.crc").write_bytes(b"crc")
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})
    (root / "offsets" / str(batch_id)).write_text(f"v1\n{head}\n{to_spark_json(ends)}")
    if committed:
        (root / "commits").mkdir(exist_ok=True)
        (root / "commits" / str(batch_id)).write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    (tmp_path / "sources/0").mkdir(parents=True)
    (tmp_path / "sources/0/0").write_bytes(b'\0v1\n{"orders":{"0":5,"1":0}}')
    return tmp_path


def test_checkpoint_empty_folder_has_nothing(tmp_path: Path) -> None:
    checkpoint = SparkCheckpoint(str(tmp_path / "none"))
    assert (checkpoint.query_id(), checkpoint.last_begun(), checkpoint.initial()) == (None, None, None)


def test_checkpoint_started_and_no_batch_yet_has_its_query_id(root: Path) -> None:
    checkpoint = SparkCheckpoint(str(root))
    assert (checkpoint.query_id(), checkpoint.last_begun(), checkpoint.last_committed()) == (QUERY, None, None)


def test_checkpoint_batches_are_numbers_not_names(root: Path) -> None:
    for batch in range(11):
        write_batch(root, batch, offsets(p0=10 + batch), committed=batch < 10)
    checkpoint = SparkCheckpoint(str(root))
    assert (checkpoint.last_begun(), checkpoint.last_committed()) == (10, 9)
    assert checkpoint.ends(10) == offsets(p0=20)


def test_checkpoint_first_batch_starts_where_the_source_began(root: Path) -> None:
    write_batch(root, 0, offsets(p0=9, p1=3))
    write_batch(root, 1, offsets(p0=12, p1=3))
    checkpoint = SparkCheckpoint(str(root))
    assert checkpoint.starts(0) == offsets(p0=5, p1=0)
    assert checkpoint.starts(1) == offsets(p0=9, p1=3)


def test_checkpoint_under_a_file_url_is_the_same(root: Path) -> None:
    write_batch(root, 0, offsets(p0=9))
    assert SparkCheckpoint(f"file://{root}").ends(0) == offsets(p0=9)


@pytest.mark.parametrize("content", [None, "", "v1\n{}", "v2\n{}\n{}"])
def test_checkpoint_offsets_that_cannot_be_used_are_refused(root: Path, content: str | None) -> None:
    write_batch(root, 3, offsets(p0=1))
    file = root / "offsets/3"
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with pytest.raises(TerminalError) as raised:
        SparkCheckpoint(str(root)).ends(3)
    assert raised.value.code == "CHECKPOINT_BROKEN"
    assert "offsets/3" in raised.value.summary


@pytest.mark.parametrize("name", ["metadata", "offsets/3", "sources/0/0"])
@pytest.mark.parametrize("content", [b"v1\n{}\n{not json", b"\xff\xfe\n\xff\n\xff"])
def test_checkpoint_file_cut_short_or_garbled_is_refused(root: Path, name: str, content: bytes) -> None:
    write_batch(root, 3, offsets(p0=1))
    (root / name).write_bytes(content)
    checkpoint = SparkCheckpoint(str(root))
    with pytest.raises(TerminalError) as raised:
        _ = (checkpoint.query_id(), checkpoint.ends(3), checkpoint.initial())
    assert raised.value.code == "CHECKPOINT_BROKEN"
    assert name in raised.value.summary


def test_checkpoint_metadata_without_a_query_is_refused(root: Path) -> None:
    (root / "metadata").write_text("{}")
    with pytest.raises(TerminalError) as raised:
        SparkCheckpoint(str(root)).query_id()
    assert raised.value.code == "CHECKPOINT_BROKEN"


def test_checkpoint_start_is_noted_and_read_back(root: Path) -> None:
    checkpoint = SparkCheckpoint(str(root))
    assert checkpoint.start_used() is None
    checkpoint.note_start("earliest")
    assert checkpoint.start_used() == "earliest"


def test_ranges_new_partition_begins_at_zero() -> None:
    ranges, backwards = ranges_between(offsets(p0=5), offsets(p0=8, p1=4))
    assert ranges == [OffsetRange("orders", 0, 5, 8), OffsetRange("orders", 1, 0, 4)]
    assert backwards == []


def test_ranges_end_before_start_is_told_apart() -> None:
    ranges, backwards = ranges_between(offsets(p0=5, p1=7), offsets(p0=2, p1=7))
    assert ranges == [OffsetRange("orders", 1, 7, 7)]
    assert backwards == [(TopicPartition("orders", 0), 5, 2)]


def test_spark_json_is_what_the_offsets_option_takes() -> None:
    several = {TopicPartition("b", 1): -1, TopicPartition("a", 10): 7, TopicPartition("a", 2): -2}
    assert json.loads(to_spark_json(several)) == {"a": {"2": -2, "10": 7}, "b": {"1": -1}}

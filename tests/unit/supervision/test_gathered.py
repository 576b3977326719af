"""Sinks whose batches are committed together, and how far a bounded run is by what its targets say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.committing import commit
from tests.stored_formats import GOLDEN
from tests.tables import read_table

from penstock.errors import TransientError
from penstock.model import COORDINATES_FIELD, BatchToken, Manifest, MergeRules, OffsetRange, SlotAttempt
from penstock.sinks.commit import move
from penstock.sinks.delta import DeltaMergeSink, DeltaSink
from penstock.supervision.bounded import cut
from penstock.supervision.gathered import GatheredSink

SCHEMA = pa.schema([pa.field("order_id", pa.int64()), COORDINATES_FIELD])
RANGES = (OffsetRange("orders", 0, 10, 40),)
BATCHES = cut(RANGES, 10)
WHOLE = BatchToken("orders.replay-x", "query", 0, RANGES)


def gathered(folder: Path) -> GatheredSink:
    sink = DeltaSink("orders.replay-x", "out", str(folder / "out"))
    sink.prepare(SCHEMA)
    return GatheredSink(sink, WHOLE, BATCHES, folder / "gathered")


def token(number: int) -> BatchToken:
    return BatchToken("orders.replay-x", "query", number, BATCHES[number])


def stage(sink: GatheredSink, number: int, attempt: str = "0") -> list[Manifest]:
    made = sink.stage(token(number), SlotAttempt(0, attempt), SCHEMA)
    made.write(pa.RecordBatch.from_pylist([{"order_id": number}], schema=SCHEMA))
    return [made.finish()]


def test_gathered_batches_are_staged_in_order_and_published_in_one_commit(tmp_path: Path) -> None:
    sink = gathered(tmp_path)
    assert sink.position() is None
    before = DeltaTable(tmp_path / "out").version()
    for number in range(2):
        commit(sink, token(number), stage(sink, number))
    again = gathered(tmp_path)
    position = again.position()
    assert position is not None
    assert (position.last, list(position.next.values()), again.published) == (token(1), [30], False)
    commit(again, token(2), stage(again, 2))
    assert DeltaTable(tmp_path / "out").version() == before
    again.publish()
    assert DeltaTable(tmp_path / "out").version() == before + 1
    assert sorted(read_table(tmp_path / "out", ["order_id"]).column(0).to_pylist()) == [0, 1, 2]


def test_gathered_sink_published_holds_every_batch_without_its_notes(tmp_path: Path) -> None:
    sink = gathered(tmp_path)
    for number in range(3):
        commit(sink, token(number), stage(sink, number))
    sink.publish()
    sink.publish()
    for note in (tmp_path / "gathered").iterdir():
        note.unlink()
    again = gathered(tmp_path)
    assert again.published
    again.publish()
    position = again.position()
    assert position is not None and position.last == token(2)
    assert read_table(tmp_path / "out").num_rows == 3


def test_gathered_sink_whose_target_was_restored_is_not_published(tmp_path: Path) -> None:
    sink = gathered(tmp_path)
    before = DeltaTable(tmp_path / "out").version()
    for number in range(3):
        commit(sink, token(number), stage(sink, number))
    sink.publish()
    DeltaTable(tmp_path / "out").restore(before)
    assert not gathered(tmp_path).published


def test_gathered_batch_whose_files_went_with_a_restored_folder_is_staged_again(tmp_path: Path) -> None:
    sink = gathered(tmp_path)
    staged = [stage(sink, number) for number in range(3)]
    for number, manifests in enumerate(staged):
        commit(sink, token(number), manifests)
    (tmp_path / "out" / staged[1][0].items[0].path).unlink()  # type: ignore[attr-defined]
    with pytest.raises(TransientError, match="SINK_STAGED_GONE"):
        sink.publish()
    again = gathered(tmp_path)
    position = again.position()
    assert position is not None and position.last == token(0)
    for number in (1, 2):
        commit(again, token(number), stage(again, number))
    again.publish()
    assert sorted(read_table(tmp_path / "out", ["order_id"]).column(0).to_pylist()) == [0, 1, 2]


def test_gathered_batch_whose_note_cannot_be_read_is_staged_again_and_published_once(tmp_path: Path) -> None:
    sink = gathered(tmp_path)
    for number in range(3):
        commit(sink, token(number), stage(sink, number))
    staged = set((tmp_path / "out").glob("*.parquet"))
    (tmp_path / "gathered" / "1.json").write_bytes((GOLDEN / "staged_manifests_0.7.0" / "0.manifests").read_bytes())
    with pytest.raises(TransientError, match="SINK_STAGED_GONE"):
        sink.publish()
    again = gathered(tmp_path)
    position = again.position()
    assert position is not None and position.last == token(0)
    for number in (1, 2):
        commit(again, token(number), stage(again, number, "1"))
    again.publish()
    assert sorted(read_table(tmp_path / "out", ["order_id"]).column(0).to_pylist()) == [0, 1, 2]
    named = {tmp_path / "out" / path for path in DeltaTable(tmp_path / "out").get_add_actions()["path"].to_pylist()}
    assert set((tmp_path / "out").glob("*.parquet")) == named
    assert len(named - staged) == 1, "batch 1 was staged again, and what it had staged before is removed"


def test_gathered_batches_that_version_0_7_staged_are_staged_again_and_published_once(tmp_path: Path) -> None:
    (tmp_path / "gathered").mkdir()
    for number in range(3):
        shutil.copy(GOLDEN / "staged_manifests_0.7.0" / "0.manifests", tmp_path / "gathered" / f"{number}.manifests")
    sink = gathered(tmp_path)
    left = stage(sink, 0)
    assert sink.position() is None
    for number in range(3):
        commit(sink, token(number), stage(sink, number, "1"))
    sink.publish()
    assert sorted(read_table(tmp_path / "out", ["order_id"]).column(0).to_pylist()) == [0, 1, 2]
    assert not (tmp_path / "out" / left[0].items[0].path).exists()  # type: ignore[attr-defined]


def test_gathered_merge_whose_table_was_restored_is_staged_and_published_again(tmp_path: Path) -> None:
    merging = DeltaMergeSink("orders.replay-x", "out", str(tmp_path / "out"), MergeRules(keys=("order_id",)))
    merging.prepare(SCHEMA)
    sink = GatheredSink(merging, WHOLE, BATCHES, tmp_path / "gathered")
    before = DeltaTable(tmp_path / "out").version()
    start = BatchToken("orders.replay-x", "query", -1, (OffsetRange("orders", 0, 10, 10),))
    for run in range(2):
        for number in range(3):
            commit(sink, token(number), stage(sink, number, str(run)))
        sink.publish()
        assert sorted(read_table(tmp_path / "out", ["order_id"]).column(0).to_pylist()) == [0, 1, 2]
        DeltaTable(tmp_path / "out").restore(before)
        move(merging, start, "the table was restored")
        sink = GatheredSink(merging, WHOLE, BATCHES, tmp_path / "gathered")
        assert sink.position() is None, "the commit has removed the staged files"

"""The Parquet sink on a real S3 server: conditional commits, copies that are cut short, batches removed by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from tests.committing import commit, holds, last_commit
from tests.contract.kit_parquet import read_folder

from penstock.errors import TerminalError, TransientError
from penstock.model import COORDINATES_FIELD, BatchToken, OffsetRange, SlotAttempt
from penstock.sinks.parquet import ParquetSink
from penstock.storage import ObjectFileSystem

QUERY = "278b7560-3ceb-44fb-a542-fa1b106c23e2"
SCHEMA = pa.schema([pa.field("id", pa.int64()), COORDINATES_FIELD])


@dataclass(frozen=True)
class Files:
    """A target in a bucket of its own."""

    server: Any
    bucket: str

    def sink(self) -> ParquetSink:
        made = ParquetSink("orders", "files", f"s3://{self.bucket}/lake/files", storage=self.server.storage)
        made.prepare(SCHEMA)
        return made

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in read_folder(f"{self.bucket}/lake/files", self.server.arrow()))

    def keys(self, begin: str) -> list[str]:
        return [key for key in self.server.keys(self.bucket) if key.startswith(begin)]

    def remove_batch(self, number: int) -> None:
        for key in self.keys("lake/files/penstock_batch="):
            if f"-{number:012}/" in key:
                self.server.remove(f"{self.bucket}/{key}")

    def refuse_copies(self) -> None:
        path = r"/lake/files/penstock_batch=.*\.parquet$"
        self.server.fault("error", method="PUT", path=path, times=1000, status=403)


@pytest.fixture
def files(s3: Any) -> Iterator[Files]:
    """Three batches are committed."""
    made = Files(s3, s3.bucket())
    sink = made.sink()
    for batch in range(3):
        write(sink, batch)
    yield made
    s3.calm()


def token(batch: int, query: str = QUERY) -> BatchToken:
    return BatchToken("orders", query, batch, (OffsetRange("orders", 0, 10 * batch, 10 * batch + 10),))


def write(sink: ParquetSink, batch: int, query: str = QUERY) -> None:
    first, mine = 10 * batch, token(batch, query)
    stage = sink.stage(mine, SlotAttempt(0, "a"), SCHEMA)
    places = [{"topic": "orders", "partition": 0, "offset": n, "timestamp": None} for n in range(first, first + 10)]
    ids = pa.array(range(first, first + 10), pa.int64())
    stage.write(pa.RecordBatch.from_arrays([ids, pa.array(places, COORDINATES_FIELD.type)], schema=SCHEMA))
    commit(sink, mine, [stage.finish()])


def test_batch_that_a_crash_left_half_shown_is_whole_after_the_next_start(files: Files) -> None:
    sink = files.sink()
    files.refuse_copies()
    with pytest.raises(Exception, match="STORAGE_REFUSED"):
        write(sink, 3)
    files.server.calm()
    listed = files.keys("lake/files/penstock_batch=")
    assert sum(key.endswith(".parquet") for key in listed) == 3 and sum("_manifest" in key for key in listed) == 4
    unprepared = ParquetSink("orders", "files", f"s3://{files.bucket}/lake/files", storage=files.server.storage)
    assert last_commit(unprepared) == token(3)
    assert files.ids() == list(range(30))
    files.sink()
    assert files.ids() == list(range(40))
    assert files.keys("lake/.files.penstock/") == []


def test_batch_that_another_driver_left_half_shown_is_whole_before_the_next_one_lands(files: Files) -> None:
    dead, sink = files.sink(), files.sink()
    files.refuse_copies()
    with pytest.raises(Exception, match="STORAGE_REFUSED"):
        write(dead, 3)
    files.server.calm()
    asked = [OffsetRange("orders", 0, 28, 33)]
    assert sink.records_held(asked) == {("orders", 0, number) for number in range(28, 33)}
    write(sink, 4)
    assert files.ids() == list(range(50))
    assert files.keys("lake/.files.penstock/") == []


def test_commit_whose_copy_failed_for_a_while_ends_with_the_batch_whole(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = files.sink()
    copy, failures = ObjectFileSystem.cp_file, iter([TransientError("STORAGE_UNAVAILABLE", "copying: no answer")])

    def copy_later(self: ObjectFileSystem, *paths: str, **more: Any) -> None:
        for failure in failures:
            raise failure
        copy(self, *paths, **more)

    monkeypatch.setattr(ObjectFileSystem, "cp_file", copy_later)
    write(sink, 3)
    assert files.ids() == list(range(40))
    assert files.keys("lake/.files.penstock/") == []


def test_commits_of_other_drivers_are_seen_without_listing_the_whole_target_again(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = files.sink(), files.sink()
    monkeypatch.setattr(ObjectFileSystem, "ls", lambda *_, **__: pytest.fail("the whole target is listed"))
    for batch in range(3, 9, 3):
        write(ours, batch)
        write(other, batch + 1)
        write(other, batch + 2)
        assert last_commit(ours) == last_commit(other) == token(batch + 2)
        assert holds(ours, token(batch))
    write(other, 9, "another")
    with pytest.raises(TerminalError, match="FENCED"):
        write(ours, 9)
    assert files.ids() == list(range(100))


def test_batches_removed_by_hand_are_noticed_by_a_driver_that_knows_them(files: Files) -> None:
    sink = files.sink()
    write(sink, 3)
    files.remove_batch(4)
    assert last_commit(sink) == last_commit(files.sink()) == token(2)
    with pytest.raises(TerminalError, match="TARGET_WENT_BACK"):
        write(sink, 4)
    for number in (1, 2, 3):
        files.remove_batch(number)
    for one in (sink, files.sink()):
        with pytest.raises(TerminalError, match="TARGET_WENT_BACK"):
            write(one, 3)


def test_batch_removed_and_written_again_by_another_run_fences_the_first(files: Files) -> None:
    hung, other = files.sink(), files.sink()
    write(hung, 3)
    files.remove_batch(4)
    write(other, 3, "another")
    write(other, 4, "another")
    with pytest.raises(TerminalError, match="FENCED"):
        write(hung, 4)
    assert files.ids() == list(range(50))


def test_other_writers_of_a_bucket_are_named(files: Files) -> None:
    other = ParquetSink("returns", "files", f"s3://{files.bucket}/lake/files", storage=files.server.storage)
    assert other.position() is None
    assert other.other_writers() == ["orders/files"]
    assert files.sink().other_writers() == []

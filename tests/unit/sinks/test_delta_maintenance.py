"""The care of a Delta table by delta-rs: rows and tokens stay, the stream comes first, nothing needed is removed."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures
from tests.committing import commit, holds, last_commit
from tests.contract.rows import SCHEMA, land, records, stage, token
from tests.tables import ids

from penstock.errors import TerminalError
from penstock.model import MergeRules, Position, TopicPartition
from penstock.sinks import maintenance
from penstock.sinks.delta import DeltaMergeSink, DeltaSink, merge, optimizing
from penstock.sinks.maintenance import NoLock
from penstock.supervision.upkeep import TableLock

FREE = NoLock()
NOW = timedelta(0)


def soon(seconds: float = 30) -> float:
    return time.monotonic() + seconds


def small_files(path: Path, batches: int, **settings: Any) -> DeltaSink:
    """A table of one row and one file a batch."""
    sink = DeltaSink("orders", "out", str(path), **settings)
    sink.prepare(SCHEMA)
    for number in range(batches):
        land(sink, token(number, number, number + 1))
    return sink


def age(path: Path, days: float) -> None:
    then = time.time() - days * 86_400
    os.utime(path, (then, then))


class Impatient:
    """A lock that the stream wants as soon as it is taken."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.held = False

    @contextmanager
    def taken(self, deadline: float) -> Iterator[bool]:
        self.held = True
        yield True
        self.held = False
        self.left -= 1

    def wanted(self) -> bool:
        return self.left > 0


def impatient(times: int, monkeypatch: pytest.MonkeyPatch) -> Impatient:
    """Such a lock, under which no chunk is ever quick enough to be done before it is seen."""
    lock, send = Impatient(times), maintenance.ChunkProcess._send

    def send_when_free(chunks: maintenance.ChunkProcess, process: Any, what: Any) -> None:
        if not (lock.held and lock.wanted()):
            send(chunks, process, what)

    monkeypatch.setattr(maintenance.ChunkProcess, "_send", send_when_free)
    monkeypatch.setattr(maintenance, "GRACE", -1.0)
    monkeypatch.setattr(maintenance, "_POLL", 0.0)
    return lock


def test_compact_joins_small_files_and_keeps_rows_and_tokens(tmp_path: Path) -> None:
    sink = small_files(tmp_path, 12)
    care = sink.maintenance()
    before = care.figures()
    done = care.compact(FREE, soon())
    after = care.figures()
    assert before is not None and after is not None
    assert (before.files, before.small_files, after.files, after.small_files) == (12, 12, 1, 0)
    assert (done.removed, done.added, done.left, done.gave_way) == (12, 1, None, 0)
    assert ids(tmp_path) == list(range(12))
    assert last_commit(sink) == token(11, 11, 12)
    assert holds(sink, token(11, 11, 12)) and not holds(sink, token(12, 12, 13))
    land(sink, token(12, 12, 13))
    assert ids(tmp_path) == list(range(13))
    fresh = DeltaSink("orders", "out", str(tmp_path))
    assert last_commit(fresh) == token(12, 12, 13)


def test_compact_of_one_file_a_partition_commits_nothing(tmp_path: Path) -> None:
    sink = DeltaSink("orders", "out", str(tmp_path), ["note"])
    sink.prepare(SCHEMA)
    land(sink, token(0, 0, 3))
    version = DeltaTable(tmp_path).version()
    assert sink.maintenance().compact(FREE, soon()).removed == 0
    assert DeltaTable(tmp_path).version() == version


def test_compact_whose_time_is_up_leaves_the_table_as_it_is(tmp_path: Path) -> None:
    care = small_files(tmp_path, 3).maintenance()
    done = care.compact(FREE, soon(0))
    assert (done.removed, done.left) == (0, "the time was up")
    assert ids(tmp_path) == [0, 1, 2]


def test_compact_that_the_stream_interrupts_gives_way_and_is_done_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    care = small_files(tmp_path, 40).maintenance()
    done = care.compact(impatient(2, monkeypatch), soon())
    assert (done.gave_way, done.left, done.removed) == (2, None, 40)
    assert ids(tmp_path) == list(range(40))


def test_compact_that_gets_no_turn_ends_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sinks.delta.maintenance.LOST_CHUNKS", 2)
    done = small_files(tmp_path, 40).maintenance().compact(impatient(99, monkeypatch), soon())
    assert (done.gave_way, done.left) == (2, "the stream left no room for it")
    assert ids(tmp_path) == list(range(40))


def test_bite_that_meets_a_merge_is_a_conflict_and_the_merge_stays(tmp_path: Path) -> None:
    class Stale(DeltaTable):
        def update_incremental(self) -> None:
            pass

    small_files(tmp_path, 3)
    stale = Stale(tmp_path)
    DeltaTable(tmp_path).delete("id = 1")
    found = optimizing.join(stale, {"filters": [], "target": 1 << 20, "mark": "m", "columns": []})
    assert found["outcome"] == "conflict"
    assert ids(tmp_path) == [0, 2]


def test_bite_that_fails_is_an_error_of_the_sink(tmp_path: Path) -> None:
    care = small_files(tmp_path, 3, cluster_by=["nothing_like_that"]).maintenance()
    with pytest.raises(TerminalError) as failed:
        care.compact(FREE, soon())
    assert failed.value.code == "SINK_FAILED" and "nothing_like_that" in failed.value.summary


def test_compact_with_cluster_by_orders_grown_partitions_alone(tmp_path: Path) -> None:
    sink = DeltaSink("orders", "out", str(tmp_path), ["note"], cluster_by=["id"])
    sink.prepare(SCHEMA)
    for number in range(4):
        land(sink, token(number, number, number + 1), note=lambda n: None if n % 2 else "a b/ü")
    care = sink.maintenance()
    done = care.compact(FREE, soon())
    assert (done.removed, done.added) == (4, 2)
    assert DeltaTable(tmp_path).history(1)[0]["operationMetrics"]["plannerStrategy"] == "zOrder"
    land(sink, token(4, 4, 5), note="b")
    assert care.compact(FREE, soon()).removed == 0
    assert ids(tmp_path) == list(range(5))


def forgetting(path: Path) -> None:
    """From now on every tenth commit makes a checkpoint, and lets every older entry go."""
    DeltaTable(path).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 seconds"})
    time.sleep(1.1)


def test_compact_that_lets_the_log_forget_leaves_the_position_exact(tmp_path: Path) -> None:
    sink = small_files(tmp_path, 17)
    before = sink.position()
    assert before is not None
    forgetting(tmp_path)
    care = sink.maintenance()
    assert care.compact(FREE, soon()).removed == 17
    assert care.clean(NOW, FREE, soon()).files == 17
    assert not (tmp_path / "_delta_log" / f"{17:020}.json").exists()
    held = DeltaSink("orders", "out", str(tmp_path)).position()
    assert held is not None
    assert (held.next, held.number) == (before.next, before.number)
    land(sink, token(17, 17, 18))
    assert last_commit(DeltaSink("orders", "out", str(tmp_path))) == token(17, 17, 18)


def test_compact_lets_the_log_forget_no_token_that_an_earlier_version_wrote(tmp_path: Path) -> None:
    sink = small_files(tmp_path, 17)
    for version in range(1, 18):
        as_before_positions(tmp_path / "_delta_log" / f"{version:020}.json")
    for checkpoint in (tmp_path / "_delta_log").glob("*checkpoint*"):
        checkpoint.unlink()
    forgetting(tmp_path)
    care = sink.maintenance()
    done, cleaned = care.compact(FREE, soon()), care.clean(NOW, FREE, soon())
    assert done.removed == 0 and "position" in str(done.left)
    assert cleaned.files == 0 and "position" in str(cleaned.note)
    sink = DeltaSink("orders", "out", str(tmp_path))
    sink.prepare(SCHEMA)
    assert last_commit(sink) == token(16, 16, 17)
    land(sink, token(17, 17, 18))
    assert care.compact(FREE, soon()).removed == 18
    held = DeltaSink("orders", "out", str(tmp_path)).position()
    assert held is not None and held.next == {TopicPartition("orders", 0): 18}


def as_before_positions(entry: Path) -> None:
    """Leave of an entry what version 0.7.0 wrote: the token alone, and the transaction of the query."""
    kept = []
    for action in map(json.loads, entry.read_text().splitlines()):
        if "commitInfo" in action:
            held = Position.from_json(action["commitInfo"]["penstock.token"])
            action["commitInfo"]["penstock.token"] = held.last.to_json()
        if "txn" not in action or action["txn"]["appId"].count("/") == 2:
            kept.append(json.dumps(action))
    entry.write_text("".join(f"{line}\n" for line in kept))


def test_clean_removes_what_was_taken_out_long_ago_and_nothing_else(tmp_path: Path) -> None:
    sink = DeltaSink("orders", "out", str(tmp_path), ["note"])
    sink.prepare(SCHEMA)
    for number in range(5):
        land(sink, token(number, number, number + 1), note="a b/ü")
    care = sink.maintenance()
    care.compact(FREE, soon())
    assert care.clean(timedelta(days=7), FREE, soon()).files == 0
    version = DeltaTable(tmp_path).version()
    assert care.clean(NOW, FREE, soon(), dry_run=True).files == 5
    assert DeltaTable(tmp_path).version() == version
    assert care.clean(NOW, FREE, soon()).files == 5
    assert len(list(tmp_path.rglob("part*.parquet"))) == 1
    version = DeltaTable(tmp_path).version()
    assert care.clean(NOW, FREE, soon()).files == 0
    assert DeltaTable(tmp_path).version() == version
    assert ids(tmp_path) == list(range(5))
    assert last_commit(sink) == token(4, 4, 5)


def test_clean_leaves_what_a_batch_in_hand_has_staged(tmp_path: Path) -> None:
    sink = small_files(tmp_path, 2)
    merging = DeltaMergeSink("orders", "by_key", str(tmp_path), MergeRules(("id",)))
    merging.prepare(SCHEMA)
    appended = stage(sink, token(2, 2, 3), [records([2])])
    merged = stage(merging, token(0, 7, 8), [records([7])])
    assert sink.maintenance().clean(NOW, FREE, soon()).files == 0
    commit(sink, token(2, 2, 3), [appended])
    commit(merging, token(0, 7, 8), [merged])
    assert ids(tmp_path) == [0, 1, 2, 7]


def test_clean_removes_what_was_staged_and_forgotten(tmp_path: Path) -> None:
    sink = small_files(tmp_path, 2)
    merging = DeltaMergeSink("orders", "by_key", str(tmp_path), MergeRules(("id",)))
    merging.prepare(SCHEMA)
    stage(sink, token(2, 2, 3), [records([2])])
    stage(merging, token(0, 7, 8), [records([7])])
    [strayed] = set(tmp_path.glob("*.parquet")) - {tmp_path / path for path in files_of(tmp_path)}
    for path in (strayed, *(tmp_path / "_penstock/staged").glob("*.parquet")):
        age(path, 2.5)
    assert sink.maintenance().clean(NOW, FREE, soon(), dry_run=True).files == 0
    for path in (strayed, *(tmp_path / "_penstock/staged").glob("*.parquet")):
        age(path, 3.5)
    assert sink.maintenance().clean(NOW, FREE, soon()).files == 2
    assert not strayed.exists() and not list((tmp_path / "_penstock/staged").glob("*.parquet"))
    assert ids(tmp_path) == [0, 1]


def files_of(path: Path) -> list[str]:
    return list(pa.table(DeltaTable(path).get_add_actions()).column("path").to_pylist())


def test_clean_keeps_as_long_as_the_table_itself_asks(tmp_path: Path) -> None:
    sink = small_files(tmp_path, 3)
    DeltaTable(tmp_path).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 2 days"})
    care = sink.maintenance()
    care.compact(FREE, soon())
    assert care.clean(timedelta(hours=1), FREE, soon()).files == 0


@pytest.mark.parametrize("feature", [TableFeatures.DeletionVectors, TableFeatures.RowTracking])
def test_table_that_delta_rs_does_not_rewrite_rightly_is_for_spark(tmp_path: Path, feature: TableFeatures) -> None:
    care = small_files(tmp_path, 3).maintenance()
    assert not care.needs_sql
    DeltaTable(tmp_path).alter.add_feature([feature], allow_protocol_versions_increase=True)
    assert care.needs_sql
    with pytest.raises(TerminalError) as refused:
        care.compact(FREE, soon())
    assert refused.value.code == "SINK_NEEDS_SPARK"


def test_table_that_is_not_there_has_no_figures(tmp_path: Path) -> None:
    care = DeltaSink("orders", "out", str(tmp_path / "none")).maintenance()
    assert care.figures() is None and not care.needs_sql
    assert care.compact(FREE, soon()).removed == 0
    assert care.clean(NOW, FREE, soon()).files == 0


def test_merges_beside_compactions_are_each_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of merges and compactions without a pause: no merge is ever made a second time."""
    checkpoint, table = tmp_path / "checkpoint", tmp_path / "table"
    checkpoint.mkdir()
    sink = DeltaMergeSink("orders", "out", str(table), MergeRules(("id",)))
    sink.prepare(SCHEMA)
    made = 0

    def counting(*arguments: Any) -> None:
        nonlocal made
        made += 1
        real(*arguments)

    real = merge.merge_in_driver
    monkeypatch.setattr(merge, "merge_in_driver", counting)
    over, joined = threading.Event(), []

    def tend() -> None:
        while not over.is_set():
            joined.append(sink.maintenance().compact(TableLock(str(checkpoint), "out"), soon()))

    tending = threading.Thread(target=tend)
    tending.start()
    batches = 24
    for number in range(batches):
        batch = token(number, number * 10, number * 10 + 10)
        again = [0] if number % 8 == 7 else []  # such a merge touches every file
        staged = stage(sink, batch, [records([*again, *range(number * 10, number * 10 + 10)])])
        with TableLock(str(checkpoint), "out").stream():
            commit(sink, batch, [staged])
        time.sleep(0.05)
    over.set()
    tending.join()
    assert made == batches
    assert sum(done.removed for done in joined) > batches / 2
    figures = sink.maintenance().figures()
    assert figures is not None and figures.files < batches / 2
    assert ids(table) == list(range(batches * 10))

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.committing import commit, holds, last_commit

from penstock.errors import MissingError, TerminalError, TransientError
from penstock.model import (
    COORDINATES,
    COORDINATES_FIELD,
    DELETES,
    BatchToken,
    Manifest,
    OffsetRange,
    Position,
    SlotAttempt,
    TopicPartition,
)
from penstock.sinks.files import TableFolder
from penstock.sinks.parquet import ParquetSink

GOLDEN = Path(__file__).parents[2] / "golden"
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("day", pa.string()), COORDINATES_FIELD])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "out"


def hidden(root: Path) -> Path:
    return root.parent / ".out.penstock"


def token(batch_id: int, query: str = "query", start: int | None = None) -> BatchToken:
    begin = batch_id * 10 if start is None else start
    return BatchToken("orders", query, batch_id, (OffsetRange("orders", 0, begin, batch_id * 10 + 10),))


def rows(batch: BatchToken, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    made = []
    for offset in range(batch.ranges[0].start, batch.ranges[0].end):
        at = {"topic": "orders", "partition": 0, "offset": offset, "timestamp": None}
        made.append({"id": offset, "day": f"d{offset % 3}", COORDINATES: at, DELETES: False, "extra": 1})
    return pa.RecordBatch.from_pylist(made, schema=schema)


def stage(sink: ParquetSink, batch: BatchToken, schema: pa.Schema = SCHEMA) -> Manifest:
    staging = sink.stage(batch, SlotAttempt(0, "0"), schema)
    staging.write(rows(batch, schema))
    return staging.finish()


def land(sink: ParquetSink, batch: BatchToken, schema: pa.Schema = SCHEMA) -> None:
    commit(sink, batch, [stage(sink, batch, schema)])


def land_at(sink: ParquetSink, batch: BatchToken) -> Position:
    position = commit(sink, batch, [stage(sink, batch)])
    assert position is not None
    return position


def made(path: Path, schema: pa.Schema = SCHEMA, pipeline: str = "orders", **settings: Any) -> ParquetSink:
    sink = ParquetSink(pipeline, "out", str(path), **settings)
    sink.prepare(schema)
    return sink


def visible(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("_"))


def offsets(path: Path) -> list[int]:
    return sorted(pq.read_table(path, columns=["id"], use_threads=False)["id"].to_pylist())


def test_commit_leaves_one_folder_with_a_manifest_that_names_every_file(root: Path) -> None:
    sink = made(root, partition_by=["day"])
    land(sink, token(4))
    [name] = visible(root)
    folder = root / name
    assert name.startswith("penstock_batch=")
    assert name.endswith("-000000000001")
    manifest = json.loads((folder / "_manifest.json").read_text())
    assert BatchToken.from_body(manifest["token"]) == token(4)
    assert Position.from_body(manifest["token"]) == sink.position()
    assert (manifest["rows"], manifest["partition_by"]) == (10, ["day"])
    assert manifest["columns"]["id"] == "int64"
    listed = {file["path"]: (file["rows"], file["size_bytes"]) for file in manifest["files"]}
    assert listed == {
        path.relative_to(folder).as_posix(): (pq.read_metadata(path).num_rows, path.stat().st_size)
        for path in folder.rglob("*.parquet")
    }
    assert sorted(path.split("/")[0] for path in listed) == ["day=d0", "day=d1", "day=d2"]


def test_commit_leaves_nothing_staged_and_no_second_link_to_a_file(root: Path) -> None:
    sink = made(root)
    stage(sink, token(0))
    land(sink, token(0))
    files = list(root.rglob("*.parquet"))
    assert [path.stat().st_nlink for path in files] == [1]
    assert {path.name for path in hidden(root).rglob("*")} == {"lock", "staged", "gathered"}


def test_plain_reader_sees_the_columns_and_the_batch_alone(root: Path) -> None:
    schema = pa.schema([*SCHEMA, pa.field(DELETES, pa.bool_())])
    sink = made(root, schema, keep_coordinates=False)
    land(sink, token(0), schema)
    stage(sink, token(1), schema)
    table = pq.read_table(root, use_threads=False)
    assert table.column_names == ["id", "day", "penstock_batch"]
    assert table.num_rows == 10


def test_reader_beside_commits_sees_only_whole_batches(root: Path) -> None:
    sink = made(root, partition_by=["day"])
    land(sink, token(0))
    enough = threading.Event()
    landed = [0]

    def write() -> None:
        while not enough.is_set():
            landed.append(landed[-1] + 1)
            land(sink, token(landed[-1]))

    writer = threading.Thread(target=write)
    writer.start()
    seen: list[int] = []
    try:
        while len(set(seen)) < 10:
            found = ds.dataset(root, format="parquet", partitioning="hive").to_table(use_threads=False)
            assert sorted(found["id"].to_pylist()) == list(range(found.num_rows))
            assert found.num_rows % 10 == 0
            seen.append(found.num_rows)
    finally:
        enough.set()
        writer.join()
    assert seen == sorted(seen)
    assert offsets(root) == list(range(10 * len(landed)))


def test_glob_over_the_folder_sees_no_staged_file(root: Path) -> None:
    sink = made(root, partition_by=["day"])
    land(sink, token(0))
    stage(sink, token(1))
    assert len(list(root.rglob("*.parquet"))) == 3
    assert len(list(root.parent.rglob("*.parquet"))) == 6


def test_path_that_is_a_link_stages_beside_the_folder_itself(root: Path) -> None:
    (root.parent / "disk" / "files").mkdir(parents=True)
    root.symlink_to(root.parent / "disk" / "files")
    land(made(root), token(0))
    assert (root.parent / "disk" / ".files.penstock").is_dir()
    assert offsets(root) == list(range(10))


def test_path_that_is_a_mount_point_is_refused() -> None:
    for look in (ParquetSink("orders", "out", "/proc").check, ParquetSink("orders", "out", "/proc").prepare):
        with pytest.raises(MissingError) as refused:
            look(SCHEMA)
        assert refused.value.code == "SINK_PATH_UNSUPPORTED"


DRIVER = """
import sys
sys.path.insert(0, {folder!r})
from pathlib import Path
from test_parquet_sink import land, made, token
from tests.committing import holds, last_commit
sink = made(Path({path!r}), partition_by=["day"])
last = last_commit(sink)
for batch_id in range(0 if last is None else last.batch_id, 10_000):
    if not holds(sink, token(batch_id)):
        land(sink, token(batch_id))
    print(batch_id, flush=True)
"""


def test_driver_killed_again_and_again_every_batch_is_there_once(root: Path) -> None:
    code = DRIVER.format(folder=str(Path(__file__).parent), path=str(root))
    reached = -1
    for kill in range(2):
        driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert driver.stdout is not None
        for line in driver.stdout:
            reached = int(line)
            if reached >= 20 * (kill + 1):
                break
        driver.send_signal(signal.SIGKILL)
        reached = max([reached, *(int(line) for line in driver.stdout.read().split("\\n")[:-1])])
        driver.wait()
        driver.stdout.close()
    found = offsets(root)
    assert found == list(range(len(found)))
    assert len(found) in (10 * (reached + 1), 10 * (reached + 2))


def test_path_that_shows_no_whole_batches_is_refused_whatever_is_asked() -> None:
    sink = ParquetSink("orders", "out", "ftp://name/files")
    for ask in (
        lambda: sink.prepare(SCHEMA),
        lambda: sink.check(SCHEMA),
        sink.position,
        lambda: commit(sink, token(0), []),
        lambda: sink.discard(token(0), []),
    ):
        with pytest.raises(MissingError) as refused:
            ask()
        assert refused.value.code == "SINK_PATH_UNSUPPORTED"


def test_path_as_a_file_uri_is_the_local_folder(root: Path) -> None:
    sink = ParquetSink("orders", "out", (root / "a b").as_uri())
    sink.prepare(SCHEMA)
    land(sink, token(0))
    assert offsets(root / "a b") == list(range(10))


@pytest.mark.parametrize("found", ["other.parquet", "_delta_log", "_common_metadata"])
def test_folder_of_somebody_else_is_refused(root: Path, found: str) -> None:
    root.mkdir()
    pq.write_table(pa.table({"id": [1]}), root / found)
    for look in (
        ParquetSink("orders", "out", str(root)).check,
        ParquetSink("orders", "out", str(root)).prepare,
    ):
        with pytest.raises(MissingError) as refused:
            look(SCHEMA)
        assert refused.value.code == "SINK_PATH_NOT_A_TABLE"
        assert refused.value.context["found"] == found


def test_file_in_the_place_of_the_folder_is_refused(root: Path) -> None:
    root.write_text("")
    with pytest.raises(MissingError, match="SINK_PATH_NOT_A_TABLE"):
        made(root)


def test_prepare_after_one_that_died_before_the_columns_were_written_goes_on(root: Path) -> None:
    root.mkdir()
    hidden(root).mkdir()
    (hidden(root) / "lock").touch()
    land(made(root), token(0))
    assert offsets(root) == list(range(10))


def test_thousands_of_batches_only_the_newest_manifest_is_opened(root: Path) -> None:
    sink = made(root)
    land(sink, token(0))
    first = root / visible(root)[0]
    for number in range(2, 3001):
        later = first.with_name(f"{first.name[:-12]}{number:012}")
        later.mkdir()
        (later / "_manifest.json").write_text("not to be read")
    newest = json.loads((first / "_manifest.json").read_text())
    newest["token"]["number"] = newest["number"] = 3000
    (later / "_manifest.json").write_text(json.dumps(newest))
    fresh = made(root)
    assert last_commit(fresh) == token(0)
    land(fresh, token(1))
    assert visible(root)[-1].endswith("-000000003001")
    (root / visible(root)[-1] / "_manifest.json").write_text("not a manifest")
    with pytest.raises(TerminalError) as unreadable:
        made(root).position()
    assert unreadable.value.code == "SINK_MANIFEST_UNREADABLE"


def test_commits_behind_the_first_do_not_list_the_folder_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(root)
    land(sink, token(0))
    monkeypatch.setattr(TableFolder, "names", lambda *_: pytest.fail("the whole target is listed"))
    for batch_id in range(1, 6):
        assert not holds(sink, token(batch_id))
        land(sink, token(batch_id))
        assert holds(sink, token(batch_id))
    monkeypatch.undo()
    assert last_commit(made(root)) == token(5)


def test_commits_of_another_driver_and_of_another_query_are_seen_between_two_of_its_own(root: Path) -> None:
    one, other = made(root), made(root)
    land(one, token(0))
    for batch_id in (1, 2, 3):
        land(other, token(batch_id))
    assert holds(one, token(2)) and not holds(one, token(4))
    land(other, token(4, "another query"))
    with pytest.raises(TerminalError, match="FENCED"):
        land(one, token(4))
    assert last_commit(one) == last_commit(made(root)) == token(4, "another query")
    assert offsets(root) == list(range(50))


def test_commit_of_another_driver_that_the_folders_clock_did_not_show_is_seen_at_the_commit(root: Path) -> None:
    one, other = made(root), made(root)
    land(one, token(0))
    land(other, token(1))
    # A file system whose clock did not tick between the two commits, and that does not count links.
    one._place._memory.names_at = one._place._state()
    assert last_commit(one) == token(0)
    land(one, token(1))
    assert last_commit(one) == token(1)
    assert offsets(root) == list(range(20))


def test_newest_batch_removed_by_hand_the_position_is_the_one_before(root: Path) -> None:
    sink = made(root)
    before = [land_at(sink, token(batch_id)) for batch_id in range(3)]
    shutil.rmtree(next(root.glob("*-000000000003")))
    assert sink.position() == made(root).position() == before[1]
    with pytest.raises(TerminalError, match="TARGET_WENT_BACK"):
        land(sink, token(3))
    land(sink, token(2, "caught up"))
    assert offsets(root) == list(range(30))


def test_newest_batch_removed_and_written_again_by_another_run_the_first_sees_the_other(root: Path) -> None:
    hung, other = made(root), made(root)
    land(hung, token(0))
    seen = land_at(hung, token(1))
    shutil.rmtree(next(root.glob("*-000000000002")))
    taken = land_at(other, token(1, "another query"))
    assert hung.position() == taken != seen
    with pytest.raises(TransientError) as moved:
        hung.land(Position.after(seen, token(2)), [stage(hung, token(2))], seen)
    assert moved.value.code == "SINK_COMMIT_CONFLICT"
    assert offsets(root) == list(range(20))


def test_every_batch_removed_by_hand_the_target_went_back(root: Path) -> None:
    sink = made(root)
    for batch_id in range(3):
        land(sink, token(batch_id))
    for folder in root.glob("penstock_batch=*"):
        shutil.rmtree(folder)
    for one in (sink, made(root)):
        held = one.position()
        assert held is not None
        assert (held.number, dict(held.next)) == (0, {TopicPartition("orders", 0): 0})
        with pytest.raises(TerminalError, match="TARGET_WENT_BACK"):
            land(one, token(3))
    land(made(root), token(0, "from the start"))
    assert offsets(root) == list(range(10))


def test_every_batch_removed_by_hand_after_a_crash_in_the_first_commit_the_target_went_back(root: Path) -> None:
    land(made(root), token(0))
    for note in (root / "_writers").iterdir():
        note.unlink()
    sink = made(root)
    shutil.rmtree(next(root.glob("penstock_batch=*")))
    with pytest.raises(TerminalError, match="TARGET_WENT_BACK"):
        land(sink, token(1))


def test_land_onto_a_position_that_is_not_the_targets_is_refused_and_leaves_the_staged_rows(root: Path) -> None:
    sink = made(root)
    held = land_at(sink, token(0))
    manifest = stage(sink, token(1))
    for onto in (None, Position.first(token(0, "another query"))):
        with pytest.raises(TransientError) as moved:
            sink.land(Position.after(onto, token(1)), [manifest], onto)
        assert moved.value.code == "SINK_COMMIT_CONFLICT"
    sink.land(Position.after(held, token(1)), [manifest], held)
    assert offsets(root) == list(range(20))


def test_position_names_partitions_that_the_newest_batch_does_not(root: Path) -> None:
    sink = made(root)
    elsewhere = BatchToken("orders", "query", 0, (OffsetRange("orders", 0, 0, 0), OffsetRange("orders", 7, 0, 4)))
    commit(sink, elsewhere, [])
    land(sink, token(1, start=0))
    held = made(root).position()
    assert held is not None
    assert held.next == {TopicPartition("orders", 0): 20, TopicPartition("orders", 7): 4}
    assert (held.number, held.last) == (2, token(1, start=0))


def test_target_of_version_0_7_is_continued_where_it_ends(root: Path) -> None:
    shutil.copytree(GOLDEN / "parquet_0.7.0", root)
    schema = pa.schema([pa.field("id", pa.int64()), COORDINATES_FIELD])
    for sink in (ParquetSink("orders", "out", str(root)), made(root, schema)):
        held = sink.position()
        assert held is not None
        assert held.next == {TopicPartition("orders", 0): 30, TopicPartition("orders", 1): 5}
        assert (held.number, held.last.query_id, held.last.batch_id) == (3, "second-query", 0)
    with pytest.raises(TerminalError, match="FENCED"):
        land(sink, token(2, "first-query"), schema)
    land(sink, token(3, "second-query"), schema)
    assert [name for name in visible(root) if name.endswith("fe11fd1cafac-000000000004")]
    held = made(root, schema).position()
    assert held is not None
    assert held.next == {TopicPartition("orders", 0): 40, TopicPartition("orders", 1): 5}
    assert offsets(root) == sorted([*range(40), *range(1000, 1005)])
    assert ParquetSink("returns", "out", str(root)).other_writers() == ["orders/out"]
    assert sink.records_held([OffsetRange("orders", 1, 3, 9)]) == {("orders", 1, 3), ("orders", 1, 4)}


def test_records_held_are_those_of_the_ranges_whoever_wrote_them(root: Path) -> None:
    sink = made(root, partition_by=["day"])
    assert sink.records_held([OffsetRange("orders", 0, 0, 100)]) == set()
    land(sink, token(0))
    land(sink, token(2, start=10))
    land(made(root, pipeline="other", partition_by=["day"]), BatchToken("other", "query", 0, token(5).ranges))
    stage(sink, token(3))
    asked = [OffsetRange("orders", 0, *each) for each in ((0, 2), (2, 3), (28, 32), (55, 56), (59, 70))]
    asked += [OffsetRange("orders", 1, 0, 100), OffsetRange("returns", 0, 0, 100)]
    assert sink.records_held(asked) == {("orders", 0, number) for number in (0, 1, 2, 28, 29, 55, 59)}
    assert sink.records_held([]) == set()


def test_records_held_without_coordinates_are_not_known(root: Path) -> None:
    without = made(root, keep_coordinates=False)
    assert without.records_held([OffsetRange("orders", 0, 0, 9)]) is None
    land(without, token(0))
    assert made(root).records_held([OffsetRange("orders", 0, 0, 9)]) is None


def test_other_writers_are_named_by_pipeline_and_sink(root: Path) -> None:
    sink = made(root)
    land(sink, token(0))
    assert sink.other_writers() == []
    other = ParquetSink("orders", "copy", str(root))
    other.prepare(SCHEMA)
    land(other, token(0))
    land(made(root, pipeline="returns"), BatchToken("returns", "query", 0, token(1).ranges))
    assert sink.other_writers() == ["orders/copy", "returns/out"]
    assert other.other_writers() == ["orders/out", "returns/out"]
    land(made(root, pipeline="orders.replay-7"), BatchToken("orders.replay-7", "query", 0, token(1).ranges))
    assert sink.other_writers() == ["orders.replay-7/out", "orders/copy", "returns/out"]


def test_older_batches_that_were_removed_still_count_as_committed(root: Path) -> None:
    sink = made(root)
    land(sink, token(0))
    land(sink, token(1))
    old = root / visible(root)[0]
    for path in [*old.iterdir()]:
        path.unlink()
    old.rmdir()
    assert holds(sink, token(0))
    land(sink, token(0))
    assert offsets(root) == list(range(10, 20))


def test_last_commit_of_several_queries_is_the_last_by_order_and_not_by_batch_id(root: Path) -> None:
    sink = made(root)
    land(sink, token(9, "first"))
    second = BatchToken("orders", "second", 3, (OffsetRange("orders", 0, 100, 110),))
    land(sink, second)
    assert last_commit(made(root)) == second


def test_commit_into_a_folder_that_was_emptied_under_way_is_refused(root: Path) -> None:
    sink = made(root)
    manifest = stage(sink, token(0))
    (root / "_common_metadata").unlink()
    with pytest.raises(TerminalError) as refused:
        commit(sink, token(0), [manifest])
    assert refused.value.code == "SINK_TABLE_GONE"
    assert visible(root) == []


def test_commit_into_a_folder_that_was_made_anew_with_another_type_is_refused(root: Path) -> None:
    sink = made(root)
    manifest = stage(sink, token(0))
    (root / "_common_metadata").unlink()
    made(root, SCHEMA.set(1, pa.field("day", pa.date32())), pipeline="other")
    with pytest.raises(MissingError) as refused:
        commit(sink, token(0), [manifest])
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"
    assert visible(root) == []


def test_commit_of_a_file_that_is_gone_lands_nothing(root: Path) -> None:
    sink = made(root)
    manifest = stage(sink, token(0))
    for path in hidden(root).rglob("*.parquet"):
        path.unlink()
    with pytest.raises(TerminalError) as failed:
        commit(sink, token(0), [manifest])
    assert failed.value.code == "SINK_FAILED"
    assert visible(root) == []
    assert not any((hidden(root) / "gathered").iterdir())


def test_two_pipelines_that_add_columns_keep_each_others(root: Path) -> None:
    first = made(root)
    wider = pa.schema([*SCHEMA, pa.field("extra", pa.int32())])
    second = made(root, wider, pipeline="other")
    land(first, token(0))
    land(second, BatchToken("other", "query", 0, token(1).ranges), wider)
    made(root)
    assert pq.read_schema(root / "_common_metadata").names == wider.names
    assert offsets(root) == list(range(20))
    with pytest.raises(MissingError, match="SINK_SCHEMA_MISMATCH"):
        made(root, pa.schema([*SCHEMA, pa.field("extra", pa.string())]), pipeline="third")


def test_prepare_with_nothing_new_leaves_the_columns_file_alone(root: Path) -> None:
    nested = pa.schema(
        [*SCHEMA, pa.field("tags", pa.list_(pa.struct([pa.field("k", pa.map_(pa.string(), pa.int8()))])))]
    )
    made(root, nested)
    before = (root / "_common_metadata").stat()
    made(root, nested)
    after = (root / "_common_metadata").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_commit_that_the_file_system_refuses_is_terminal_and_says_what_was_under_way(root: Path) -> None:
    sink = made(root)
    (hidden(root) / "gathered").write_text("a file in the place of the folder")
    with pytest.raises(TerminalError) as failed:
        land(sink, token(0))
    assert failed.value.code == "SINK_FAILED"
    assert "committing batch 0" in failed.value.summary

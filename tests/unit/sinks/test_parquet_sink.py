from __future__ import annotations

import json
import os
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

from penstock.errors import MissingError, TerminalError
from penstock.model import COORDINATES, COORDINATES_FIELD, DELETES, BatchToken, Manifest, OffsetRange, SlotAttempt
from penstock.sinks.parquet import ParquetSink

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
    sink.commit(batch, [stage(sink, batch, schema)])


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
    assert name.endswith("-000000000004")
    manifest = json.loads((folder / "_manifest.json").read_text())
    assert BatchToken.from_json(json.dumps(manifest["token"])) == token(4)
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
sink = made(Path({path!r}), partition_by=["day"])
last = sink.last_commit()
for batch_id in range(0 if last is None else last.batch_id, 10_000):
    if not sink.holds(token(batch_id)):
        land(sink, token(batch_id))
    print(batch_id, flush=True)
"""


def test_driver_killed_again_and_again_every_batch_is_there_once(root: Path) -> None:
    code = DRIVER.format(folder=str(Path(__file__).parent), path=str(root))
    reached = -1
    for kill in range(4):
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
        sink.last_commit,
        lambda: sink.holds(token(0)),
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
    land(sink, token(3000))
    newest = root / visible(root)[0]
    for batch_id in range(3000):
        older = newest.with_name(f"{newest.name[:-12]}{batch_id:012}")
        older.mkdir()
        (older / "_manifest.json").write_text("not to be read")
    fresh = made(root)
    assert fresh.last_commit() == token(3000)
    assert fresh.holds(token(3000))
    land(fresh, token(3001))
    assert fresh.last_commit() == token(3001)
    with pytest.raises(TerminalError) as unreadable:
        fresh.holds(token(7))
    assert unreadable.value.code == "SINK_MANIFEST_UNREADABLE"


def test_commits_behind_the_first_do_not_list_the_folder_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(root)
    land(sink, token(0))
    listed: list[object] = []
    scandir = os.scandir
    monkeypatch.setattr("penstock.sinks.parquet.batches.os.scandir", lambda path: listed.append(path) or scandir(path))
    for batch_id in range(1, 6):
        assert not sink.holds(token(batch_id))
        land(sink, token(batch_id))
        assert sink.holds(token(batch_id))
    assert root not in listed
    assert made(root).last_commit() == token(5)


def test_commits_of_another_driver_and_of_another_query_are_seen_between_two_of_its_own(root: Path) -> None:
    one, other = made(root), made(root)
    land(one, token(0))
    for batch_id in (1, 2, 3):
        land(other, token(batch_id))
    assert one.holds(token(2)) and not one.holds(token(4))
    land(other, token(7, "another query"))
    land(one, token(4))
    assert one.last_commit() == made(root).last_commit() == token(4)
    shutil.rmtree(next(root.glob("*-000000000004")))
    assert not one.holds(token(4))


def test_older_batches_that_were_removed_still_count_as_committed(root: Path) -> None:
    sink = made(root)
    land(sink, token(0))
    land(sink, token(1))
    old = root / visible(root)[0]
    for path in [*old.iterdir()]:
        path.unlink()
    old.rmdir()
    assert sink.holds(token(0))
    land(sink, token(0))
    assert offsets(root) == list(range(10, 20))


def test_last_commit_of_several_queries_is_the_last_by_order_and_not_by_batch_id(root: Path) -> None:
    sink = made(root)
    land(sink, token(9, "first"))
    land(sink, token(3, "second"))
    assert made(root).last_commit() == token(3, "second")
    land(sink, token(4, "second"))
    land(sink, token(0, "third"))
    assert made(root).last_commit() == token(0, "third")


def test_commit_into_a_folder_that_was_emptied_under_way_is_refused(root: Path) -> None:
    sink = made(root)
    manifest = stage(sink, token(0))
    (root / "_common_metadata").unlink()
    with pytest.raises(TerminalError) as refused:
        sink.commit(token(0), [manifest])
    assert refused.value.code == "SINK_TABLE_GONE"
    assert visible(root) == []


def test_commit_into_a_folder_that_was_made_anew_with_another_type_is_refused(root: Path) -> None:
    sink = made(root)
    manifest = stage(sink, token(0))
    (root / "_common_metadata").unlink()
    made(root, SCHEMA.set(1, pa.field("day", pa.date32())), pipeline="other")
    with pytest.raises(MissingError) as refused:
        sink.commit(token(0), [manifest])
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"
    assert visible(root) == []


def test_commit_of_a_file_that_is_gone_lands_nothing(root: Path) -> None:
    sink = made(root)
    manifest = stage(sink, token(0))
    for path in hidden(root).rglob("*.parquet"):
        path.unlink()
    with pytest.raises(TerminalError) as failed:
        sink.commit(token(0), [manifest])
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

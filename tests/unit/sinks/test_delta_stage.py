from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import TerminalError
from penstock.model import Manifest, SlotAttempt
from penstock.sinks.delta.stage import DeltaStage, StagedDeltaFile
from penstock.sinks.files import writer as staging
from penstock.sinks.files.folder import TableFolder

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("part", pa.string())])


def begin(path: Path, partition_by: tuple[str, ...] = ("part",), attempt: str = "0") -> DeltaStage:
    return DeltaStage("out", TableFolder(str(path)), "part-q-1-", SlotAttempt(3, attempt), SCHEMA, partition_by, 32)


def rows(ids: range, parts: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": n, "part": f"p{n % parts}"} for n in ids], schema=SCHEMA)


def files(manifest: Manifest) -> list[StagedDeltaFile]:
    return [item for item in manifest.items if isinstance(item, StagedDeltaFile)]


def read(path: Path, manifest: Manifest) -> list[int]:
    found = [n for file in files(manifest) for n in pq.ParquetFile(path / file.path).read()["id"].to_pylist()]
    return sorted(found)


def test_stage_names_files_by_prefix_slot_and_attempt_and_never_the_same(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        stage = begin(tmp_path, partition_by=(), attempt="task 7/1")
        stage.write(rows(range(3), 1))
        names += [file.path for file in files(stage.finish())]
    assert all(name.startswith("part-q-1-3-task.7.1-") and name.endswith(".parquet") for name in names)
    assert len(set(names)) == 2


def test_stage_of_nothing_makes_no_file(tmp_path: Path) -> None:
    stage = begin(tmp_path)
    stage.write(rows(range(0), 1))
    assert stage.finish() == Manifest("out", SlotAttempt(3, "0"), 0, 0, ())
    assert list(tmp_path.iterdir()) == []


def test_stage_of_values_that_share_the_name_of_a_folder_keeps_them_in_files_of_their_own(tmp_path: Path) -> None:
    stage = begin(tmp_path)
    parts = ["__HIVE_DEFAULT_PARTITION__", None, "__HIVE_DEFAULT_PARTITION__"]
    stage.write(pa.RecordBatch.from_pylist([{"id": n, "part": part} for n, part in enumerate(parts)], schema=SCHEMA))
    staged = files(stage.finish())
    found = {one.partition_values: pq.ParquetFile(tmp_path / one.path).read()["id"].to_pylist() for one in staged}
    assert found == {("__HIVE_DEFAULT_PARTITION__",): [0, 2], (None,): [1]}


def test_stage_says_the_size_and_rows_of_each_file(tmp_path: Path) -> None:
    stage = begin(tmp_path)
    stage.write(rows(range(10), 3))
    manifest = stage.finish()
    assert manifest.rows == 10
    for file in files(manifest):
        assert file.size_bytes == (tmp_path / file.path).stat().st_size
        assert file.rows == pq.read_metadata(tmp_path / file.path).num_rows
    assert manifest.size_bytes == sum(file.size_bytes for file in files(manifest))


def test_stage_bounds_its_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "ROW_GROUP_ROWS", 100)
    stage = begin(tmp_path, partition_by=())
    for low in range(0, 1000, 50):
        stage.write(rows(range(low, low + 50), 1))
    [file] = files(stage.finish())
    footer = pq.read_metadata(tmp_path / file.path)
    assert [footer.row_group(n).num_rows for n in range(footer.num_row_groups)] == [100] * 10


def test_stage_with_more_values_than_open_files_keeps_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "OPEN_FILES", 4)
    monkeypatch.setattr(staging, "WAITING_BYTES", 500)
    stage = begin(tmp_path)
    for low in range(0, 2000, 100):
        stage.write(rows(range(low, low + 100), 20))
        assert len(stage._files._open) <= 4
        assert sum(waiting.size_bytes for waiting in stage._files._waiting.values()) <= 500
    manifest = stage.finish()
    assert read(tmp_path, manifest) == list(range(2000))
    assert {file.partition_values for file in files(manifest)} == {(f"p{n}",) for n in range(20)}


def test_stage_with_many_values_that_fit_in_memory_makes_one_file_each(tmp_path: Path) -> None:
    stage = begin(tmp_path)
    for low in range(0, 1000, 100):
        stage.write(rows(range(low, low + 100), 300))
    manifest = stage.finish()
    assert len(files(manifest)) == 300
    assert read(tmp_path, manifest) == list(range(1000))


def test_stage_of_a_null_in_a_required_column_is_refused(tmp_path: Path) -> None:
    stage = begin(tmp_path)
    loose = pa.schema([pa.field("id", pa.int64()), pa.field("part", pa.string())])
    with pytest.raises(TerminalError) as refused:
        stage.write(pa.RecordBatch.from_pylist([{"id": None, "part": "a"}], schema=loose))
        stage.finish()
    assert refused.value.code == "SINK_FAILED"
    stage.abort()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_stage_in_a_folder_that_cannot_be_written_says_what_it_was_doing(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("a file, not a folder")
    stage = begin(tmp_path / "table")
    stage.write(rows(range(3), 1))
    with pytest.raises(TerminalError) as refused:
        stage.finish()
    assert refused.value.summary.startswith("sink out: finishing staged files: ")


def test_stage_through_a_remote_file_system_writes_the_same_files() -> None:
    stage = DeltaStage("out", TableFolder("memory://lake/table"), "part-", SlotAttempt(0, "0"), SCHEMA, ("part",), 32)
    stage.write(rows(range(4), 2))
    manifest = stage.finish()
    import fsspec

    fs = fsspec.filesystem("memory")
    assert [file.size_bytes for file in files(manifest)] == [
        fs.size(f"/lake/table/{file.path}") for file in files(manifest)
    ]
    stage.abort()
    assert not any(fs.exists(f"/lake/table/{file.path}") for file in files(manifest))

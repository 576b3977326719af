"""The end of a Delta log that appends follow: what holds, what loses it, and that a table's size costs nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from tests.committing import commit, holds, last_commit
from tests.tables import ids

from penstock.errors import PenstockError, TerminalError
from penstock.model import BatchToken, OffsetRange, Position, SlotAttempt
from penstock.sinks import DeltaSink
from penstock.sinks.delta import table, tail

ROWS = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string())])


def token(batch_id: int, query: str = "query-1", width: int = 10) -> BatchToken:
    return BatchToken("orders", query, batch_id, (OffsetRange("orders", 0, batch_id * 10, batch_id * 10 + width),))


def ready(path: Path) -> DeltaSink:
    sink = DeltaSink("orders", "out", str(path))
    sink.prepare(ROWS)
    return sink


def land(sink: DeltaSink, batch: BatchToken) -> None:
    stage = sink.stage(batch, SlotAttempt(0, "0"), ROWS)
    stage.write(pa.RecordBatch.from_pylist([{"id": batch.batch_id, "note": "n"}], schema=ROWS))
    commit(sink, batch, [stage.finish()])


def others(path: Path) -> None:
    write_deltalake(str(path), pa.table({"id": [-1], "note": ["other"]}), mode="append")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every look at the whole table."""
    looks: list[str] = []

    class Counted(DeltaTable):  # type: ignore[misc]
        def __init__(self, *given: object, **named: object) -> None:
            looks.append("open")
            super().__init__(*given, **named)

        def update_incremental(self) -> None:
            looks.append("update")
            super().update_incremental()

    monkeypatch.setattr(table, "DeltaTable", Counted)
    return looks


def test_appends_behind_the_first_do_not_look_at_the_whole_table(tmp_path: Path, opened: list[str]) -> None:
    sink = ready(tmp_path)
    land(sink, token(0))
    opened.clear()
    for batch_id in range(1, 8):
        assert not holds(sink, token(batch_id))
        land(sink, token(batch_id))
        assert holds(sink, token(batch_id))
    assert opened == []
    assert ids(tmp_path) == list(range(8))


def test_append_that_another_writer_gets_ahead_of_lands_behind_it_once(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    for batch_id in range(3):
        land(sink, token(batch_id))
        others(tmp_path)
    assert ids(tmp_path) == [-1, -1, -1, 0, 1, 2]


def test_batch_of_a_second_driver_is_seen_by_the_first(tmp_path: Path) -> None:
    first, second = ready(tmp_path), ready(tmp_path)
    land(first, token(0))
    land(second, token(1))
    assert holds(first, token(1))
    land(first, token(1))
    assert ids(tmp_path) == [0, 1]
    with pytest.raises(TerminalError) as refused:
        holds(first, token(1, width=7))
    assert refused.value.code == "SINK_TOKEN_MISMATCH"


def test_column_added_by_another_is_noticed_before_the_next_append(tmp_path: Path, opened: list[str]) -> None:
    sink = ready(tmp_path)
    land(sink, token(0))
    opened.clear()
    DeltaTable(tmp_path).alter.add_columns([Field("more", PrimitiveType("long"))])
    land(sink, token(1))
    assert opened
    assert ids(tmp_path) == [0, 1]


def test_restore_after_the_tail_began_is_noticed(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    for batch_id in range(3):
        land(sink, token(batch_id))
    DeltaTable(tmp_path).restore(2)
    with pytest.raises(TerminalError) as refused:
        holds(sink, token(3))
    assert refused.value.code == "TARGET_WENT_BACK"


def test_table_removed_under_the_tail_is_told(tmp_path: Path) -> None:
    sink = ready(tmp_path / "t")
    land(sink, token(0))
    stage = sink.stage(token(1), SlotAttempt(0, "0"), ROWS)
    stage.write(pa.RecordBatch.from_pylist([{"id": 1, "note": "n"}], schema=ROWS))
    staged = stage.finish()
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(PenstockError) as refused:
        commit(sink, token(1), [staged])
    assert refused.value.code == "SINK_TABLE_GONE"


def test_log_is_checkpointed_and_read_alike_by_delta_rs(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    for batch_id in range(25):
        land(sink, token(batch_id))
    checkpoints = sorted((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))
    assert len(checkpoints) == 2
    table = DeltaTable(tmp_path)
    assert table.transaction_version("orders/out/query-1") == 24
    assert len(table.file_uris()) == 25
    assert last_commit(DeltaSink("orders", "out", str(tmp_path))) == token(24)


def test_log_of_many_files_is_checkpointed_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_FILES_A_COMMIT", 1)
    sink = ready(tmp_path)
    for batch_id in range(60):
        land(sink, token(batch_id))
    versions = [int(path.name[:20]) for path in sorted((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))]
    assert versions == [10, 20, 40]


def test_commit_that_another_writer_was_before_lands_behind_it(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    land(sink, token(0))
    stage = sink.stage(token(1), SlotAttempt(0, "0"), ROWS)
    stage.write(pa.RecordBatch.from_pylist([{"id": 1, "note": "n"}], schema=ROWS))
    held = sink.position()
    others(tmp_path)
    sink.land(Position.after(held, token(1)), [stage.finish()], held)
    assert ids(tmp_path) == [-1, 0, 1]

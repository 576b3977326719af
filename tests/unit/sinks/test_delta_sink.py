"""What is Delta's own: history, RESTORE, tables that change under a running pipeline, names of files."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from tests.committing import commit, holds, last_commit
from tests.tables import ids, read_table

from penstock.errors import MissingError, TerminalError, TransientError
from penstock.model import BatchToken, OffsetRange, Position, SlotAttempt, TopicPartition
from penstock.sinks import DeltaSink
from penstock.sinks.delta.failures import sink_failure

ROWS = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string())])


def token(batch_id: int, query: str = "query-1") -> BatchToken:
    return BatchToken("orders", query, batch_id, (OffsetRange("orders", 0, batch_id * 10, batch_id * 10 + 10),))


def ready(path: Path) -> DeltaSink:
    sink = DeltaSink("orders", "out", str(path))
    sink.prepare(ROWS)
    return sink


def land(sink: DeltaSink, batch: BatchToken) -> None:
    stage = sink.stage(batch, SlotAttempt(0, "0"), ROWS)
    stage.write(pa.RecordBatch.from_pylist([{"id": batch.batch_id, "note": "n"}], schema=ROWS))
    commit(sink, batch, [stage.finish()])


def entry(path: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "_delta_log" / f"{version:020}.json").read_text().splitlines()]


def transactions(path: Path, version: int) -> dict[str, int]:
    return {action["txn"]["appId"]: action["txn"]["version"] for action in entry(path, version) if "txn" in action}


def test_commit_writes_the_position_its_transactions_and_a_blind_append_into_one_log_entry(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    land(sink, token(3))
    actions = {kind: body for action in entry(tmp_path, 1) for kind, body in action.items()}
    assert set(actions) == {"commitInfo", "add", "txn"}
    info = actions["commitInfo"]
    assert (info["penstock.pipeline"], info["penstock.sink"], info["isBlindAppend"]) == ("orders", "out", True)
    assert Position.from_json(info["penstock.token"]) == Position.first(token(3))
    own = {"orders/out": 1, "orders/out//number": 1, "orders/out/query-1": 3}
    assert transactions(tmp_path, 1) == {**own, "orders/out/orders/0": 40}
    assert actions["add"]["path"].startswith(f"part-{token(3).label}-")


def test_commit_names_only_the_partitions_whose_end_it_changes(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    ranges = [(0, 0, 5), (1, 0, 7)], [(0, 5, 6), (1, 7, 7)]
    for batch_id, parts in enumerate(ranges):
        both = tuple(OffsetRange("a/b%", *part) for part in parts)
        commit(sink, BatchToken("orders", "query-1", batch_id, both), [])
    own = {"orders/out": 2, "orders/out//number": 2, "orders/out/query-1": 1}
    assert transactions(tmp_path, 2) == {**own, "orders/out/a%2Fb%25/0": 6}


def test_table_that_several_pipelines_make_at_once_is_made_for_all_of_them(tmp_path: Path) -> None:
    """With columns for which the protocol is raised behind the first commit: there is more than one to collide at."""
    shared = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("seen_at", pa.timestamp("us"))])
    for turn in range(12):
        sinks = [DeltaSink(name, "quarantine", str(tmp_path / f"{turn}")) for name in ("a", "b", "c", "d")]
        together = threading.Barrier(len(sinks))

        def prepare(sink: DeltaSink, together: threading.Barrier = together) -> None:
            together.wait()
            sink.prepare(shared)

        with ThreadPoolExecutor(len(sinks)) as pool:
            list(pool.map(prepare, sinks))
        features = DeltaTable(tmp_path / f"{turn}").protocol().writer_features
        assert features is not None and {"timestampNtz", "invariants"} <= set(features)


def test_restore_to_before_a_batch_the_position_is_the_newest_that_is_left(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    for batch_id in range(3):
        land(sink, token(batch_id))
    DeltaTable(tmp_path).restore(2)
    held = sink.position()
    assert held is not None
    assert (held.last, held.next, held.number) == (token(1), {TopicPartition("orders", 0): 20}, 2)
    assert not holds(sink, token(2))
    with pytest.raises(TerminalError) as refused:
        holds(sink, token(3))
    assert refused.value.code == "TARGET_WENT_BACK"
    assert refused.value.context["missing"] == "orders[0] 20-30"


def test_restore_to_before_the_first_batch_leaves_a_position_of_nothing(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    for batch_id in range(2):
        land(sink, token(batch_id))
    DeltaTable(tmp_path).restore(0)
    held = sink.position()
    assert held == Position.nothing_left(Position.after(Position.first(token(0)), token(1)))
    assert last_commit(sink) is None
    with pytest.raises(TerminalError) as refused:
        land(sink, token(2))
    assert refused.value.code == "TARGET_WENT_BACK"
    assert ids(tmp_path) == []


def test_batches_that_a_restore_took_back_are_written_again_once(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    for batch_id in range(3):
        land(sink, token(batch_id))
    DeltaTable(tmp_path).restore(2)
    land(sink, token(2))
    land(sink, token(2))
    land(sink, token(3))
    assert ids(tmp_path) == [0, 1, 2, 3]
    assert DeltaTable(tmp_path).transaction_version("orders/out") == 5, "RESTORE does not take the counter back"


def test_last_commit_after_a_restore_is_the_newest_that_is_left(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    for batch_id in range(3):
        land(sink, token(batch_id))
    DeltaTable(tmp_path).restore(2)
    assert last_commit(sink) == token(1)
    taken_over = BatchToken("orders", "query-2", 0, token(2).ranges)
    land(sink, taken_over)
    assert last_commit(sink) == taken_over
    assert ids(tmp_path) == [0, 0, 1]


def test_restore_that_is_undone_by_another_changes_nothing(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    for batch_id in range(3):
        land(sink, token(batch_id))
    DeltaTable(tmp_path).restore(1)
    assert last_commit(sink) == token(0)
    DeltaTable(tmp_path).restore(3)
    assert holds(sink, token(2))
    assert not holds(sink, token(3))
    assert last_commit(sink) == token(2)


def test_restore_to_the_newest_batch_itself_takes_nothing_back(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    land(sink, token(0))
    write_deltalake(tmp_path, pa.table({"id": [99], "note": ["x"]}), mode="append")
    DeltaTable(tmp_path).restore(1)
    assert holds(sink, token(0))
    assert last_commit(sink) == token(0)


def test_restore_to_a_time_in_an_unknown_zone_is_refused_rather_than_guessed(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    land(sink, token(0))
    restore = {
        "commitInfo": {
            "timestamp": 1,
            "operation": "RESTORE",
            "operationParameters": {"version": "null", "timestamp": "2026-01-01 00:00:00"},
        }
    }
    (tmp_path / "_delta_log" / f"{2:020}.json").write_text(json.dumps(restore))
    with pytest.raises(TerminalError) as refused:
        last_commit(sink)
    assert refused.value.code == "TARGET_WENT_BACK"
    assert "TO VERSION AS OF n" in str(refused.value.hint)


def test_token_before_many_commits_of_others_is_found(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    land(sink, token(5))
    for _ in range(70):
        DeltaTable(tmp_path).create_write_transaction(
            [], "append", DeltaTable(tmp_path).schema(), commit_properties=CommitProperties()
        )
    assert last_commit(sink) == token(5)
    assert holds(DeltaSink("orders", "out", str(tmp_path)), token(5))


def test_batch_survives_compaction_vacuum_and_log_checkpoint(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    for batch_id in range(4):
        land(sink, token(batch_id))
    table = DeltaTable(tmp_path)
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table.create_checkpoint()
    assert holds(DeltaSink("orders", "out", str(tmp_path)), token(3))
    land(sink, token(4))
    assert ids(tmp_path) == [0, 1, 2, 3, 4]


def test_discard_after_compaction_keeps_files_that_time_travel_needs(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    land(sink, token(0))
    DeltaTable(tmp_path).optimize.compact()
    sink.discard(token(0), [])
    assert read_table(tmp_path, version=1)["id"].to_pylist() == [0]


def test_commit_after_someone_adds_a_column_goes_on(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    land(sink, token(0))
    DeltaTable(tmp_path).alter.add_columns([Field("more", PrimitiveType("integer"), nullable=True)])
    land(sink, token(1))
    assert ids(tmp_path) == [0, 1]


def test_commit_after_the_table_was_replaced_by_another_schema_is_refused(tmp_path: Path) -> None:
    sink = ready(tmp_path)
    land(sink, token(0))
    write_deltalake(tmp_path, pa.table({"id": ["text"]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(MissingError) as refused:
        land(sink, token(1))
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"
    assert read_table(tmp_path).num_rows == 1


def test_commit_without_a_table_is_refused(tmp_path: Path) -> None:
    sink = DeltaSink("orders", "out", str(tmp_path / "gone"))
    with pytest.raises(TerminalError) as refused:
        commit(sink, token(0), [])
    assert refused.value.code == "SINK_TABLE_GONE"


def test_statistics_are_kept_for_as_many_columns_as_the_table_says(tmp_path: Path) -> None:
    ready(tmp_path)
    DeltaTable(tmp_path).alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "1"})
    land(ready(tmp_path), token(0))
    [stats] = [
        json.loads(json.loads(line)["add"]["stats"])
        for line in (tmp_path / "_delta_log" / f"{2:020}.json").read_text().splitlines()
        if "add" in json.loads(line)
    ]
    assert stats["nullCount"] == {"id": 0}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionResetError("reset"), TransientError),
        (TimeoutError("late"), TransientError),
        (OSError("Generic S3 error: 503 Slow Down"), TransientError),
        (PermissionError(13, "no"), TerminalError),
        (OSError(28, "no space left"), TerminalError),
        (FileNotFoundError(2, "none"), TerminalError),
    ],
)
def test_failure_by_its_cause_says_whether_to_try_again(error: Exception, kind: type[Exception]) -> None:
    assert type(sink_failure("out", "committing batch 3", error)) is kind

"""Delta merge and Spark-only tables with a real Spark: what the contract suite does not ask of every sink."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.committing import commit, holds, last_commit
from tests.contract.kit_delta_merge_spark import LosingAnswer, Overtaken
from tests.tables import read_table

from penstock.contracts import SqlEngine
from penstock.errors import MissingError, TerminalError, TransientError
from penstock.model import (
    COORDINATES,
    COORDINATES_FIELD,
    DELETES,
    BatchToken,
    MergeRules,
    OffsetRange,
    Position,
    SlotAttempt,
    TopicPartition,
)
from penstock.sinks.delta import DeltaMergeSink, DeltaSink
from penstock.spark.sql import SparkSql

pytestmark = pytest.mark.services

START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = pa.schema(
    [pa.field("id", pa.int64()), pa.field("day", pa.date32()), pa.field("note", pa.string()), COORDINATES_FIELD]
)
TOMBSTONES = pa.schema([ROWS.field("id"), COORDINATES_FIELD, pa.field(DELETES, pa.bool_())])
BY_ID = MergeRules(keys=("id",))
BY_ID_AND_DAY = MergeRules(keys=("id",), prune_by=("day",))


@pytest.fixture(scope="module")
def engine(spark: Any) -> SqlEngine:
    return SparkSql(spark)


def token(batch_id: int, query: str = "query-1") -> BatchToken:
    return BatchToken("orders", query, batch_id, (OffsetRange("orders", 0, batch_id * 100, batch_id * 100 + 100),))


def rows_of(batch: BatchToken, rows: Iterable[dict[str, Any]], schema: pa.Schema = ROWS) -> pa.RecordBatch:
    """Rows at the first offsets of the batch."""
    [taken] = batch.ranges
    made = []
    for offset, row in enumerate(rows, taken.start):
        at = {"topic": "orders", "partition": 0, "offset": offset, "timestamp": START + timedelta(seconds=offset)}
        made.append({"note": f"at {offset}", COORDINATES: at, **row})
    return pa.RecordBatch.from_pylist(made, schema=schema)


def land(
    sink: DeltaMergeSink | DeltaSink, batch: BatchToken, rows: Iterable[dict[str, Any]], schema: pa.Schema = ROWS
) -> None:
    stage = sink.stage(batch, SlotAttempt(0, "0"), schema)
    assert not stage.write(rows_of(batch, rows, schema))
    commit(sink, batch, [stage.finish()])


def merging(path: Path, engine: SqlEngine, rules: MergeRules = BY_ID, **settings: Any) -> DeltaMergeSink:
    """A sink that leaves even the smallest batch to Spark."""
    sink = DeltaMergeSink("orders", "out", str(path), rules, **{"driver_bytes": 0, **settings})
    sink.use(engine)
    return sink


def prepared(path: Path, engine: SqlEngine, rules: MergeRules = BY_ID, **settings: Any) -> DeltaMergeSink:
    schema = settings.pop("schema", ROWS)
    sink = merging(path, engine, rules, **settings)
    sink.prepare(schema)
    return sink


def filled(path: Path, batches: Iterable[Iterable[dict[str, Any]]], rules: MergeRules = BY_ID, **settings: Any) -> None:
    """The table with these batches in it, merged by delta-rs: what was there before is not what a test is about."""
    sink = DeltaMergeSink("orders", "out", str(path), rules, **settings)
    sink.prepare(ROWS)
    for batch_id, rows in enumerate(batches):
        land(sink, token(batch_id), rows)


def notes(path: Path) -> dict[int, str]:
    table = read_table(path, ["id", "note"])
    assert len(set(table["id"].to_pylist())) == table.num_rows, "a key is there twice"
    return dict(zip(table["id"].to_pylist(), table["note"].to_pylist(), strict=True))


def metrics(path: Path) -> dict[str, int]:
    noted, entry = DeltaTable(path).history(2)
    assert (noted["operation"], entry["operation"]) == ("WRITE", "MERGE")
    return {name: int(value) for name, value in entry["operationMetrics"].items()}


def hide(path: Path, kept: Callable[[dict[str, Any]], bool]) -> None:
    """Take the data files away that `kept` does not want: whoever opens one of them fails."""
    actions = pa.table(DeltaTable(path).get_add_actions(flatten=True)).to_pylist()
    for action in actions:
        if not kept(action):
            (path / action["path"]).unlink()


def log_entry(path: Path, version: int) -> dict[str, Any]:
    """The last action of each kind in a version of the log."""
    lines = (path / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    return {kind: body for line in lines for kind, body in json.loads(line).items()}


@pytest.mark.long
def test_merge_writes_token_transaction_and_rows_into_one_log_entry(tmp_path: Path, engine: SqlEngine) -> None:
    sink = prepared(tmp_path, engine)
    land(sink, token(3), [{"id": 1}])
    actions = log_entry(tmp_path, 1)
    assert set(actions) == {"commitInfo", "add", "txn"}
    said = json.loads(actions["commitInfo"]["userMetadata"])
    assert (said["penstock.pipeline"], said["penstock.sink"]) == ("orders", "out")
    assert Position.from_json(said["penstock.token"]) == Position.first(token(3))
    assert (actions["txn"]["appId"], actions["txn"]["version"]) == ("orders/out", 1)


@pytest.mark.long
def test_merge_is_followed_by_an_entry_that_outlives_the_clean_up_of_the_log(tmp_path: Path, engine: SqlEngine) -> None:
    sink = prepared(tmp_path, engine)
    land(sink, token(3), [{"id": 1}])
    write_deltalake(tmp_path, read_table(tmp_path), mode="append")
    DeltaTable(tmp_path).create_checkpoint()
    for version in range(3):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    held = prepared(tmp_path, engine).position()
    assert held is not None
    assert (held.next, held.last.batch_id) == ({TopicPartition("orders", 0): 400}, 3)


@pytest.mark.long
def test_merge_leaves_no_staged_file_and_no_setting_behind(tmp_path: Path, engine: SqlEngine) -> None:
    land(prepared(tmp_path, engine), token(0), [{"id": 1}])
    assert list((tmp_path / "_penstock" / "staged").iterdir()) == []
    [left] = engine.run("SELECT count(*) AS n FROM (SELECT 1 AS x)")
    assert left == {"n": 1}
    [unset] = engine.run("SET spark.databricks.delta.write.txnVersion")
    assert unset["value"] == "<undefined>"


@pytest.mark.long
def test_merge_into_a_path_with_special_characters_lands(tmp_path: Path, engine: SqlEngine) -> None:
    path = tmp_path / "ünï it's `so` a=b+c"
    sink = prepared(path, engine)
    land(sink, token(0), [{"id": 1}, {"id": 2}])
    land(sink, token(1), [{"id": 2}])
    assert notes(path) == {1: "at 0", 2: "at 100"}


NASTY = [
    "",
    "it's",
    'say "no"',
    "back\\slash",
    "\\",
    "${env:HOME}",
    "${spark.app.name}",
    "-- no",
    "水\n\t\u0001",
    "%_?",
]


@pytest.mark.long
def test_merge_pruned_by_texts_of_every_kind_finds_each_again(tmp_path: Path, engine: SqlEngine) -> None:
    schema = ROWS.append(pa.field("text", pa.string()))
    sink = prepared(tmp_path, engine, MergeRules(keys=("text",), prune_by=("text",)), schema=schema)
    for batch_id in range(2):
        land(sink, token(batch_id), [{"id": n, "text": text} for n, text in enumerate(NASTY)], schema)
    table = read_table(tmp_path)
    assert dict(zip(table["text"].to_pylist(), table["note"].to_pylist(), strict=True)) == {
        text: f"at {100 + n}" for n, text in enumerate(NASTY)
    }
    assert table.num_rows == len(NASTY)


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [-128, 0, 127]),
    "small": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1]),
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "time": (pa.timestamp("us", tz="UTC"), [datetime(1, 1, 1, tzinfo=UTC), START + timedelta(microseconds=1)]),
    "local": (pa.timestamp("us"), [datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2026, 1, 1)]),
    "float": (pa.float64(), [float("nan"), -1.5, 0.0]),
    "flag": (pa.bool_(), [True, False]),
    "bytes": (pa.binary(), [b"", b"\xff"]),
}


@pytest.mark.long
def test_merge_by_keys_of_every_type_finds_the_extremes_again(tmp_path: Path, engine: SqlEngine) -> None:
    schema = pa.schema([*ROWS, *(pa.field(name, kind) for name, (kind, _) in KEYS.items())])
    sink = prepared(tmp_path, engine, MergeRules(keys=tuple(KEYS)), schema=schema)
    rows = [{name: values[n % len(values)] for name, (_, values) in KEYS.items()} for n in range(6)]
    for batch_id in range(2):
        land(sink, token(batch_id), rows, schema)
    assert sorted(read_table(tmp_path)["note"].to_pylist()) == [f"at {100 + n}" for n in range(6)]


@pytest.mark.long
def test_merge_reads_only_files_whose_keys_the_batch_can_touch(tmp_path: Path, engine: SqlEngine) -> None:
    filled(tmp_path, ([{"id": 10 * batch_id + n} for n in range(10)] for batch_id in range(4)))
    sink = prepared(tmp_path, engine)
    assert len(DeltaTable(tmp_path).file_uris()) == 4
    hide(tmp_path, lambda action: action["min.id"] == 20)
    land(sink, token(4), [{"id": 23}, {"id": 27, DELETES: True}], pa.schema([*ROWS, pa.field(DELETES, pa.bool_())]))
    assert (metrics(tmp_path)["numTargetFilesRemoved"], metrics(tmp_path)["numTargetRowsDeleted"]) == (1, 1)


DAYS = [{"id": n, "day": date(2026, 1, 1 + n)} for n in range(6)]
"""Batch 0: the keys 0, 1, ... each on a day of its own."""


def test_merge_is_one_log_entry_and_opens_no_other_partition_and_no_file_of_other_keys(
    tmp_path: Path, engine: SqlEngine
) -> None:
    """Each day has two files, with the keys 0, 1, ... and 10, 11, ... Two of the second ones are left."""
    later = [{**row, "id": 10 + row["id"]} for row in DAYS]
    filled(tmp_path, [DAYS, later], BY_ID_AND_DAY, partition_by=["day"])
    sink = prepared(tmp_path, engine, BY_ID_AND_DAY, partition_by=["day"])
    assert len(DeltaTable(tmp_path).file_uris()) == 12
    hide(tmp_path, lambda action: action["min.id"] in (10, 15))
    version = DeltaTable(tmp_path).version()
    changed = [{"id": 10, "day": date(2026, 1, 1)}, {"id": 15, "day": date(2026, 1, 6), DELETES: True}]
    land(sink, token(2), changed, pa.schema([*ROWS, pa.field(DELETES, pa.bool_())]))
    found = metrics(tmp_path)
    assert found["numTargetFilesRemoved"] == 2
    assert (found["numTargetRowsUpdated"], found["numTargetRowsDeleted"]) == (1, 1)
    actions = log_entry(tmp_path, version + 1)
    assert set(actions) == {"commitInfo", "add", "remove", "txn"}
    said = json.loads(actions["commitInfo"]["userMetadata"])
    assert (said["penstock.pipeline"], said["penstock.sink"]) == ("orders", "out")
    assert Position.from_json(said["penstock.token"]).last == token(2)
    assert actions["txn"]["appId"] == "orders/out"


@pytest.mark.long
def test_merge_pruned_by_a_column_opens_no_other_partition(tmp_path: Path, engine: SqlEngine) -> None:
    filled(tmp_path, [DAYS], BY_ID_AND_DAY, partition_by=["day"])
    sink = prepared(tmp_path, engine, BY_ID_AND_DAY, partition_by=["day"])
    hide(tmp_path, lambda action: action["partition.day"] in (date(2026, 1, 1), date(2026, 1, 6)))
    land(sink, token(1), [{"id": 0, "day": date(2026, 1, 1)}, {"id": 5, "day": date(2026, 1, 6)}])
    assert metrics(tmp_path)["numTargetFilesRemoved"] == 2
    assert metrics(tmp_path)["numTargetRowsUpdated"] == 2


@pytest.mark.long
def test_merge_without_a_pruning_column_looks_into_every_partition(tmp_path: Path, engine: SqlEngine) -> None:
    filled(tmp_path, [DAYS], BY_ID, partition_by=["day"])
    sink = prepared(tmp_path, engine, BY_ID, partition_by=["day"])
    hide(tmp_path, lambda action: action["partition.day"] in (date(2026, 1, 1), date(2026, 1, 6)))
    with pytest.raises(TerminalError) as refused:
        land(sink, token(1), [{"id": 0, "day": date(2026, 1, 1)}, {"id": 5, "day": date(2026, 1, 6)}])
    assert refused.value.code == "SINK_FAILED"


@pytest.mark.long
def test_merge_of_a_key_that_moves_to_another_partition_leaves_one_row(tmp_path: Path, engine: SqlEngine) -> None:
    filled(tmp_path, [DAYS], BY_ID, partition_by=["day"])
    sink = prepared(tmp_path, engine, BY_ID, partition_by=["day"])
    land(sink, token(1), [{"id": 2, "day": date(2026, 1, 5)}])
    assert notes(tmp_path)[2] == "at 100"
    moved = read_table(tmp_path, ["id", "day"]).to_pylist()
    assert {"id": 2, "day": date(2026, 1, 5)} in moved


@pytest.mark.long
def test_merge_by_a_key_that_is_the_partition_opens_no_other(tmp_path: Path, engine: SqlEngine) -> None:
    filled(tmp_path, [DAYS], MergeRules(keys=("id", "day")), partition_by=["day"])
    sink = prepared(tmp_path, engine, MergeRules(keys=("id", "day")), partition_by=["day"])
    hide(tmp_path, lambda action: action["partition.day"] == date(2026, 1, 3))
    land(sink, token(1), [{"id": 2, "day": date(2026, 1, 3)}])
    assert metrics(tmp_path)["numTargetRowsUpdated"] == 1


@pytest.mark.long
def test_tombstones_that_lack_the_pruning_column_delete_wherever_the_key_is(tmp_path: Path, engine: SqlEngine) -> None:
    filled(tmp_path, [DAYS], BY_ID_AND_DAY, partition_by=["day"])
    sink = prepared(tmp_path, engine, BY_ID_AND_DAY, partition_by=["day"])
    batch = token(1)
    rows = sink.stage(batch, SlotAttempt(0, "0"), ROWS)
    rows.write(rows_of(batch, [{"id": 0, "day": date(2026, 1, 1)}]))
    dead = sink.stage(batch, SlotAttempt(1, "0"), TOMBSTONES)
    dead.write(rows_of(batch, [{"id": 4, DELETES: True}], TOMBSTONES))
    commit(sink, batch, [rows.finish(), dead.finish()])
    assert sorted(notes(tmp_path)) == [0, 1, 2, 3, 5]


@pytest.mark.long
def test_rows_from_before_the_pruning_column_was_there_are_still_found(tmp_path: Path, engine: SqlEngine) -> None:
    older = ROWS.remove(1)
    land(prepared(tmp_path, engine, schema=older), token(0), [{"id": 1}, {"id": 2}], older)
    sink = prepared(tmp_path, engine, BY_ID_AND_DAY, evolve="add_columns")
    land(sink, token(1), [{"id": 1, "day": date(2026, 1, 1)}])
    assert notes(tmp_path) == {1: "at 100", 2: "at 1"}


@pytest.mark.parametrize("by_spark", [False, pytest.param(True, marks=pytest.mark.long)])
def test_empty_text_as_key_and_partition_is_refused_with_its_coordinates(
    tmp_path: Path, request: pytest.FixtureRequest, by_spark: bool
) -> None:
    rules = MergeRules(keys=("note",))
    sink = DeltaMergeSink("orders", "out", str(tmp_path), rules, partition_by=["note"])
    if by_spark:
        sink = merging(tmp_path, request.getfixturevalue("engine"), rules, partition_by=["note"])
    sink.prepare(ROWS)
    stage = sink.stage(token(0), SlotAttempt(0, "0"), ROWS)
    refused = stage.write(rows_of(token(0), [{"id": 1, "note": ""}, {"id": 2, "note": "a"}, {"id": 3, "note": None}]))
    commit(sink, token(0), [stage.finish()])
    assert sorted((refusal.record.start, refusal.code) for refusal in refused) == [
        (0, "SINK_KEY_NULL"),
        (2, "SINK_KEY_NULL"),
    ]
    assert notes(tmp_path) == {2: "a"}


@pytest.mark.long
def test_deletes_and_insert_only_the_row_behind_a_delete_is_inserted(tmp_path: Path, engine: SqlEngine) -> None:
    deleting = pa.schema([*ROWS, pa.field(DELETES, pa.bool_())])
    sink = prepared(tmp_path, engine, MergeRules(keys=("id",), insert_only=True))
    land(sink, token(0), [{"id": 1, DELETES: True}, {"id": 1}, {"id": 1}], deleting)
    land(sink, token(1), [{"id": 1, DELETES: True}], deleting)
    assert notes(tmp_path) == {1: "at 1"}


@pytest.mark.long
def test_when_newer_a_delete_without_a_value_leaves_a_newer_row(tmp_path: Path, engine: SqlEngine) -> None:
    deleting = pa.schema([*ROWS, pa.field(DELETES, pa.bool_())])
    sink = prepared(tmp_path, engine, MergeRules(keys=("id",), when_newer="day"))
    land(sink, token(0), [{"id": 1, "day": date(2026, 1, 9)}, {"id": 2, "day": date(2026, 1, 9)}, {"id": 3}])
    deletes: list[dict[str, Any]] = [{"id": 1, "day": None}, {"id": 2, "day": date(2026, 1, 9)}, {"id": 3, "day": None}]
    land(sink, token(1), [{**row, DELETES: True} for row in deletes], deleting)
    assert notes(tmp_path) == {1: "at 0"}


@pytest.mark.long
def test_rows_without_coordinates_merge_by_their_keys(tmp_path: Path, engine: SqlEngine) -> None:
    counts = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string())])
    sink = prepared(tmp_path, engine, schema=counts)
    land(sink, token(0), [{"id": 1, "note": "a"}, {"id": 2, "note": "a"}], counts)
    land(sink, token(1), [{"id": 2, "note": "b"}], counts)
    assert notes(tmp_path) == {1: "a", 2: "b"}
    with pytest.raises(TerminalError) as refused:
        sink.stage(token(2), SlotAttempt(0, "0"), counts).write(rows_of(token(2), [{"id": None}], counts))
    assert refused.value.code == "SINK_KEY_NULL"


@pytest.mark.long
def test_table_with_more_columns_and_fields_than_the_rows_keeps_them(tmp_path: Path, engine: SqlEngine) -> None:
    inner = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.int64())])
    held = pa.schema([pa.field("id", pa.int64()), pa.field("item", inner), pa.field("more", pa.string())])
    write_deltalake(tmp_path, pa.Table.from_pylist([{"id": 1, "item": {"a": 1, "b": 2}, "more": "m"}], schema=held))
    ours = pa.schema([pa.field("id", pa.int64()), pa.field("item", pa.struct([pa.field("a", pa.int64())]))])
    sink = prepared(tmp_path, engine, schema=ours)
    land(sink, token(0), [{"id": 1, "item": {"a": 5}}, {"id": 2, "item": {"a": 6}}], ours)
    assert sorted(read_table(tmp_path).to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "item": {"a": 5, "b": None}, "more": "m"},
        {"id": 2, "item": {"a": 6, "b": None}, "more": None},
    ]


@pytest.mark.long
def test_commit_of_another_writer_during_a_merge_conflicts_and_the_next_try_lands(tmp_path: Path, spark: Any) -> None:
    land(prepared(tmp_path / "t", SparkSql(spark)), token(0), [{"id": 1}, {"id": 3}])
    sink = prepared(tmp_path / "t", meddling(spark, tmp_path / "t", times=1))
    land(sink, token(1), [{"id": 1}, {"id": 2}])
    assert notes(tmp_path / "t") == {1: "at 100", 2: "at 101", 3: "at 1+"}
    operations = [entry["operation"] for entry in DeltaTable(tmp_path / "t").history()]
    assert operations == ["WRITE", "MERGE", "UPDATE", "WRITE", "MERGE", "CREATE TABLE"]


@pytest.mark.long
def test_merge_that_always_conflicts_is_given_up_as_transient(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sinks.commit.TRIES", 2)
    land(prepared(tmp_path / "t", SparkSql(spark)), token(0), [{"id": 1}])
    sink = prepared(tmp_path / "t", meddling(spark, tmp_path / "t", times=1000))
    with pytest.raises(TransientError) as refused:
        land(sink, token(1), [{"id": 1}])
    assert refused.value.code == "SINK_COMMIT_CONFLICT"
    assert len(notes(tmp_path / "t")[1]) >= len("at 0") + 2
    assert len(list((tmp_path / "t" / "_penstock" / "staged").iterdir())) == 1


@pytest.mark.long
def test_restore_after_merges_is_noticed_and_the_newest_left_is_found(tmp_path: Path, engine: SqlEngine) -> None:
    filled(tmp_path, [[{"id": 0}]])
    sink = prepared(tmp_path, engine)
    for batch_id in (1, 2):
        land(sink, token(batch_id), [{"id": batch_id}])
    engine.run(f"RESTORE TABLE delta.`{tmp_path}` TO VERSION AS OF 2")
    with pytest.raises(TerminalError) as refused:
        holds(sink, token(3))
    assert refused.value.code == "TARGET_WENT_BACK"
    assert last_commit(sink) == token(1)
    assert sorted(notes(tmp_path)) == [0, 1]
    # Delta has seen the transaction of this batch, and would leave it out.
    land(sink, token(2), [{"id": 2}])
    assert sorted(notes(tmp_path)) == [0, 1, 2]


@pytest.mark.long
def test_vacuum_and_optimize_leave_staged_files_and_tokens_alone(tmp_path: Path, engine: SqlEngine) -> None:
    sink = prepared(tmp_path, engine)
    land(sink, token(0), [{"id": 1}])
    batch = token(1)
    stage = sink.stage(batch, SlotAttempt(0, "0"), ROWS)
    stage.write(rows_of(batch, [{"id": 1}]))
    manifest = stage.finish()
    engine.run(
        f"OPTIMIZE delta.`{tmp_path}`",
        f"VACUUM delta.`{tmp_path}` RETAIN 0 HOURS",
        settings={
            "spark.databricks.delta.retentionDurationCheck.enabled": "false",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # else 10,000 tasks list one folder
        },
    )
    DeltaTable(tmp_path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    commit(sink, batch, [manifest])
    assert notes(tmp_path) == {1: "at 100"}


@pytest.mark.long
def test_append_only_table_takes_inserts_and_no_merge(tmp_path: Path, engine: SqlEngine) -> None:
    engine.run(
        f"CREATE TABLE delta.`{tmp_path}/t` (id BIGINT, note STRING) USING delta "
        "TBLPROPERTIES ('delta.appendOnly' = 'true')"
    )
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string())])
    for look in (merging(tmp_path / "t", engine).check, merging(tmp_path / "t", engine).prepare):
        with pytest.raises(MissingError) as refused:
            look(schema)
        assert refused.value.code == "SINK_TABLE_UNSUPPORTED"
    sink = prepared(tmp_path / "t", engine, MergeRules(keys=("id",), insert_only=True), schema=schema)
    land(sink, token(0), [{"id": 1, "note": "a"}, {"id": 1, "note": "b"}], schema)
    land(sink, token(1), [{"id": 1, "note": "c"}], schema)
    assert len(notes(tmp_path / "t")) == 1


SPARK_ONLY = {
    "row tracking": "TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
    "column mapping": "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true')",
    "clustering": "CLUSTER BY (id)",
}
PAIR = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string()), COORDINATES_FIELD])


def make_spark_only(path: Path, engine: SqlEngine, kind: str) -> None:
    at = "struct<topic: string, partition: int, offset: bigint, timestamp: timestamp>"
    engine.run(f"CREATE TABLE delta.`{path}` (id BIGINT, note STRING, `_penstock` {at}) USING delta {SPARK_ONLY[kind]}")


def read_by_spark(path: Path, engine: SqlEngine) -> list[int]:
    return [row["id"] for row in engine.run(f"SELECT id FROM delta.`{path}` ORDER BY id")]


def appending(path: Path, engine: SqlEngine) -> DeltaSink:
    sink = DeltaSink("orders", "out", str(path))
    assert sink.needs_sql
    sink.use(engine)
    sink.prepare(PAIR)
    return sink


@pytest.mark.long
def test_spark_only_table_is_appended_to_through_spark(tmp_path: Path, engine: SqlEngine) -> None:
    make_spark_only(tmp_path / "t", engine, "clustering")
    sink = appending(tmp_path / "t", engine)
    assert str(sink.note).startswith("written through Spark")
    sink.use(LosingAnswer(engine, landed=True))
    land(sink, token(0), [{"id": 1}, {"id": 2}], PAIR)
    assert read_by_spark(tmp_path / "t", engine) == [1, 2]
    assert last_commit(appending(tmp_path / "t", engine)) == token(0)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["clustering", "column mapping", "row tracking"])
def test_spark_only_table_is_appended_to_exactly_once(tmp_path: Path, engine: SqlEngine, kind: str) -> None:
    path = tmp_path / "t"
    make_spark_only(path, engine, kind)
    sink = appending(path, engine)
    assert str(sink.note).startswith("written through Spark")
    land(sink, token(0), [{"id": 1}, {"id": 2}], PAIR)
    land(appending(path, engine), token(0), [{"id": 1}, {"id": 2}], PAIR)
    land(appending(path, LosingAnswer(engine, landed=True)), token(1), [{"id": 3}], PAIR)
    land(appending(path, LosingAnswer(engine, landed=False)), token(2), [{"id": 4}], PAIR)
    overtaken = appending(path, Overtaken(engine, lambda: land(sink, token(3), [{"id": 5}], PAIR)))
    land(overtaken, token(3), [{"id": 5}], PAIR)
    commit(sink, token(4), [])
    assert read_by_spark(path, engine) == [1, 2, 3, 4, 5]
    assert last_commit(appending(path, engine)) == token(4)
    for batch_id in (0, 3):
        sink.discard(token(batch_id), [])
    assert list((path / "_penstock" / "staged").iterdir()) == []


@pytest.mark.long
def test_two_drivers_of_two_queries_merging_by_spark_exactly_one_lands(tmp_path: Path, engine: SqlEngine) -> None:
    other = prepared(tmp_path, engine)
    filled(tmp_path, [[{"id": 0}]])
    taken_over = BatchToken("orders", "query-2", 0, token(1).ranges)
    slow = prepared(tmp_path, Overtaken(engine, lambda: land(other, taken_over, [{"id": 1, "note": "other"}])))
    with pytest.raises(TerminalError) as refused:
        land(slow, token(1), [{"id": 1, "note": "slow"}, {"id": 2}])
    assert refused.value.code == "FENCED"
    assert notes(tmp_path) == {0: "at 0", 1: "other"}


@pytest.mark.long
def test_records_held_in_a_table_that_only_spark_reads_are_found_by_it(tmp_path: Path, engine: SqlEngine) -> None:
    make_spark_only(tmp_path / "t", engine, "column mapping")
    sink = prepared(tmp_path / "t", engine, schema=PAIR)
    land(sink, token(0), [{"id": n} for n in range(4)], PAIR)
    engine.run(f"DELETE FROM delta.`{tmp_path}/t` WHERE id = 2")
    assert sink.records_held([OffsetRange("orders", 0, 1, 9)]) == {("orders", 0, 1), ("orders", 0, 3)}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["row tracking", "column mapping"])
def test_spark_only_table_is_merged_into_and_an_empty_batch_is_kept(
    tmp_path: Path, engine: SqlEngine, kind: str
) -> None:
    make_spark_only(tmp_path / "t", engine, kind)
    sink = prepared(tmp_path / "t", engine, schema=PAIR)
    land(sink, token(0), [{"id": 1}, {"id": 2}], PAIR)
    land(sink, token(1), [{"id": 2}, {"id": 3}], PAIR)
    commit(sink, token(2), [])
    assert read_by_spark(tmp_path / "t", engine) == [1, 2, 3]
    assert last_commit(sink) == token(2)


@pytest.mark.long
def test_spark_only_table_that_lacks_a_column_is_given_it_by_spark(tmp_path: Path, engine: SqlEngine) -> None:
    make_spark_only(tmp_path / "t", engine, "row tracking")
    more = pa.schema([*PAIR, pa.field("more", pa.struct([pa.field("a.b", pa.list_(pa.int64()))]))])
    sink = DeltaSink("orders", "out", str(tmp_path / "t"), evolve="add_columns")
    with pytest.raises(MissingError, match="SINK_TABLE_UNSUPPORTED"):
        sink.prepare(more)
    sink.use(engine)
    sink.prepare(more)
    land(sink, token(0), [{"id": 1, "more": {"a.b": [2]}}], more)
    rows = engine.run(f"SELECT more FROM delta.`file:{tmp_path}/t` WHERE id = 1")
    assert rows == [{"more": {"a.b": [2]}}]


@pytest.mark.long
def test_append_widens_the_table_once_and_goes_on_through_spark(tmp_path: Path, engine: SqlEngine) -> None:
    def rows_with(qty: pa.DataType, *more: pa.Field) -> pa.Schema:
        item = pa.struct([pa.field("qty", qty)])
        return pa.schema([ROWS.field("id"), ROWS.field("day"), pa.field("qty", qty), pa.field("item", item), *more])

    path, narrow, wide = tmp_path / "t", rows_with(pa.int32()), rows_with(pa.int64())
    sink = DeltaSink("orders", "out", str(path), ["day"], "widen", keep_coordinates=False)
    sink.use(engine)
    assert (sink.needs_sql, sink.note) == (True, None)
    sink.prepare(narrow)
    land(sink, token(0), [{"id": 0, "qty": 7, "item": {"qty": 7}}], narrow)
    stage = sink.stage(token(1), SlotAttempt(0, "0"), narrow)
    stage.write(rows_of(token(1), [{"id": 1, "qty": 8}], narrow))
    staged = stage.finish()

    assert sink.changes(wide) == ["widen qty INT -> BIGINT", "widen item.qty INT -> BIGINT"]
    sink.prepare(wide)
    version = DeltaTable(path).version()
    sink.prepare(wide)
    assert DeltaTable(path).version() == version
    assert sink.note == "written through Spark, because the table has typeWidening"
    with pytest.raises(TransientError, match="SINK_TABLE_CHANGED"):
        commit(sink, token(1), [staged])

    land(sink, token(1), [{"id": 1, "qty": 8}], narrow)
    land(sink, token(2), [{"id": 2, "qty": 2**40, "item": {"qty": 2**41}}], wide)
    more = rows_with(pa.int64(), pa.field("extra", pa.string()))
    sink.prepare(more)
    land(sink, token(3), [{"id": 3, "extra": "new"}], more)
    land(sink, token(2), [{"id": 2}], wide)
    found = engine.run(f"SELECT id, qty, item.qty AS inner, extra FROM delta.`file:{path}` ORDER BY id")
    assert [tuple(row.values()) for row in found] == [
        (0, 7, 7, None),
        (1, 8, None, None),
        (2, 2**40, 2**41, None),
        (3, None, None, "new"),
    ]
    assert last_commit(sink) == token(3)


def meddling(spark: Any, path: Path, times: int) -> SqlEngine:
    """An engine during whose statements, so many times, another writer updates every row: the staged rows do it."""

    def meddle(_: int) -> bool:
        done = list(path.parent.glob("meddled-*"))
        if len(done) < times:
            (path.parent / f"meddled-{len(done)}").touch()
            DeltaTable(path).update(updates={"note": "concat(note, '+')"})
        return True

    class Meddling(SparkSql):
        def run(self, *statements: str, **given: Any) -> list[dict[str, Any]]:
            self._session.udf.register("meddle", meddle, "boolean")
            rows = "FROM (SELECT * FROM staged WHERE meddle(id)) AS staged"
            return super().run(*(statement.replace("FROM staged", rows) for statement in statements), **given)

    return Meddling(spark)

"""Delta merge without Spark: what is staged, what is asked of the engine, and what is refused before."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.committing import commit, holds, last_commit

from penstock.errors import MissingError, PenstockError, TerminalError, TransientError
from penstock.model import (
    COORDINATES,
    COORDINATES_FIELD,
    DELETES,
    BatchToken,
    MergeRules,
    OffsetRange,
    Position,
    SlotAttempt,
)
from penstock.sinks.delta import DeltaMergeSink, DeltaSink
from penstock.sinks.delta.beside_stage import StagedDeltaRows
from penstock.sinks.spark_sql import merge_statement

ROWS = pa.schema(
    [pa.field("id", pa.int64()), pa.field("day", pa.date32()), pa.field("note", pa.string()), COORDINATES_FIELD]
)
COMPUTED = pa.schema([*ROWS, pa.field(DELETES, pa.bool_()), pa.field("_penstock_topic", pa.string())])
RULES = MergeRules(keys=("id",), prune_by=("day",))
BATCH = BatchToken("orders", "query-1", 4, (OffsetRange("orders", 0, 40, 50),))


class Recorder:
    """An engine that remembers what it was asked; of a commit it writes the transaction and the metadata alone.

    It fails with `failure`. Where it `skips`, it does as Delta does with a transaction that it has seen: nothing.
    """

    def __init__(self, failure: Exception | None = None, *, skips: bool = False) -> None:
        self.failure = failure
        self.skips = skips
        self.statements: list[str] = []
        self.files: list[str] = []
        self.names: list[str] = []
        self.settings: Mapping[str, str] = {}

    def run(
        self,
        *statements: str,
        files: Sequence[str] = (),
        schema: pa.Schema | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        self.statements += statements
        self.files, self.settings = list(files), settings or {}
        self.names = [] if schema is None else schema.names
        assert all(Path(file.removeprefix("file:")).is_file() for file in files)
        if self.failure is not None:
            raise self.failure
        if not self.skips:
            self._commit(re.findall(r"`file:([^`]*)`", statements[-1])[0])
        return []

    def _commit(self, path: str) -> None:
        said = self.settings["spark.databricks.delta.commitInfo.userMetadata"]
        app_id, version = (self.settings[f"spark.databricks.delta.write.txn{part}"] for part in ("AppId", "Version"))
        actions = [
            {"commitInfo": {"timestamp": 1, "operation": "MERGE", "userMetadata": said}},
            {"txn": {"appId": app_id, "version": int(version), "lastUpdated": 1}},
        ]
        log = Path(path) / "_delta_log" / f"{DeltaTable(path).version() + 1:020}.json"
        log.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def merging(path: Path, engine: Recorder | None = None, **settings: Any) -> DeltaMergeSink:
    sink = DeltaMergeSink("orders", "out", str(path), settings.pop("rules", RULES), **{"driver_bytes": 0, **settings})
    if engine is not None:
        sink.use(engine)
    return sink


def rows(schema: pa.Schema = COMPUTED, **columns: Any) -> pa.RecordBatch:
    at = {"topic": "orders", "partition": 0, "offset": 40, "timestamp": None}
    made = [{"id": n, "day": date(2026, 1, n), "note": "n", COORDINATES: at, **columns} for n in (3, 1, 2)]
    return pa.RecordBatch.from_pylist(made, schema=schema)


def staged(sink: DeltaMergeSink, *parts: pa.RecordBatch, schema: pa.Schema = COMPUTED) -> Any:
    stage = sink.stage(BATCH, SlotAttempt(0, "0"), schema)
    for part in parts:
        assert not stage.write(part)
    return stage.finish()


def test_stage_keeps_coordinates_and_deletes_whatever_the_table_keeps(tmp_path: Path) -> None:
    sink = merging(tmp_path, keep_coordinates=False)
    sink.prepare(COMPUTED)
    assert [field.name for field in DeltaTable(tmp_path).schema().fields] == ["id", "day", "note"]
    manifest = staged(sink, rows())
    [item] = manifest.items
    assert isinstance(item, StagedDeltaRows)
    [path] = item.paths
    file = tmp_path / "_penstock" / "staged" / path
    assert pq.read_schema(file).names == ["id", "day", "note", COORDINATES, DELETES]
    assert (manifest.rows, manifest.size_bytes) == (3, file.stat().st_size)
    assert DeltaTable(tmp_path).version() == 0


def test_stage_says_what_the_rows_touch(tmp_path: Path) -> None:
    sink = merging(tmp_path, rules=MergeRules(keys=("id", "note"), prune_by=("day",)), partition_by=["note"])
    [item] = staged(sink, rows(), rows()).items
    touched = {seen.column: seen for seen in item.touched}
    assert (touched["id"].low, touched["id"].high, touched["id"].values) == (1, 3, None)
    assert touched["note"].values == {"n"}
    assert touched["day"].values == {date(2026, 1, n) for n in (1, 2, 3)}


def test_commit_asks_for_one_merge_with_the_token_and_removes_what_was_staged(tmp_path: Path) -> None:
    engine = Recorder()
    sink = merging(tmp_path, engine)
    sink.prepare(ROWS)
    commit(sink, BATCH, [staged(sink, rows())])
    [statement] = engine.statements
    assert statement.startswith(f"MERGE INTO `delta`.`file:{tmp_path}` AS t ")
    assert engine.names == ["id", "day", "note", COORDINATES, DELETES]
    assert engine.settings["spark.databricks.delta.write.txnAppId"] == "orders/out"
    assert engine.settings["spark.databricks.delta.write.txnVersion"] == "1"
    said = json.loads(engine.settings["spark.databricks.delta.commitInfo.userMetadata"])
    assert Position.from_json(said["penstock.token"]) == Position.first(BATCH)
    assert engine.settings["spark.sql.variable.substitute"] == "false"
    assert list((tmp_path / "_penstock" / "staged").iterdir()) == []


def test_commit_of_an_empty_batch_needs_no_engine(tmp_path: Path) -> None:
    sink = merging(tmp_path)
    sink.prepare(ROWS)
    commit(sink, BATCH, [staged(sink)])
    assert last_commit(merging(tmp_path)) == BATCH


def test_commit_without_an_engine_says_so(tmp_path: Path) -> None:
    sink = merging(tmp_path)
    sink.prepare(ROWS)
    with pytest.raises(TerminalError) as refused:
        commit(sink, BATCH, [staged(sink, rows())])
    assert refused.value.code == "SINK_NEEDS_SPARK"


class JavaClass:
    def __init__(self, name: str, above: JavaClass | None = None) -> None:
        self.getName = lambda: name
        self.getSuperclass = lambda: above


class JavaException:
    """A Java exception as Python sees it: by its class and its cause."""

    def __init__(self, kind: JavaClass, cause: JavaException | None = None) -> None:
        self.getClass = lambda: kind
        self.getCause = lambda: cause


class JavaError(Exception):
    """What Spark raises in Python: the text of the Java exception, and the exception itself."""

    def __init__(self, text: str, *kinds: str | JavaClass, condition: str | None = None) -> None:
        super().__init__(text)
        self.getCondition = lambda: condition
        self.java_exception: JavaException | None = None
        for kind in reversed(kinds):
            made = kind if isinstance(kind, JavaClass) else JavaClass(kind)
            self.java_exception = JavaException(made, self.java_exception)


ABORTED = "org.apache.spark.SparkException"
CONCURRENT = JavaClass(
    "io.delta.exceptions.ConcurrentAppendException", JavaClass("java.util.ConcurrentModificationException")
)
SPARK = "An error occurred while calling o5.sql.\n: org.apache.spark.SparkException: Job aborted\n\tat a.b\nCaused by: "


@pytest.mark.parametrize(
    ("failure", "kind", "code", "tries", "said"),
    [
        (
            JavaError("io.delta.Conflict", CONCURRENT),
            TransientError,
            "SINK_COMMIT_CONFLICT",
            5,
            "io.delta.Conflict",
        ),
        (JavaError("x", condition="DELTA_CONCURRENT_WRITE"), TransientError, "SINK_COMMIT_CONFLICT", 5, "x"),
        (
            JavaError(SPARK + "java.net.X: late", ABORTED, "java.net.SocketTimeoutException"),
            *(TransientError, "SINK_UNAVAILABLE", 5, "Job aborted; Caused by: java.net.X: late"),
        ),
        (ConnectionResetError("gone"), TransientError, "SINK_UNAVAILABLE", 5, "gone"),
        (JavaError(SPARK + "java.lang.Error: 503", ABORTED), TerminalError, "SINK_FAILED", 1, "Caused by: java"),
        (RuntimeError("[DELTA_CONCURRENT_WRITE] timed out"), TerminalError, "SINK_FAILED", 1, "timed out"),
        (RuntimeError(), TerminalError, "SINK_FAILED", 1, "RuntimeError"),
    ],
)
def test_commit_that_the_engine_fails_is_tried_again_by_its_cause(
    tmp_path: Path, failure: Exception, kind: type[PenstockError], code: str, tries: int, said: str
) -> None:
    engine = Recorder(failure)
    sink = merging(tmp_path, engine)
    sink.prepare(ROWS)
    manifest = staged(sink, rows())
    with pytest.raises(kind) as refused:
        commit(sink, BATCH, [manifest])
    assert refused.value.code == code
    assert said in refused.value.summary
    assert len(engine.statements) == tries
    assert len(list((tmp_path / "_penstock" / "staged").iterdir())) == 1


def test_commit_that_the_engine_left_out_is_not_taken_for_one_that_landed(tmp_path: Path) -> None:
    sink = merging(tmp_path, Recorder(skips=True))
    sink.prepare(ROWS)
    with pytest.raises(TransientError) as refused:
        commit(sink, BATCH, [staged(sink, rows())])
    assert refused.value.code == "SINK_COMMIT_CONFLICT"
    assert last_commit(sink) is None


def test_commit_by_the_engine_has_its_other_transactions_in_an_entry_that_follows(tmp_path: Path) -> None:
    sink = merging(tmp_path, Recorder())
    sink.prepare(ROWS)
    commit(sink, BATCH, [staged(sink, rows())])
    table = DeltaTable(tmp_path)
    found = {name: table.transaction_version(f"orders/out{name}") for name in ("", "/query-1", "/orders/0")}
    assert (table.version(), found) == (2, {"": 1, "/query-1": 4, "/orders/0": 50})
    assert last_commit(merging(tmp_path)) == BATCH


def test_commit_by_the_engine_after_a_restore_raises_the_transaction_that_delta_has_seen(tmp_path: Path) -> None:
    engine = Recorder()
    sink = merging(tmp_path, engine)
    sink.prepare(ROWS)
    commit(sink, BatchToken("orders", "query-1", 3, (OffsetRange("orders", 0, 30, 40),)), [])
    for version in ("2", "3"):
        commit(sink, BATCH, [staged(sink, rows())])
        assert engine.settings["spark.databricks.delta.write.txnVersion"] == version
        assert last_commit(sink) == BATCH
        DeltaTable(tmp_path).restore(1)
        assert not holds(sink, BATCH)


def test_sink_is_sent_to_tasks_without_its_engine(tmp_path: Path) -> None:
    engine = Recorder()
    engine.failure = RuntimeError("does not matter")
    sink = merging(tmp_path, engine)
    sink.prepare(ROWS)
    sent = pickle.loads(pickle.dumps(sink))
    assert sent._sql is None
    assert staged(sent, rows()).rows == 3


def test_rules_that_do_not_fit_are_refused_before_a_table_is_made(tmp_path: Path) -> None:
    for look in (merging(tmp_path / "t", rules=MergeRules(keys=("absent",))).check, merging(tmp_path / "t").prepare):
        with pytest.raises(MissingError) as refused:
            look(ROWS.remove(1))
        assert refused.value.code == "SINK_SCHEMA_MISMATCH"
    assert not (tmp_path / "t").exists()


def test_token_in_the_metadata_of_sparks_commits_is_found_among_others(tmp_path: Path) -> None:
    sink = merging(tmp_path)
    sink.prepare(ROWS)
    said = {"penstock.pipeline": "orders", "penstock.sink": "out", "penstock.token": BATCH.to_json()}
    for version, text in enumerate(
        ["not json", json.dumps(said), "[1]", json.dumps({**said, "penstock.sink": "b"})], 1
    ):
        entry = {"commitInfo": {"timestamp": version, "operation": "MERGE", "userMetadata": text}}
        (tmp_path / "_delta_log" / f"{version:020}.json").write_text(json.dumps(entry))
    assert last_commit(sink) == BATCH
    assert holds(sink, BATCH)


def statement(rules: MergeRules, *, positioned: bool = True) -> list[str]:
    return merge_statement("`t`", ROWS.names, ROWS.names, rules, {}, positioned=positioned).splitlines()


def test_statement_deletes_updates_and_inserts_in_this_order() -> None:
    head, on, delete, update, insert = statement(MergeRules(keys=("id", "day")))
    assert head.startswith("MERGE INTO `t` AS t USING (SELECT * FROM (SELECT *, row_number()")
    assert on == "ON t.`id` = s.`id` AND t.`day` = s.`day`"
    assert delete == "WHEN MATCHED AND coalesce(s.`_penstock_delete`, FALSE) THEN DELETE"
    assert update.endswith("THEN UPDATE SET t.`note` = s.`note`, t.`_penstock` = s.`_penstock`")
    assert insert.endswith("VALUES (s.`id`, s.`day`, s.`note`, s.`_penstock`)")


def test_statement_for_rows_without_coordinates_orders_by_nothing_of_theirs() -> None:
    rules = MergeRules(keys=("id",))
    assert "`_penstock`" in statement(rules)[0]
    assert "`_penstock`" not in statement(rules, positioned=False)[0]


def test_statement_for_insert_only_neither_updates_nor_deletes() -> None:
    assert [
        line.split(" THEN ")[-1].split(" ")[0] for line in statement(MergeRules(("id",), insert_only=True))[2:]
    ] == ["INSERT"]


def test_statement_for_rows_of_keys_alone_updates_nothing() -> None:
    rules = MergeRules(keys=tuple(ROWS.names))
    assert not any("UPDATE" in line for line in statement(rules))


def test_append_to_a_table_for_spark_asks_for_an_insert_with_the_token(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": pa.array([1], pa.int64()), "day": pa.array([None], pa.date32())}))
    DeltaTable(tmp_path).alter.add_constraint({"positive": "id > 0"})
    engine = Recorder()
    sink = DeltaSink("orders", "out", str(tmp_path), keep_coordinates=False)
    assert (sink.needs_sql, sink.note) == (True, "written through Spark, because the table has constraint positive")
    sink.use(engine)
    schema = ROWS.remove(2)
    sink.prepare(schema)
    stage = sink.stage(BATCH, SlotAttempt(0, "0"), schema)
    stage.write(rows(schema))
    commit(sink, BATCH, [stage.finish()])
    names = "`id`, `day`"
    assert engine.statements == [f"INSERT INTO `delta`.`file:{tmp_path}` ({names}) SELECT {names} FROM staged"]
    assert engine.settings["spark.databricks.delta.write.txnVersion"] == "1"
    assert engine.names == ["id", "day"]


def test_append_to_a_plain_table_needs_no_engine(tmp_path: Path) -> None:
    sink = DeltaSink("orders", "out", str(tmp_path / "t"))
    assert (sink.needs_sql, sink.note) == (False, None)
    sink.use(Recorder())
    sink.prepare(ROWS)
    assert not sink.needs_sql


def test_check_of_a_table_for_spark_passes_where_its_columns_fit(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": pa.array([1], pa.int64())}))
    DeltaTable(tmp_path).alter.add_constraint({"positive": "id > 0"})
    DeltaSink("orders", "out", str(tmp_path)).check(pa.schema([pa.field("id", pa.int64())]))
    with pytest.raises(MissingError) as refused:
        DeltaSink("orders", "out", str(tmp_path)).check(pa.schema([pa.field("id", pa.string())]))
    assert refused.value.code == "SINK_SCHEMA_MISMATCH"

"""The care of tables that goes through Spark: Iceberg's procedures, and Delta tables that delta-rs does not rewrite."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.committing import commit, holds, last_commit
from tests.contract.kit_iceberg import open_table
from tests.contract.rows import SCHEMA, land, records, stage, token

from penstock.model import MergeRules
from penstock.sinks.delta import DeltaSink
from penstock.sinks.iceberg import IcebergCatalog, IcebergSink
from penstock.sinks.iceberg.history import mark_of
from penstock.sinks.maintenance import NoLock
from penstock.spark.sql import SparkSql

pytestmark = pytest.mark.services

FREE = NoLock()
NOW = timedelta(0)


def soon(seconds: float = 60) -> float:
    return time.monotonic() + seconds


def old(path: Path) -> None:
    then = time.time() - 4 * 86_400
    os.utime(path, (then, then))


def test_iceberg_table_is_compacted_and_cleaned_and_keeps_rows_and_tokens(tmp_path: Path, spark: Any) -> None:
    sink = IcebergSink(
        "orders", "out", "shop.orders", str(tmp_path), catalog=IcebergCatalog(), cluster_by=["id", "note"]
    )
    sink.use(SparkSql(spark))
    sink.prepare(SCHEMA)
    for number in range(6):
        land(sink, token(number, number, number + 1))
    care = sink.maintenance()
    care.use(SparkSql(spark), spark.sparkContext.cancelAllJobs)
    before = care.figures()
    assert before is not None and (before.files, before.small_files, before.versions) == (6, 6, 6)

    done = care.compact(FREE, soon())
    assert (done.removed, done.added, done.left) == (6, 1, None)
    assert last_commit(sink) == token(5, 5, 6)

    in_hand = stage(sink, token(6, 6, 7), [records([6])])
    data = Path(open_table(tmp_path).location().removeprefix("file://")) / "data"
    stray = data / "stray.parquet"
    stray.write_bytes(b"x")
    assert care.clean(NOW, FREE, soon(), dry_run=True).versions == 5  # the newest token's, and the current, are named
    cleaned = care.clean(NOW, FREE, soon())
    assert cleaned.versions == 5 and cleaned.note is None
    assert cleaned.files >= 5  # the files that the compaction replaced, and the manifests of expired snapshots
    assert stray.exists(), "it may be a file of a batch in hand"
    after = care.figures()
    assert after is not None and (after.files, after.small_files, after.versions) == (1, 0, 2)
    old(stray)
    assert care.clean(NOW, FREE, soon()).files == 1
    assert not stray.exists()

    fresh = IcebergSink("orders", "out", "shop.orders", str(tmp_path), catalog=IcebergCatalog())
    assert last_commit(fresh) == token(5, 5, 6)
    assert holds(fresh, token(5, 5, 6)) and not holds(fresh, token(6, 6, 7))
    commit(sink, token(6, 6, 7), [in_hand])
    assert sorted(open_table(tmp_path).scan().to_arrow()["id"].to_pylist()) == list(range(7))


@pytest.mark.long
def test_iceberg_merges_go_on_after_a_compaction_and_an_expiry(tmp_path: Path, spark: Any) -> None:
    rules = MergeRules(("id",))
    sink = IcebergSink("orders", "out", "shop.orders", str(tmp_path), catalog=IcebergCatalog(), rules=rules)
    sink.use(SparkSql(spark))
    sink.prepare(SCHEMA)
    for number in range(2):
        land(sink, token(number, number, number + 1))
    care = sink.maintenance()
    care.use(SparkSql(spark), spark.sparkContext.cancelAllJobs)
    assert care.compact(FREE, soon()).removed == 2
    assert care.clean(NOW, FREE, soon()).versions > 0
    land(sink, token(2, 2, 4), id=lambda number: number - 2, note="newer")
    assert holds(sink, token(2, 2, 4))
    rows = open_table(tmp_path).scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["note"]) for row in rows) == [(0, "newer"), (1, "newer")]


@pytest.mark.long
def test_iceberg_expiry_keeps_the_positions_of_idle_siblings_whose_tags_were_dropped(
    tmp_path: Path, spark: Any
) -> None:
    def sink(pipeline: str) -> IcebergSink:
        made = IcebergSink(pipeline, "out", "shop.orders", str(tmp_path), catalog=IcebergCatalog())
        made.use(SparkSql(spark))
        made.prepare(SCHEMA)
        return made

    idle, busy = sink("returns"), sink("orders")
    land(idle, token(0, 0, 1, pipeline="returns"))
    for number in range(3):
        land(busy, token(number, number, number + 1))
    open_table(tmp_path).manage_snapshots().remove_tag(mark_of("returns", "out")).commit()
    care = busy.maintenance()
    care.use(SparkSql(spark), spark.sparkContext.cancelAllJobs)
    cleaned = care.clean(NOW, FREE, soon())
    assert (cleaned.versions, cleaned.note) == (2, None)
    assert len(open_table(tmp_path).snapshots()) == 2
    assert last_commit(sink("returns")) == token(0, 0, 1, pipeline="returns")
    assert last_commit(sink("orders")) == token(2, 2, 3)


@pytest.mark.long
def test_delta_table_with_deletion_vectors_is_looked_after_by_spark(tmp_path: Path, spark: Any) -> None:
    sink = DeltaSink("orders", "out", str(tmp_path / "t"))
    sink.prepare(SCHEMA)
    for number in range(4):
        land(sink, token(number, number * 2, number * 2 + 2))
    sql = SparkSql(spark)
    name = f"delta.`{tmp_path / 't'}`"
    sql.run(
        f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        f"DELETE FROM {name} WHERE id = 3",
    )
    care = sink.maintenance()
    assert care.needs_sql
    care.use(SparkSql(spark), spark.sparkContext.cancelAllJobs)
    done = care.compact(FREE, soon())
    assert (done.removed, done.added, done.left) == (4, 1, None)
    assert last_commit(sink) == token(3, 6, 8)
    assert [row["id"] for row in sql.run(f"SELECT id FROM {name} ORDER BY id")] == [0, 1, 2, 4, 5, 6, 7]
    gone = set((tmp_path / "t").glob("*.parquet")) - {Path(uri) for uri in DeltaTable(tmp_path / "t").file_uris()}
    assert gone and care.clean(NOW, FREE, soon()).files == 0
    assert all(path.exists() for path in gone), "they were current a moment ago"
    assert last_commit(sink) == token(3, 6, 8)

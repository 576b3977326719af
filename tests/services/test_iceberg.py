"""Iceberg with Spark: the same tables from both sides, merges, a catalog in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from tests.committing import commit, holds, last_commit
from tests.contract.kit_iceberg import open_table
from tests.contract.rows import SCHEMA, land, records, stage, token
from tests.postgres import PostgresServer

from penstock.errors import MissingError, TerminalError
from penstock.model import COORDINATES, COORDINATES_FIELD, DELETES, MergeRules
from penstock.sinks.iceberg import IcebergCatalog, IcebergSink
from penstock.sinks.iceberg.failures import is_conflict, is_transient
from penstock.sinks.iceberg.table import CatalogTable
from penstock.spark.sql import SparkSql

pytestmark = pytest.mark.services

BY_ID = MergeRules(("id",))
TABLE = "penstock.shop.orders"
APPEND_AND_MERGE = pytest.mark.parametrize(
    "rules", [pytest.param(None, id="append"), pytest.param(BY_ID, id="merge", marks=pytest.mark.long)]
)


class Lake:
    """One warehouse, its sinks, and Spark's own view of it."""

    def __init__(self, folder: Path, spark: Any, catalog: IcebergCatalog | None = None) -> None:
        self.folder = folder
        self.catalog = catalog or IcebergCatalog()
        self._spark = spark

    def sink(self, schema: pa.Schema = SCHEMA, pipeline: str = "orders", **settings: Any) -> IcebergSink:
        sink = IcebergSink(pipeline, "out", "shop.orders", str(self.folder), catalog=self.catalog, **settings)
        sink.use(SparkSql(self._spark))
        sink.prepare(schema)
        return sink

    def sql(self, *statements: str) -> list[dict[str, Any]]:
        return SparkSql(self._spark).run(*statements, settings=self.catalog.spark_settings(str(self.folder)))

    def ids(self) -> list[int]:
        return [row["id"] for row in self.sql(f"SELECT id FROM {TABLE} ORDER BY id")]

    def notes(self) -> dict[int, str]:
        rows = self.sql(f"SELECT id, note FROM {TABLE}")
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["id"]: row["note"] for row in rows}

    def refs(self) -> set[str]:
        return {row["name"].partition("_")[0] + row["type"] for row in self.sql(f"SELECT * FROM {TABLE}.refs")}

    def summary(self) -> dict[str, str]:
        [row] = self.sql(f"SELECT summary FROM {TABLE}.snapshots ORDER BY committed_at DESC LIMIT 1")
        return dict(row["summary"])


@pytest.fixture
def lake(tmp_path: Path, spark: Any) -> Lake:
    return Lake(tmp_path / "lake", spark)


EVERYTHING = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("tiny", pa.int8()),
        pa.field("flag", pa.bool_()),
        pa.field("amount", pa.float64()),
        pa.field("ratio", pa.float32()),
        pa.field("small", pa.decimal128(9, 2)),
        pa.field("middle", pa.decimal128(18, 3)),
        pa.field("price", pa.decimal128(38, 10)),
        pa.field("note", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("item", pa.struct([pa.field("sku", pa.string()), pa.field("tags", pa.list_(pa.string()))])),
        pa.field("more", pa.map_(pa.string(), pa.int64())),
        pa.field("parts", pa.list_(pa.struct([pa.field("n", pa.int32())]))),
        COORDINATES_FIELD,
    ]
)
MOMENT = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
FULL = {
    "id": 0,
    "tiny": -8,
    "flag": True,
    "amount": 1.5,
    "ratio": 0.25,
    "small": Decimal("-1234567.89"),
    "middle": Decimal("123456789012345.678"),
    "price": Decimal("1234567890123456789012345678.0123456789"),
    "note": "ünï 水",
    "data": b"\x00\xff",
    "day": date(2026, 1, 1),
    "at": MOMENT,
    "local": MOMENT.replace(tzinfo=None),
    "item": {"sku": "s", "tags": ["a", None]},
    "more": [("k", 1), ("none", None)],
    "parts": [{"n": 1}, None, {"n": None}],
    COORDINATES: {"topic": "t", "partition": 0, "offset": 7, "timestamp": MOMENT},
}


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as both readers give it: maps as dictionaries, times without their zone, which is UTC."""

    def value(found: Any) -> Any:
        if isinstance(found, dict):
            return {name: value(inner) for name, inner in found.items()}
        if isinstance(found, list):
            pairs = bool(found) and all(isinstance(inner, tuple) for inner in found)
            return dict(found) if pairs else [value(inner) for inner in found]
        if isinstance(found, bytearray):
            return bytes(found)
        return found.replace(tzinfo=None) if isinstance(found, datetime) else found

    return {name: value(found) for name, found in row.items()}


@APPEND_AND_MERGE
def test_rows_of_every_type_are_the_same_from_spark_and_from_pyiceberg(lake: Lake, rules: MergeRules | None) -> None:
    # pyiceberg 0.12 reads a null list of structs as an empty one, whoever wrote it: the empty one stands for both.
    empty = dict.fromkeys(FULL) | {"id": 1, "parts": []}
    rows = pa.RecordBatch.from_pylist([FULL, empty], schema=EVERYTHING)
    sink = lake.sink(EVERYTHING, rules=rules)
    batch = token(0, 0, 2)
    commit(sink, batch, [stage(sink, batch, [rows], schema=EVERYTHING)])
    by_spark = lake.sql(f"SELECT * FROM {TABLE} ORDER BY id")
    by_pyiceberg = open_table(lake.folder).scan().to_arrow().sort_by("id").to_pylist()
    expected = [plain(row) for row in (FULL, empty)]
    assert [plain(row) for row in by_spark] == expected
    assert [plain(row) for row in by_pyiceberg] == expected
    types = {row["col_name"]: row["data_type"] for row in lake.sql(f"DESCRIBE {TABLE}")}
    assert {name: types[name] for name in ("tiny", "price", "at", "local", "item", "more")} == {
        "tiny": "int",
        "price": "decimal(38,10)",
        "at": "timestamp",
        "local": "timestamp_ntz",
        "item": "struct<sku:string,tags:array<string>>",
        "more": "map<string,bigint>",
    }


PARTED = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("country", pa.string()),
        COORDINATES_FIELD,
    ]
)


TRANSFORMS = ["country", "days(at)", "hours(at)", "months(at)", "years(at)", "bucket(4, id)", "truncate(2, name)"]
SEVERAL = [text for text in TRANSFORMS if text not in ("hours(at)", "months(at)", "years(at)")]
"""A table is partitioned by a column's time once."""


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(SEVERAL, id="several"),
        *(pytest.param([text], id=text, marks=pytest.mark.long) for text in TRANSFORMS),
    ],
)
def test_partitions_by_transforms_are_those_that_spark_makes(lake: Lake, texts: list[str]) -> None:
    sink = lake.sink(PARTED, partition_by=texts)
    land(
        sink,
        token(0, 0, 40),
        PARTED,
        name=lambda n: f"水{n % 3}{n}" if n % 5 else None,
        at=lambda n: datetime(1969, 12, 31, n % 24, 59, 59, tzinfo=UTC) if n % 7 else None,
        country=lambda n: ["de", None, ""][n % 3],
    )
    ours = lake.sql(f"SELECT partition, record_count FROM {TABLE}.partitions")
    lake.sql(
        f"CREATE TABLE penstock.shop.copy USING iceberg PARTITIONED BY ({', '.join(texts)}) AS SELECT * FROM {TABLE}",
    )
    spark_made = lake.sql("SELECT partition, record_count FROM penstock.shop.copy.partitions")
    assert len(ours) > 1
    assert sorted(map(str, ours)) == sorted(map(str, spark_made))
    for number in (3, 10, 14):
        assert lake.sql(f"SELECT id FROM {TABLE} WHERE id = {number}") == [{"id": number}]


@pytest.mark.long
def test_expire_snapshots_by_spark_keeps_the_newest_token_even_behind_others_commits(lake: Lake) -> None:
    sink = lake.sink()
    for batch in range(3):
        land(sink, token(batch, batch, batch + 1))
    for number in (10, 11):
        lake.sql(f"INSERT INTO {TABLE} SELECT {number}, note, item, _penstock FROM {TABLE} WHERE id = 0")
    lake.sql(
        "CALL penstock.system.expire_snapshots(table => 'shop.orders', older_than => TIMESTAMP '2100-01-01', "
        "retain_last => 1)"
    )
    assert len(open_table(lake.folder).snapshots()) == 2
    fresh = lake.sink()
    assert holds(fresh, token(2, 2, 3))
    assert last_commit(fresh) == token(2, 2, 3)
    land(fresh, token(3, 3, 4))
    assert lake.ids() == [0, 1, 2, 3, 10, 11]


@APPEND_AND_MERGE
def test_roll_back_by_spark_stops_the_next_batch_and_the_one_taken_out_lands_again(
    lake: Lake, rules: MergeRules | None
) -> None:
    sink = lake.sink(rules=rules)
    land(sink, token(0, 0, 1))
    first = open_table(lake.folder).metadata.current_snapshot_id
    land(sink, token(1, 1, 2))
    lake.sql(f"CALL penstock.system.rollback_to_snapshot('shop.orders', {first})")
    assert last_commit(lake.sink(rules=rules)) == token(0, 0, 1)
    with pytest.raises(TerminalError) as refused:
        land(sink, token(2, 2, 3))
    assert refused.value.code == "TARGET_WENT_BACK"
    land(sink, token(1, 1, 2))
    land(sink, token(2, 2, 3))
    assert lake.ids() == [0, 1, 2]


@pytest.mark.long
def test_expire_snapshots_of_a_table_that_limits_the_age_of_tags_keeps_the_position(lake: Lake) -> None:
    land(lake.sink(), token(0, 0, 1))
    lake.sql(f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('history.expire.max-ref-age-ms' = '1')")
    lake.sql(f"ALTER TABLE {TABLE} CREATE TAG theirs")
    lake.sql(f"INSERT INTO {TABLE} SELECT 10, note, item, _penstock FROM {TABLE}")
    lake.sql(
        "CALL penstock.system.expire_snapshots(table => 'shop.orders', older_than => TIMESTAMP '2100-01-01', "
        "retain_last => 1)"
    )
    assert lake.refs() == {"mainBRANCH", "penstockTAG"}
    assert last_commit(lake.sink()) == token(0, 0, 1)


@pytest.mark.long
def test_table_of_a_newer_format_is_refused(lake: Lake) -> None:
    lake.sink()
    lake.sql(f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('format-version' = '3')")
    with pytest.raises(MissingError) as refused:
        lake.sink()
    assert (refused.value.code, refused.value.context["table"]) == ("SINK_TABLE_UNSUPPORTED", "3")


@pytest.mark.long
def test_compaction_by_spark_leaves_the_token_and_the_rows(lake: Lake) -> None:
    sink = lake.sink()
    for batch in range(6):
        land(sink, token(batch, batch, batch + 1))
    lake.sql("CALL penstock.system.rewrite_data_files(table => 'shop.orders', options => map('min-input-files', '2'))")
    assert lake.summary()["deleted-data-files"] == "6"
    assert holds(lake.sink(), token(5, 5, 6))
    land(sink, token(6, 6, 7))
    assert lake.ids() == list(range(7))


def test_crash_between_branch_and_main_shows_nothing_and_the_next_start_clears_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise SystemExit

    sink = lake.sink(rules=BY_ID)
    land(sink, token(0, 0, 3))
    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(CatalogTable, "publish", die)
        land(sink, token(1, 3, 5))
    assert lake.ids() == [0, 1, 2]
    assert lake.refs() == {"mainBRANCH", "penstockTAG", "penstockBRANCH"}
    fresh = lake.sink(rules=BY_ID)
    assert lake.refs() == {"mainBRANCH", "penstockTAG"}
    assert not holds(fresh, token(1, 3, 5))
    land(fresh, token(1, 3, 5))
    assert lake.ids() == [0, 1, 2, 3, 4]
    assert lake.refs() == {"mainBRANCH", "penstockTAG"}


@pytest.mark.long
@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_merge_that_changes_nothing_is_committed_with_its_token(lake: Lake, mode: str) -> None:
    schema = pa.schema([*SCHEMA, pa.field("version", pa.int64())])
    rules = MergeRules(("id",), when_newer="version")
    sink = lake.sink(schema, rules=rules)
    lake.sql(f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('write.merge.mode' = '{mode}')")
    land(sink, token(0, 0, 3), schema, version=5)
    land(sink, token(1, 3, 6), schema, id=lambda n: n - 3, note="late", version=4)
    assert lake.notes() == {0: "note 0", 1: "note 1", 2: "note 2"}
    assert last_commit(lake.sink(schema, rules=rules)) == token(1, 3, 6)
    land(sink, token(2, 6, 8), schema, id=lambda n: n - 6, note="new", version=5)
    assert lake.notes() == {0: "new", 1: "new", 2: "note 2"}
    assert {row["id"]: row["note"] for row in open_table(lake.folder).scan().to_arrow().to_pylist()} == lake.notes()


@pytest.mark.long
def test_merge_into_many_files_rewrites_only_those_that_the_keys_can_be_in(lake: Lake) -> None:
    sink = lake.sink(rules=BY_ID, partition_by=["bucket(8, id)"])
    land(sink, token(0, 0, 200))
    assert int(lake.summary()["added-data-files"]) == 8
    land(sink, token(1, 200, 201), id=17, note="new")
    assert lake.summary()["deleted-data-files"] == "1"
    assert lake.notes()[17] == "new"
    assert len(lake.notes()) == 200


@pytest.mark.long
def test_merge_by_a_pruning_column_leaves_other_partitions_unread_and_finds_rows_without_it(lake: Lake) -> None:
    schema = pa.schema([*SCHEMA, pa.field("day", pa.date32()), pa.field(DELETES, pa.bool_())])
    sink = lake.sink(schema, rules=MergeRules(("id",), prune_by=("day",)), partition_by=["day"])
    land(sink, token(0, 0, 40), schema, day=lambda n: date(2026, 1, 1 + n % 20) if n else None)
    land(sink, token(1, 40, 41), schema, id=5, note="new", day=date(2026, 1, 6))
    assert lake.summary()["deleted-data-files"] == "1"
    land(sink, token(2, 41, 43), schema, id=lambda n: {41: 0, 42: 7}[n], note="gone", day=None, _penstock_delete=True)
    assert {0, 7} & set(lake.notes()) == set()
    assert lake.notes()[5] == "new"
    assert len(lake.notes()) == 38


@pytest.mark.long
def test_merge_of_a_row_that_moves_to_another_partition_is_one_row(lake: Lake) -> None:
    schema = pa.schema([*SCHEMA, pa.field("country", pa.string())])
    sink = lake.sink(schema, rules=BY_ID, partition_by=["country"])
    land(sink, token(0, 0, 3), schema, country="de")
    land(sink, token(1, 3, 4), schema, id=1, country="at")
    assert sorted(lake.notes()) == [0, 1, 2]
    assert lake.sql(f"SELECT country FROM {TABLE} WHERE id = 1") == [{"country": "at"}]


@pytest.mark.long
def test_merge_into_a_struct_that_others_widened_keeps_going(lake: Lake) -> None:
    sink = lake.sink(rules=BY_ID)
    land(sink, token(0, 0, 2))
    lake.sql(f"ALTER TABLE {TABLE} ADD COLUMNS (item.price double, extra int)")
    land(sink, token(1, 2, 4), id=lambda n: n - 1, item={"sku": "s", "tags": None})
    rows = lake.sql(f"SELECT id, item, extra FROM {TABLE} ORDER BY id")
    assert [row["item"]["price"] for row in rows] == [None, None, None]
    assert [row["id"] for row in rows] == [0, 1, 2]


@pytest.mark.long
def test_merge_whose_branch_another_start_removed_is_made_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = lake.sink(rules=BY_ID)
    land(sink, token(0, 0, 3))
    original, removed = CatalogTable.publish, []

    def publish(self: CatalogTable, seen: Table, branch: str, tag: str) -> None:
        if not removed:
            removed.append(branch)
            lake.sink(rules=BY_ID)
        original(self, seen, branch, tag)

    monkeypatch.setattr(CatalogTable, "publish", publish)
    land(sink, token(1, 3, 5))
    assert removed
    assert lake.ids() == [0, 1, 2, 3, 4]
    assert lake.refs() == {"mainBRANCH", "penstockTAG"}


@pytest.mark.long
def test_merge_into_required_columns_takes_rows_and_deletes_by_tombstones(lake: Lake) -> None:
    schema = pa.schema(
        [*SCHEMA, pa.field("amount", pa.int64(), nullable=False), pa.field(DELETES, pa.bool_())],
    )
    lake.folder.mkdir()
    lake.sql(
        "CREATE NAMESPACE IF NOT EXISTS penstock.shop",
        f"CREATE TABLE {TABLE} (id bigint NOT NULL, note string, item struct<sku: string, tags: array<string>>, "
        "_penstock struct<topic: string, partition: int, offset: bigint, timestamp: timestamp>, "
        "amount bigint NOT NULL) USING iceberg TBLPROPERTIES ('format-version' = '2')",
    )
    sink = lake.sink(schema, rules=BY_ID)
    land(sink, token(0, 0, 3), schema, amount=lambda n: n)
    batch = token(1, 3, 6)
    loose = pa.schema([each.with_nullable(True) for each in schema])
    rows = [
        records([3], loose, id=0, amount=30),
        records([4], loose, id=1, note=None, amount=None, **{DELETES: True}),
        records([5], loose, id=9, note=None, amount=None, **{DELETES: True}),
    ]
    commit(sink, batch, [stage(sink, batch, rows, schema=schema)])
    assert lake.sql(f"SELECT id, amount FROM {TABLE} ORDER BY id") == [{"id": 0, "amount": 30}, {"id": 2, "amount": 2}]
    with pytest.raises(MissingError) as refused:
        lake.sink(loose, rules=BY_ID)
    assert "NOT NULL" in (refused.value.hint or "")


def raised(act: Callable[[], object]) -> Exception:
    try:
        act()
    except Exception as error:
        return error
    raise AssertionError("it went well")


def test_failure_inside_spark_is_judged_by_its_java_class(lake: Lake, tmp_path: Path, spark: Any) -> None:
    catalog = IcebergCatalog("sql", "postgresql://nobody@127.0.0.1:1/none", name="away")
    away = Lake(tmp_path, spark, catalog)
    refused = raised(lambda: away.sql("SHOW NAMESPACES IN away"))
    assert (is_transient(refused), is_conflict(refused)) == (True, False)
    failed = raised(lambda: lake.sql("SELECT raise_error('connection timed out: 503, CommitFailedException')"))
    assert (is_transient(failed), is_conflict(failed)) == (False, False)
    absent = raised(lambda: lake.sql("SELECT * FROM `connection timed out`"))
    assert (is_transient(absent), is_conflict(absent)) == (False, False)


def test_commit_conflict_inside_spark_is_judged_by_its_java_class(lake: Lake, spark: Any) -> None:
    lake.sink()
    java, settings = spark._jvm, spark._jvm.java.util.HashMap()
    prefix = "spark.sql.catalog.penstock."
    for name, value in lake.catalog.spark_settings(str(lake.folder)).items():
        settings.put(name.removeprefix(prefix), value)
    catalog = java.org.apache.iceberg.jdbc.JdbcCatalog()
    catalog.setConf(spark._jsc.hadoopConfiguration())
    catalog.initialize("penstock", settings)
    operations = catalog.loadTable(java.org.apache.iceberg.catalog.TableIdentifier.parse("shop.orders")).operations()
    seen = operations.current()
    lake.sql(f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('a' = 'b')")
    changed = seen.replaceProperties(java.java.util.HashMap())
    error = raised(lambda: operations.commit(seen, changed))
    assert (is_conflict(error), is_transient(error)) == (True, False)


@APPEND_AND_MERGE
def test_catalog_in_postgres_has_the_same_table_for_both_sides(
    tmp_path: Path, spark: Any, postgres: PostgresServer, rules: MergeRules | None
) -> None:
    database = postgres.create_database()
    catalog = IcebergCatalog("sql", postgres.url(database))
    lake = Lake(tmp_path, spark, catalog)
    table = "shop.orders"
    sink = IcebergSink("orders", "out", table, str(tmp_path), catalog=catalog, rules=rules)
    tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'iceberg%'"
    before = postgres.execute(tables, database)
    sink.check(SCHEMA)
    assert last_commit(sink) is None
    assert postgres.execute(tables, database) == before
    sink.use(SparkSql(spark))
    sink.prepare(SCHEMA)
    for batch in range(3):
        land(sink, token(batch, batch, batch + 1))
    land(sink, token(1, 1, 2))
    assert [row["id"] for row in lake.sql(f"SELECT id FROM penstock.{table} ORDER BY id")] == [0, 1, 2]
    assert last_commit(sink) == token(2, 2, 3)

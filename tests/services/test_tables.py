"""Tables against a real PostgreSQL, and larger ones as Spark reads them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter
from tests.postgres import PASSWORD, USER, PostgresServer

from penstock.assembly.tables import Tables
from penstock.config.tables import LookupConfig
from penstock.errors import MissingError, TransientError
from penstock.tables.delta import DeltaLookup
from penstock.tables.postgres import PostgresLookup

pytestmark = pytest.mark.services


class Database:
    """One database of a server."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.name = server.create_database()
        self.url = server.url(self.name)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.execute(statement, self.name)

    def table(self, table: str = "customers") -> PostgresLookup:
        return PostgresLookup("customers", self.url, table)


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    made = Database(postgres)
    yield made
    postgres.drop_database(made.name)


def seen(table: PostgresLookup, before: str) -> str:
    """The version once it is another: the database's statistics follow a change."""
    deadline = time.monotonic() + 20
    while (version := table.version()) == before and time.monotonic() < deadline:
        time.sleep(0.05)
    return version


def test_postgres_table_of_every_type_gives_the_values(database: Database) -> None:
    database.run("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN cents AS numeric(9, 2)")
    database.run(
        "CREATE TABLE customers (id int8, small int2, n int4, f float8, g float4, t text, v varchar(9), b bool,"
        " raw bytea, day date, at timestamptz, local timestamp, price cents, any_number numeric, m mood, j jsonb,"
        ' "Odd ""x" int4)'
    )
    database.run(
        "INSERT INTO customers VALUES (1, 2, 3, 0.1, 0.1, '', E'a\"\\n,b', true, '\\x00ff', '2000-02-29',"
        " '2024-01-02 03:04:05.123456+02', '2024-01-02 03:04:05', 1.5, 2.25, 'ok', '{\"a\": 1}', 7)"
    )
    database.run("INSERT INTO customers (id) VALUES (2)")
    table = database.table()
    schema = table.schema()
    assert dict(zip(schema.names, schema.types, strict=True)) == {
        "id": pa.int64(),
        "small": pa.int16(),
        "n": pa.int32(),
        "f": pa.float64(),
        "g": pa.float32(),
        "t": pa.string(),
        "v": pa.string(),
        "b": pa.bool_(),
        "raw": pa.binary(),
        "day": pa.date32(),
        "at": pa.timestamp("us", tz="UTC"),
        "local": pa.timestamp("us"),
        "price": pa.decimal128(9, 2),
        "any_number": pa.decimal128(38, 18),
        "m": pa.string(),
        "j": pa.string(),
        'Odd "x': pa.int32(),
    }
    found = table.read(schema.names)
    assert found is not None and found.schema == schema
    first, second = found.to_pylist()
    assert first | {"g": None} == {
        "id": 1,
        "small": 2,
        "n": 3,
        "f": 0.1,
        "g": None,
        "t": "",
        "v": 'a"\n,b',
        "b": True,
        "raw": b"\x00\xff",
        "day": date(2000, 2, 29),
        "at": datetime(2024, 1, 2, 1, 4, 5, 123456, tzinfo=UTC),
        "local": datetime(2024, 1, 2, 3, 4, 5),
        "price": Decimal("1.50"),
        "any_number": Decimal("2.25"),
        "m": "ok",
        "j": '{"a": 1}',
        'Odd "x': 7,
    }
    assert second == dict.fromkeys(schema.names) | {"id": 2}


def test_postgres_table_of_one_column_keeps_its_nulls(database: Database) -> None:
    database.run("CREATE TABLE customers (t text)")
    database.run("INSERT INTO customers VALUES (NULL), (''), ('a'), (NULL)")
    found = database.table().read(["t"])
    assert found is not None and found["t"].to_pylist() == [None, "", "a", None]


def test_postgres_table_that_changes_has_another_version(database: Database) -> None:
    database.run("CREATE TABLE customers (id int8 PRIMARY KEY)")
    table = database.table()
    before = table.version()
    database.run("INSERT INTO customers VALUES (1), (2)")
    inserted = seen(table, before)
    assert inserted != before
    database.run("UPDATE customers SET id = 3 WHERE id = 2")
    updated = seen(table, inserted)
    assert updated != inserted
    database.run("TRUNCATE customers")
    assert seen(table, updated) != updated


def test_postgres_partitioned_table_and_view_are_seen_to_change(database: Database) -> None:
    database.run("CREATE TABLE parts (id int8) PARTITION BY RANGE (id)")
    database.run("CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)")
    database.run("CREATE VIEW customers AS SELECT * FROM parts")
    parts, view = database.table("parts"), database.table()
    before = parts.version()
    database.run("INSERT INTO parts VALUES (1)")
    assert seen(parts, before) != before
    assert view.version() != view.version()
    found = view.read(["id"])
    assert found is not None and found["id"].to_pylist() == [1]
    assert (parts.estimated_bytes() or 0) > 0


def test_postgres_table_that_goes_away_is_missing_before_and_passing_after(database: Database) -> None:
    table = database.table()
    for look in (table.schema, table.version, table.estimated_bytes, lambda: table.read(["id"])):
        with pytest.raises(MissingError) as raised:
            look()
        assert raised.value.code == "TABLE_MISSING"
    database.run("CREATE TABLE customers (id int8)")
    table.version()
    with pytest.raises(MissingError) as raised:
        table.read(["id", "tier"])
    assert raised.value.code == "TABLE_COLUMN_MISSING"
    database.run("DROP TABLE customers")
    with pytest.raises(TransientError) as passing:
        table.version()
    assert passing.value.code == "TABLE_UNREACHABLE"


def test_postgres_refusals_show_no_secret(database: Database) -> None:
    database.run("CREATE TABLE customers (id int8, n numeric)")
    database.run("INSERT INTO customers VALUES (1, 'NaN')")
    wrong = PostgresLookup("customers", database.server.url(database.name, password="wr0ng"), "customers")
    nowhere = PostgresLookup("customers", database.server.url("nowhere"), "customers")
    for table, code in ((wrong, "TABLE_ACCESS_DENIED"), (nowhere, "TABLE_UNREACHABLE")):
        with pytest.raises(MissingError) as raised:
            table.version()
        assert raised.value.code == code
        assert not any(secret in str(raised.value) for secret in ("wr0ng", PASSWORD, USER))
    with pytest.raises(MissingError) as raised:
        database.table().read(["n"])
    assert (raised.value.code, raised.value.context["column"]) == ("TABLE_UNREADABLE", "n")
    assert database.run("SELECT count(*) FROM customers") == [(1,)]


def test_postgres_table_larger_than_asked_for_is_not_read_whole(database: Database) -> None:
    database.run(
        "CREATE TABLE customers AS SELECT n::int8 AS id, repeat('x', 100) AS t FROM generate_series(1, 200000) n"
    )
    assert database.table().read(["id", "t"], most_bytes=1_000_000) is None
    found = database.table().read(["id"], most_bytes=2_000_000)
    assert found is not None and found.num_rows == 200_000


ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "name": ["ann", None],
        "at": pa.array([datetime(2024, 1, 2, tzinfo=UTC), None], pa.timestamp("us", tz="UTC")),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
    }
)
DDL = "id BIGINT, name STRING, at TIMESTAMP, price DECIMAL(9, 2)"


def written(folder: Path) -> dict[str, dict[str, Any]]:
    """The same rows in every kind of table that Spark reads."""
    from deltalake import write_deltalake
    from pyiceberg.catalog import load_catalog

    from penstock.sinks.iceberg import IcebergCatalog

    write_deltalake(folder / "delta", ROWS)
    (folder / "parquet" / "shop=7").mkdir(parents=True)
    pq.write_table(ROWS, folder / "parquet" / "shop=7" / "a.parquet")
    (folder / "c.csv").write_text("name,more,id,at,price\nann,x,1,2024-01-02 00:00:00,1.50\n,y,2,,\n")
    lines = [{"id": 1, "name": "ann", "at": "2024-01-02T00:00:00Z", "price": 1.5, "more": 1}, {"id": 2}]
    (folder / "c.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    properties = IcebergCatalog().client_properties(str(folder / "ice"))
    (folder / "ice").mkdir()
    catalog = load_catalog("penstock", **{**properties, "init_catalog_tables": "true"})
    catalog.create_namespace("shop")
    catalog.create_table("shop.customers", ROWS.schema).append(ROWS)
    return {
        "delta": {"path": str(folder / "delta")},
        "parquet": {"path": str(folder / "parquet")},
        "csv": {"path": str(folder / "c.csv"), "schema": DDL},
        "json": {"path": str(folder / "c.json"), "schema": DDL},
        "iceberg": {"table": "shop.customers", "warehouse": str(folder / "ice")},
    }


@pytest.mark.long
def test_view_of_a_table_is_the_same_in_memory_and_by_spark(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    for kind, settings in written(tmp_path).items():
        frames = []
        for memory in (1, 10**9):
            config = TypeAdapter(LookupConfig).validate_python({"type": kind, "memory": memory, **settings})
            tables = Tables({"customers": config})
            names = tables.schema("customers").names
            loaded = tables.current({"customers": names}, 0.0)["customers"]
            assert (loaded.rows is None) == (memory == 1)
            tables.view(session, "customers")
            frames.append(session.sql(f"SELECT {', '.join(sorted(names))} FROM customers ORDER BY id").toArrow())
        by_spark, held = frames
        assert by_spark.schema.types == held.schema.types, kind
        assert by_spark.to_pylist() == held.to_pylist(), kind
        assert held.select(ROWS.column_names).to_pylist() == ROWS.to_pylist(), kind


@pytest.mark.long
def test_view_follows_the_version_that_was_taken_up(spark: Any, tmp_path: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "t", ROWS)
    for memory in (1, 10**9):
        config = TypeAdapter(LookupConfig).validate_python(
            {"type": "delta", "path": str(tmp_path / "t"), "memory": memory}
        )
        session, tables = spark.newSession(), Tables({"customers": config})
        counts = []
        for _ in range(2):
            tables.current({"customers": ["id"]}, 0.0)
            tables.view(session, "customers")
            tables.view(session, "customers")
            counts.append(session.table("customers").count())
            write_deltalake(tmp_path / "t", ROWS, mode="append")
        assert counts[1] == counts[0] + 2


def test_view_of_a_large_database_table_is_refused(session: Any, database: Database) -> None:
    database.run("CREATE TABLE customers AS SELECT 1 AS id")
    config = TypeAdapter(LookupConfig).validate_python(
        {"type": "postgres", "url": database.url, "table": "customers", "memory": 1}
    )
    tables = Tables({"customers": config})
    assert tables.current({"customers": ["id"]}, 0.0)["customers"].rows is None
    with pytest.raises(MissingError) as raised:
        tables.view(session, "customers")
    assert raised.value.code == "TABLE_TOO_LARGE"


@pytest.mark.long
def test_delta_table_with_deletion_vectors_is_read_without_its_deleted_rows(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, name STRING) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name')"
    )
    spark.sql(f"INSERT INTO delta.`{path}` SELECT /*+ COALESCE(1) */ id, 'x' FROM range(10)")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id < 4")
    table = DeltaLookup("customers", path)
    found = table.read(["id"])
    assert found is not None and sorted(found["id"].to_pylist()) == [4, 5, 6, 7, 8, 9]

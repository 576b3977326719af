"""All six sinks behind one topic: equal in both lanes, and what a database refuses ends in the quarantine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.committed import committed
from tests.orders import drain, forget_commit, order, rows_of
from tests.services.test_several_sinks import COLUMNS, files_of
from tests.tables import read_table

from penstock.errors import MissingError, TerminalError

pytestmark = pytest.mark.services
Write = Callable[..., Path]


@pytest.fixture
def database(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new database; pipeline files find it as ${env:TEST_DB}."""
    name = postgres.create_database()
    monkeypatch.setenv("TEST_DB", postgres.url(name))
    with psycopg.connect(postgres.url(name), autocommit=True) as connection:
        yield connection
    postgres.drop_database(name)


def iceberg_rows(file: Path, table: str) -> list[dict[str, Any]]:
    warehouse = file.parent / "lake/iceberg"
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=str(warehouse))
    found: list[dict[str, Any]] = catalog.load_table(table).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["order_id"] or -1, row["_penstock"]["offset"]))


def everything(file: Path, brokers: str, clean: str, database: Any, iceberg_merge: bool) -> dict[str, Any]:
    """What every target holds, without what differs from run to run by right."""
    postgres = database.execute(
        "SELECT order_id, customer_id, amount, event_time, op FROM orders ORDER BY 1"
    ).fetchall()
    files = files_of(file, "lake/files")
    lines = pl.read_ndjson(f"{file.parent}/lake/lines/**/*.jsonl").to_dicts()
    return {
        "delta": rows_of(file, "lake/merged"),
        "iceberg": [{k: v for k, v in row.items() if k != "_penstock"} for row in iceberg_rows(file, "shop.history")],
        "iceberg merge": [row["order_id"] for row in iceberg_rows(file, "shop.now")] if iceberg_merge else None,
        "kafka": sorted((m.key(), m.value()) for m in committed(brokers, clean)),
        "postgres": postgres,
        "parquet": sorted((row["order_id"], row["amount"]) for row in files),
        "jsonl": sorted((row["order_id"], row["amount"]) for row in lines),
        "quarantine": sorted(row["code"] for row in read_table(file.parent / "lake/quarantine").to_pylist()),
    }


def filled(topics: Any) -> str:
    topic: str = topics.create(3)
    topics.send(topic, [order(n, amount=n, customer_id=f"c{n % 3}", op="c") for n in range(30)], key=b"k")
    topics.send(topic, [b"broken", {"amount": 3.0}])
    return topic


def land_everywhere(
    session: Any,
    topics: Any,
    topic: str,
    write: Write,
    database: Any,
    iceberg_merge: bool = True,
    **keys: Any,
) -> dict[str, Any]:
    """Run a topic into every kind of sink, and again as after a crash, which changes nothing: what they hold."""
    clean = topics.create(2, prefix="clean")
    database.execute("DROP TABLE IF EXISTS orders")
    merge = {"mode": "merge", "keys": ["order_id"], "delete_when": "op = 'd'"}
    postgres = {"type": "postgres", "url": "${env:TEST_DB}", "table": "orders", "create": True}
    now = {"name": "now", "type": "iceberg", "table": "shop.now", "warehouse": "lake/iceberg", **merge}
    file = write(
        topic,
        name=f"every-{clean}",
        source={"max_offsets": 24},
        decode={"format": "json", "schema": COLUMNS},
        sinks=[
            {"name": "merged", "type": "delta", "path": "lake/merged", **merge},
            {"name": "history", "type": "iceberg", "table": "shop.history", "warehouse": "lake/iceberg"},
            *([now] if iceberg_merge else []),
            {"name": "out", "type": "kafka", "topic": clean, "key": "order_id", "where": "order_id IS NOT NULL"},
            {"name": "pg", **postgres, **merge, "mode": "upsert"},
            {"name": "files", "type": "parquet", "path": "lake/files", "where": "order_id IS NOT NULL"},
            {"name": "lines", "type": "jsonl", "path": "lake/lines", "where": "order_id IS NOT NULL"},
        ],
        **keys,
    )
    assert drain(file, session).batches == 2
    before = everything(file, topics.brokers, clean, database, iceberg_merge)
    forget_commit(file, 1)
    drain(file, session)
    assert everything(file, topics.brokers, clean, database, iceberg_merge) == before
    assert len(before["postgres"]) == len(before["kafka"]) == 30
    assert before["quarantine"] == ["MALFORMED_JSON", "SINK_KEY_NULL"]
    return before


def test_every_sink_after_a_restart_holds_the_same_rows(
    session: Any, topics: Any, pipeline_file: Write, database: Any
) -> None:
    # Iceberg is merged by Spark alone.
    found = land_everywhere(session, topics, filled(topics), pipeline_file, database, iceberg_merge=False)
    numbers = list(range(30))
    assert [row[0] for row in found["postgres"]] == [order_id for order_id, _ in found["parquet"]] == numbers
    assert found["jsonl"] == found["parquet"]
    assert [row["order_id"] for row in found["delta"]] == numbers
    assert sorted(row["order_id"] for row in found["iceberg"] if row["order_id"] is not None) == numbers


@pytest.mark.long
def test_every_sink_in_both_lanes_and_after_a_restart_holds_the_same_rows(
    spark: Any, topics: Any, pipeline_file: Write, database: Any, tmp_path: Path
) -> None:
    topic = filled(topics)
    found = [
        land_everywhere(spark, topics, topic, pipeline_file, database, lane=lane, folder=tmp_path / lane)
        for lane in ("direct", "frame")
    ]
    assert found[0] == found[1]


def test_postgres_rows_that_the_database_refuses_are_quarantined_once(
    session: Any, topics: Any, pipeline_file: Write, database: Any
) -> None:
    database.execute("CREATE TABLE orders (order_id int PRIMARY KEY, amount double precision CHECK (amount < 100))")
    topic = topics.create(2)
    topics.send(topic, [order(n, amount=n * 20) for n in range(8)])
    topics.send(topic, [order(2**40)])
    bad = topics.create(1, prefix="bad")
    file = pipeline_file(
        topic,
        name=f"rejects-{topic}",
        decode={"format": "json", "schema": COLUMNS},
        quarantine={"table": "lake/quarantine", "topic": bad},
        sinks=[
            {
                "name": "pg",
                "type": "postgres",
                "url": "${env:TEST_DB}",
                "table": "orders",
                "select": ["order_id", "amount"],
                "on_reject": "quarantine",
            }
        ],
    )
    for _ in range(2):
        drain(file, session)
        kept = database.execute("SELECT order_id FROM orders ORDER BY 1").fetchall()
        assert [row[0] for row in kept] == [0, 1, 2, 3, 4]
        refused = read_table(file.parent / "lake/quarantine").to_pylist()
        assert sorted(json.loads(row["value"])["order_id"] for row in refused) == [5, 6, 7, 2**40]
        assert {row["stage"] for row in refused} == {"sink"}
        assert len(committed(topics.brokers, bad)) == 4
        forget_commit(file)


def test_postgres_row_refused_without_a_quarantine_for_it_stops_the_batch_whole(
    session: Any, topics: Any, pipeline_file: Write, database: Any
) -> None:
    database.execute("CREATE TABLE orders (order_id bigint PRIMARY KEY, amount double precision CHECK (amount < 100))")
    topic = topics.create(1)
    topics.send(topic, [order(n, amount=n * 60) for n in range(3)])
    sink = {"name": "pg", "type": "postgres", "url": "${env:TEST_DB}", "table": "orders"}
    file = pipeline_file(
        topic,
        decode={"format": "json", "schema": COLUMNS},
        sinks=[{**sink, "select": ["order_id", "amount"]}],
    )
    with pytest.raises(TerminalError) as stopped:
        drain(file, session)
    assert stopped.value.code == "SINK_ROW_REFUSED"
    assert f"{topic}[0]" in str(stopped.value)
    assert database.execute("SELECT count(*) FROM orders").fetchone() == (0,)


def test_postgres_that_is_down_at_the_start_is_missing(
    session: Any, topics: Any, pipeline_file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_DB", "postgresql://nobody:hunter2@127.0.0.1:1/orders")
    topic = topics.create(1)
    sink = {"name": "pg", "type": "postgres", "url": "${env:TEST_DB}", "table": "orders"}
    file = pipeline_file(topic, sinks=[sink])
    with pytest.raises(MissingError) as missing:
        drain(file, session)
    assert missing.value.code == "SINK_DATABASE_UNAVAILABLE"
    assert "127.0.0.1:1/orders" in str(missing.value)
    assert "hunter2" not in str(missing.value)

"""Names of a file and values of messages that try to be something else: SQL, a path, an order to a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from penstock.config import load
from penstock.preflight.options import RunOptions
from penstock.supervision.run import run

COLUMNS = ('a"; DROP TABLE victim; --', "b'; DROP TABLE victim; --", "c`d", "e\\f", "g%sh", "i.j")
VALUES = (
    "'; DROP TABLE victim; --",
    '"; DROP TABLE victim; --',
    "../../../outside",
    "..",
    "/etc/outside",
    "a=b/c=d",
    "%2e%2e%2foutside",
    "\x1b[31mred\x07",
    "`rm -rf`",
    "\\'; DROP TABLE victim; --",
)


NAMES = ("id", "way", *COLUMNS)
# Iceberg is merged by Spark alone, and so is a Delta table with a quotation mark in a name.
MERGED = {"keys": ["id", COLUMNS[1]], "select": ["id", "way", *COLUMNS[1:]]}
MERGED_BY_SPARK = {"keys": ["id", COLUMNS[0]]}


@pytest.mark.parametrize(
    ("session", "merged", "iceberg"),
    [
        ("local", MERGED, {}),
        pytest.param("spark", MERGED_BY_SPARK, {"mode": "merge", **MERGED_BY_SPARK}, marks=pytest.mark.long),
    ],
    indirect=["session"],
    ids=["local", "spark"],
)
def test_names_and_values_cannot_break_out_of_any_sink(
    session: Any,
    merged: dict[str, Any],
    iceberg: dict[str, Any],
    topics: Any,
    postgres: Any,
    pipeline_file: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database = postgres.create_database()
    monkeypatch.setenv("HOSTILE_DB", postgres.url(database))
    postgres.execute("CREATE TABLE victim (id int)", database)
    postgres.execute("INSERT INTO victim VALUES (1)", database)
    sent = [
        {"id": number, "way": value, **{name: f"{value}{place}" for place, name in enumerate(COLUMNS)}}
        for number, value in enumerate(VALUES)
    ]
    topic = topics.create(1)
    # Twice, so that what is merged meets what is there.
    topics.send(topic, sent)
    quoted = ", ".join(f"`{name.replace('`', '``')}` STRING" for name in COLUMNS)
    hostile, warehouse = COLUMNS[0], "lake/ice"
    file = pipeline_file(
        topic,
        decode={"format": "json", "schema": f"id BIGINT NOT NULL, way STRING, {quoted}"},
        sinks=[
            {"name": "pg", "type": "postgres", "url": "${env:HOSTILE_DB}", "table": "rows", "create": True,
             "mode": "upsert", "keys": ["id", hostile]},
            {"name": "merged", "type": "delta", "path": "lake/merged", "mode": "merge", **merged},
            {"name": "parted", "type": "delta", "path": "lake/parted", "partition_by": ["way"]},
            {"name": "files", "type": "parquet", "path": "lake/files", "partition_by": ["way"]},
            {"name": "ice", "type": "iceberg", "table": "shop.orders", "warehouse": warehouse, **iceberg},
        ],
        spark={},
    )  # fmt: skip
    for _ in range(2):
        run(load(file), RunOptions(available_now=True), session=session)
        topics.send(topic, sent)
    expected = {row["id"]: row for row in sent}
    assert postgres.execute("SELECT id FROM victim", database) == [(1,)]
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in NAMES)
    # psycopg takes a percent sign for a value's place only where values are given.
    stored = postgres.execute(f"SELECT {names} FROM rows ORDER BY id", database)
    assert [dict(zip(NAMES, row, strict=True)) for row in stored] == list(expected.values())
    found = DeltaTable(tmp_path / "lake/merged").to_pyarrow_table().to_pylist()
    names_merged = merged.get("select", NAMES)
    assert len(found) == len(sent)
    assert _by_id(found, names_merged) == {row["id"]: {name: row[name] for name in names_merged} for row in sent}
    parted = DeltaTable(tmp_path / "lake/parted").to_pyarrow_table().to_pylist()
    assert len(parted) == 2 * len(sent) and _by_id(parted) == expected
    hive = ds.partitioning(pa.schema([("way", pa.string())]), flavor="hive")
    files = ds.dataset(tmp_path / "lake/files", format="parquet", partitioning=hive).to_table().to_pylist()
    assert len(files) == 2 * len(sent) and _by_id(files) == expected
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{tmp_path}/{warehouse}/catalog.db", warehouse=warehouse)
    iced = catalog.load_table("shop.orders").scan().to_arrow().to_pylist()
    assert len(iced) == len(sent) * (1 if iceberg else 2) and _by_id(iced) == expected
    beside = {path.name for path in tmp_path.iterdir()}
    assert beside == {"lake", "checkpoints", file.name}
    assert {path.name for path in (tmp_path / "lake").iterdir()} <= {
        "merged",
        "parted",
        "files",
        ".files.penstock",
        "ice",
        "quarantine",
    }
    assert not Path("/etc/outside").exists()


def _by_id(rows: list[dict[str, Any]], names: Sequence[str] = NAMES) -> dict[int, dict[str, Any]]:
    return {row["id"]: {name: row[name] for name in names} for row in rows}


def test_terminal_is_given_no_order_by_a_message(session: Any, topics: Any, pipeline_file: Callable[..., Path]) -> None:
    from typer.testing import CliRunner

    from penstock.cli.main import app

    topic = topics.create(1)
    topics.send(topic, [json.dumps({"text": "\x1b]0;owned\x07"}).encode(), b"\x1b]0;owned\x07 not json"])
    file = pipeline_file(topic, decode={"format": "json", "schema": "text STRING"})
    run(load(file), RunOptions(available_now=True), session=session)
    for words in (
        ["preview", str(file)],
        ["quarantine", "list", str(file)],
        ["quarantine", "show", str(file), f"{topic}:0:1"],
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert "\x1b]" not in done.output and "\x07" not in done.output, words
    assert "owned" in CliRunner().invoke(app, ["preview", str(file)]).output

"""PostgreSQL in the contract suite: a database of its own for each test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from tests.contract.faults import lose_answer, overtake
from tests.contract.kits import Evolve, Rows

from penstock.model import COORDINATES, MergeRules
from penstock.sinks.postgres import PostgresSink


class PostgresKit:
    commits_in_task = False
    partitions = False
    evolves = True
    widens = True
    merges = True
    replaces = True

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        server = request.getfixturevalue("postgres")
        database = server.create_database()
        request.addfinalizer(lambda: server.drop_database(database))
        self.url = server.url(database)

    def sink(
        self,
        pipeline: str = "orders",
        name: str = "out",
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        rules: MergeRules | None = None,
    ) -> PostgresSink:
        return PostgresSink(
            pipeline,
            name,
            self.url,
            "out",
            rules=rules,
            create=True,
            evolve=evolve,
            keep_coordinates=keep_coordinates,
        )

    def sink_losing_answer(self, *, landed: bool) -> PostgresSink:
        sink = self.sink()
        lose_answer(sink, "_transact", landed=landed, error=psycopg.OperationalError)
        return sink

    def sink_overtaken(self, overtaking: Callable[[], None]) -> PostgresSink:
        sink = self.sink()
        overtake(sink, "_transact", overtaking)
        return sink

    def rows(self) -> Rows:
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            if connection.execute("SELECT to_regclass('public.out') AS found").fetchone() == {"found": None}:
                return []
            rows = connection.execute("SELECT * FROM public.out").fetchall()
        for row in rows:
            if COORDINATES in row:
                row[COORDINATES]["timestamp"] = datetime.fromisoformat(row[COORDINATES]["timestamp"])
        return rows

    def staged(self) -> set[str]:
        """The staging tables, and each batch that is committed."""
        with psycopg.connect(self.url) as connection:
            listed = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'penstock'").fetchall()
            names = {str(name) for (name,) in listed}
            if "penstock_commits" not in names:
                return names
            commits = connection.execute(
                "SELECT pipeline || '/' || sink || '/' || query_id FROM penstock.penstock_commits"
            )
            return names - {"penstock_commits"} | {str(name) for (name,) in commits.fetchall()}

    def trace(self) -> object:
        """Every table with its columns, and who wrote each of its rows last."""
        with psycopg.connect(self.url) as connection:
            columns = connection.execute(
                "SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns "
                "WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2, ordinal_position"
            ).fetchall()
            rows = {
                (schema, table): connection.execute(
                    sql.SQL("SELECT ctid::text, xmin::text FROM {} ORDER BY 1").format(sql.Identifier(schema, table))
                ).fetchall()
                for schema, table, *_ in columns
            }
        return columns, rows

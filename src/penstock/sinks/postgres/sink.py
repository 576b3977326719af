"""PostgreSQL, exactly once: rows staged by COPY in tasks, brought into the table in one transaction with the position.

The transaction first locks out every other commit of this pipeline and sink to this table, and goes on only where the
position is still the expected one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Literal

import psycopg
import pyarrow as pa
from psycopg import errors

from penstock.contracts import BaseSink
from penstock.model import (
    COMPUTED,
    COORDINATES,
    DELETES,
    BatchToken,
    Guarantee,
    Manifest,
    MergeRules,
    OffsetRange,
    Position,
    Refusal,
    SlotAttempt,
    Verdict,
    decide,
)
from penstock.model.pem import DatabaseTls
from penstock.postgres import Connection
from penstock.sinks.evolution import Evolve
from penstock.sinks.failures import mismatch
from penstock.sinks.merging import refuse_without_position
from penstock.sinks.postgres.commit import Landing, Ledger, lock_making, staged_tables
from penstock.sinks.postgres.connection import SinkDatabase, fetch, run
from penstock.sinks.postgres.load import find_records, replaced_rows
from penstock.sinks.postgres.names import OWN_SCHEMA, StagedName, TableName, own, query_mark, sink_mark, staged_name
from penstock.sinks.postgres.stage import PostgresStage, StagedColumn
from penstock.sinks.postgres.table import (
    Table,
    TableFit,
    alter_table,
    check_encoding,
    check_may_create,
    check_own_schema,
    check_schema,
    check_table,
    create_statement,
    fit_columns,
    read_table,
    refuse_absent,
)
from penstock.sinks.postgres.types import TableColumn, staged_type
from penstock.sinks.replacing import refuse_without_coordinates

_FORGOTTEN_SECONDS = 86_400


class PostgresSink(BaseSink):
    """Implements `contracts.Sink` over one table. Without `rules` it appends."""

    guarantee = Guarantee.EXACTLY_ONCE
    no_maintenance = "PostgreSQL maintains its tables itself (autovacuum)"

    def __init__(
        self,
        pipeline: str,
        name: str,
        url: str,
        table: str,
        *,
        tls: DatabaseTls | None = None,
        rules: MergeRules | None = None,
        create: bool = False,
        evolve: Evolve = "fail",
        on_reject: Literal["fail", "quarantine"] = "fail",
        keep_coordinates: bool = False,
        replaces: Sequence[OffsetRange] = (),
    ) -> None:
        self.pipeline = pipeline
        self.name = name
        self.table = TableName.parse(name, table)
        self.rules = rules
        self.create = create
        self.evolve = evolve
        self.on_reject = on_reject
        self.keep_coordinates = keep_coordinates
        self._database = SinkDatabase(name, url, tls)
        self._ledger = Ledger(pipeline, name, self.table)
        self._mark = sink_mark(pipeline, name, self.table)
        self._written: pa.Schema | None = None
        self._columns: dict[str, TableColumn] = {}
        self.replaces = tuple(replaces)

    def replacing(self, ranges: Sequence[OffsetRange]) -> PostgresSink:
        """The same sink, which appends: its commits take the rows of these ranges out of the table as well."""
        made = copy(self)
        made.replaces = tuple(ranges)
        return made

    def by_position(self) -> PostgresSink:
        """The same sink, which merges: a row that is there stays where it came from a later position."""
        assert self.rules is not None
        made = copy(self)
        made.rules = replace(self.rules, by_position=True)
        return made

    def would_replace(self) -> int | None:
        """Without changes: the number of rows of the table in the ranges."""
        with self._database.session("counting rows to replace") as connection:
            table = read_table(connection, self.table)
            if table is None or COORDINATES not in table.columns:
                return 0
            return int(fetch(connection, replaced_rows(self.table, self.replaces, "SELECT count(*)"))[0][0])

    @property
    def target(self) -> str:
        """Host, database and table."""
        return f"{self._database.address}/{self.table}"

    def prepare(self, schema: pa.Schema) -> None:
        """Create the staging schema and, if allowed, the table or missing columns; check that it can take the rows."""
        with (
            self._database.session("preparing the table", starting=self._written is None) as connection,
            connection.transaction(),
        ):
            lock_making(connection)
            table, fit = self._look(connection, schema)
            self._ledger.make(connection)
            if table is None:
                run(connection, create_statement(self.table, fit.written, self._keys))
                self._ledger.forget(connection)
            elif fit.changes_table:
                alter_table(self.name, connection, self.table, fit)
            table = read_table(connection, self.table)
        if self.rules is not None:
            refuse_without_position(self.name, fit.written, self.rules, kept=self.keep_coordinates)
        self._written = fit.written
        self._columns = dict(table.columns) if table is not None else {}

    def check(self, schema: pa.Schema) -> None:
        """Check that the table, if it exists, can take the rows, and that what is missing can be created."""
        self.changes(schema)

    def changes(self, schema: pa.Schema) -> list[str]:
        """Without changes: what `prepare` would change in the table, and which columns it would leave out."""
        with self._database.session("looking at the table", starting=True) as connection:
            table, fit = self._look(connection, schema)
        return ["create table"] if table is None else fit.told(table.columns)

    def position(self) -> Position | None:
        """The position in the database for this table; None where the table is gone."""
        with self._database.session("reading the position") as connection:
            return self._ledger.position(connection)

    def records_held(self, ranges: Sequence[OffsetRange]) -> set[tuple[str, int, int]] | None:
        """The records in these ranges that the table has rows of; None where it has no coordinates."""
        if not self.keep_coordinates:
            return None
        with self._database.session("looking for records in the table") as connection:
            table = read_table(connection, self.table)
            if table is not None and COORDINATES not in table.columns:
                return None
            return find_records(connection, self.table, ranges) if table is not None else set()

    def other_writers(self) -> Sequence[str]:
        """The other pipelines and sinks that have a position in the table."""
        with self._database.session("reading the position") as connection:
            return self._ledger.other_writers(connection)

    def pending_rejects(self, token: BatchToken) -> Sequence[Refusal]:
        """The rows that a version before 0.8 left out of this batch; kept until a later batch is committed."""
        with self._database.session("reading the position") as connection:
            return self._ledger.pending_rejects(connection, token)

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> PostgresStage:
        """In a task: begin the staging table of one attempt of a slot."""
        columns = [field for field in schema if field.name != COORDINATES and not field.name.startswith(COMPUTED)]
        if self._written is not None:
            columns = self._known(columns, self._written)
        types = {field.name: staged_type(field.type, self._columns.get(field.name)) for field in columns}
        return PostgresStage(
            self.name,
            self._database,
            staged_name(self._mark, token),
            writer,
            [StagedColumn(name, str(kind)) for name, kind in types.items()],
            keys=self._keys,
            deletes=self.rules is not None and DELETES in schema.names,
            quarantine=self.on_reject == "quarantine",
        )

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """Load the staged rows into the table, with the position. An empty batch is a commit too.

        Raises `RowsRefused` where the table refuses single rows and the sink may leave them out.
        """
        with self._database.session(f"committing batch {position.last.batch_id}") as connection:
            self._transact(connection, position, manifests, onto)
            self._clear(connection, position.last)

    def has_staged(self, manifests: Sequence[Manifest]) -> bool:
        """Whether the staging tables still exist."""
        with self._database.session("looking for staged rows") as connection:
            names = (own(table.name) for table in staged_tables(manifests))
            return all(fetch(connection, "SELECT to_regclass(%s)", name)[0][0] is not None for name in names)

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Drop the staging tables of the batch once it is committed.

        Before that another driver may still be about to commit them; afterwards the position stops it.
        """
        with self._database.session("reading the position") as connection:
            if decide(self._ledger.position(connection), token) is Verdict.COMMITTED:
                self._clear(connection, token)

    @property
    def _keys(self) -> tuple[str, ...]:
        return self.rules.keys if self.rules is not None else ()

    def _columns_written(self, schema: pa.Schema) -> pa.Schema:
        """The columns that go into the table: the row's, and where wanted its coordinates."""
        kept = [field for field in schema if not field.name.startswith(COMPUTED)]
        return pa.schema([field for field in kept if self.keep_coordinates or field.name != COORDINATES])

    def _known(self, columns: Sequence[pa.Field], written: pa.Schema) -> list[pa.Field]:
        """The columns that the table was prepared for; another one is lost, which only `ignore` may do."""
        unknown = [field.name for field in columns if field.name not in written.names]
        if unknown and self.evolve != "ignore":
            facts = {"pipeline": ", ".join(field.name for field in columns), "table": ", ".join(written.names)}
            raise mismatch(self.name, f"the table lacks {', '.join(unknown)}", facts)
        return [field for field in columns if field.name in written.names]

    def _look(self, connection: Connection, schema: pa.Schema) -> tuple[Table | None, TableFit]:
        """The table, if it is there, and how the rows go into it. Raises where they cannot."""
        check_encoding(self.name, connection)
        table, written = read_table(connection, self.table), self._columns_written(schema)
        if self.replaces:
            refuse_without_coordinates(self.name, schema.names, kept=self.keep_coordinates)
            if table is not None:
                refuse_without_coordinates(self.name, list(table.columns), kept=True)
        fit = TableFit(written) if table is None else fit_columns(table.columns, written, self.evolve)
        check_schema(self.name, fit.written, self.rules)
        if table is not None:
            check_table(self.name, self.table, table, fit.written, self.rules, DELETES in schema.names, fit)
        elif self.create:
            check_may_create(self.name, connection, self.table)
        else:
            raise refuse_absent(self.name, self.table, written, self._keys)
        check_own_schema(self.name, connection)
        return table, fit

    def _transact(
        self, connection: Connection, position: Position, manifests: Sequence[Manifest], onto: Position | None
    ) -> None:
        Landing(
            *(self.name, self.table, self._ledger, self._written, self.rules, self.on_reject == "quarantine"),
            *(position, onto, manifests, self._mark, self.replaces),
        ).land(connection)

    def _clear(self, connection: Connection, token: BatchToken) -> None:
        """Drop the staging tables of this batch and of older ones, and leftovers of old queries.

        After the commit and not in it: a running backup locks every table it has seen, and would block the
        commit until it ends. What cannot be dropped now is dropped after the next commit.
        """
        forgotten = time.time() - _FORGOTTEN_SECONDS
        with suppress(psycopg.Error):
            for name, made in self._staging_tables(connection):
                mine = made.query_mark == query_mark(token)
                if made.batch_id <= token.batch_id if mine else made.made < forgotten:
                    _drop(connection, name)

    def _staging_tables(self, connection: Connection) -> Iterator[tuple[str, StagedName]]:
        """The staging tables of this sink, whichever query made them."""
        rows = fetch(
            connection,
            "SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'"
            " AND relname LIKE %s",
            OWN_SCHEMA,
            f"staged\\_{self._mark}\\_%",
        )
        for (name,) in rows:
            made = StagedName.parse(name)
            if made is not None:
                yield name, made


def _drop(connection: Connection, name: str) -> None:
    """Drop a staging table, unless someone is reading it."""
    with suppress(errors.LockNotAvailable), connection.transaction():
        run(
            connection,
            "SET LOCAL lock_timeout = '500ms'; SET LOCAL synchronous_commit = off",
            f"DROP TABLE IF EXISTS {own(name)}",
        )

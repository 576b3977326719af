"""One batch into the table, with the position of the sink, in one transaction on the driver; and which rows the table
refuses.

The database says that a row is refused, not which. So the rows are numbered in the order of their source, and a range
that is refused is retried in two halves, each after a savepoint, the earlier one first: of two rows that cannot
both be in the table the earlier stays. That is about log2(rows) statements for each refused row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import psycopg
import pyarrow as pa

from penstock.contracts import RowsRefused
from penstock.errors import PenstockError, TerminalError, TransientError
from penstock.model import COMPUTED, BatchToken, Manifest, MergeRules, OffsetRange, Position, Refusal, Rule
from penstock.postgres import Connection, message_of, quote
from penstock.sinks.commit import position_moved
from penstock.sinks.postgres.connection import fetch, is_of_a_row, run
from penstock.sinks.postgres.load import PART, PLACE, SOURCE_ORDER, Load, replaced_rows
from penstock.sinks.postgres.names import OWN_SCHEMA, TableName, own, query_mark, sink_mark, text
from penstock.sinks.postgres.stage import COORDINATE_COLUMNS, REFUSED_HINT, ROW_REFUSED, StagedTable
from penstock.sinks.postgres.table import check_table, read_table

_NUMBER = quote(f"{COMPUTED}number")


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A staged row that the table refused, its source record if that is known, and the database's message."""

    record: OffsetRange | None
    message: str
    constraint: str | None


def apply_by_halves(connection: Connection, load: Load, scratch: str) -> Iterator[RefusedRow]:
    """Load the rows that the table accepts, and yield those that it refuses.

    Where rows are merged, the next row of its key replaces a refused row, as if that had never been in the batch.
    `scratch` is the prefix of the tables that this needs until the transaction ends.
    """
    out, relation = own(f"{scratch}_out"), f"({load.staged})"
    for round_number in itertools.count():
        picked = own(f"{scratch}_{round_number}")
        ordered = ", ".join(SOURCE_ORDER)
        numbered = f"SELECT *, row_number() OVER (ORDER BY {ordered}) AS {_NUMBER} FROM ({load.picked(relation)}) AS p"
        run(
            connection,
            f"CREATE UNLOGGED TABLE {picked} AS {numbered}",
            f"CREATE INDEX ON {picked} ({_NUMBER})",
            f"CREATE UNLOGGED TABLE IF NOT EXISTS {out} (LIKE {picked})",
        )
        refused = 0
        for number, error in _halves(connection, load, picked):
            refused += 1
            run(connection, f"INSERT INTO {out} SELECT * FROM {picked} WHERE {_NUMBER} = {number}")
            yield _refused_row(connection, picked, number, error)
        if not refused or load.rules is None:
            break
        relation = (
            f"(SELECT s.* FROM ({load.staged}) AS s WHERE EXISTS (SELECT 1 FROM {picked} AS p JOIN {out} AS o"
            f" USING ({PART}, {PLACE}) WHERE {load.same_key('p', 's')}) AND NOT EXISTS"
            f" (SELECT 1 FROM {out} AS o WHERE o.{PART} = s.{PART} AND o.{PLACE} = s.{PLACE}))"
        )
    run(connection, *(f"DROP TABLE {own(f'{scratch}_{each}')}" for each in (*range(round_number + 1), "out")))


def _halves(connection: Connection, load: Load, picked: str) -> Iterator[tuple[int, psycopg.Error]]:
    """The numbers of the refused rows, in order, each with the database's error."""
    count = fetch(connection, f"SELECT count(*) FROM {picked}")[0][0]
    pending = [(1, count + 1)] if count else []
    while pending:
        low, high = pending.pop()
        error = _try(connection, load, f"(SELECT * FROM {picked} WHERE {_NUMBER} >= {low} AND {_NUMBER} < {high})")
        if error is None:
            continue
        if high - low == 1:
            yield low, error
        else:
            middle = (low + high) // 2
            pending += [(middle, high), (low, middle)]


def _try(connection: Connection, load: Load, rows: str) -> psycopg.Error | None:
    try:
        with connection.transaction():
            run(connection, *load.statements(rows))
    except psycopg.Error as error:
        if not is_of_a_row(error):
            raise
        return error
    return None


def _refused_row(connection: Connection, picked: str, number: int, error: psycopg.Error) -> RefusedRow:
    topic, partition, offset, _ = (quote(column.name) for column in COORDINATE_COLUMNS)
    row = fetch(connection, f"SELECT {topic}, {partition}, {offset} FROM {picked} WHERE {_NUMBER} = {number}")[0]
    record = OffsetRange(row[0], row[1], row[2], row[2] + 1) if None not in row else None
    return RefusedRow(record, message_of(error), error.diag.constraint_name or error.diag.column_name)


MOST_REFUSED = 10_000
"""With more refused rows in one batch the table does not fit, and finding them all would take minutes."""

# Each statement sees what was committed while it waited for the lock; a driver that is stopped in the middle must not
# block its successor; one row per key sorts the batch in memory; a commit is on disk before the checkpoint relies on
# it; constraints are checked where the row can still be found.
_SETTINGS = """
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SET LOCAL TimeZone = 'UTC'; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '60s';
    SET LOCAL idle_in_transaction_session_timeout = '60s'; SET LOCAL work_mem = '256MB';
    SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
    SET CONSTRAINTS ALL IMMEDIATE"""


@dataclass(frozen=True)
class Landing:
    """One commit."""

    sink: str
    target: TableName
    ledger: Ledger
    written: pa.Schema | None
    """The columns that the table was prepared for; None where nothing was prepared, because there are no rows."""
    rules: MergeRules | None
    quarantine: bool
    position: Position
    onto: Position | None
    manifests: Sequence[Manifest]
    mark: str
    replaces: Sequence[OffsetRange] = ()
    """The rows of these ranges are deleted; the table has the coordinates."""

    def land(self, connection: Connection) -> None:
        """Everything or nothing, and only onto the expected position.

        Where the table refuses single rows, only the removal of their records from the staging tables is committed.
        """
        refused: list[Refusal] = []
        manifests: list[Manifest] = []
        with connection.transaction():
            run(connection, _SETTINGS)
            if self.ledger.lock(connection) != self.onto:
                raise position_moved(self.sink)
            with connection.transaction() as attempt:
                refused = self._apply(connection)
                if refused:
                    raise psycopg.Rollback(attempt)
            if refused:
                manifests = [_without(connection, manifest, refused) for manifest in self.manifests]
            else:
                self.ledger.record(connection, self.position)
        if refused:
            raise RowsRefused(refused, manifests)

    def _apply(self, connection: Connection) -> list[Refusal]:
        """Load the staged rows; returns those that the table refuses, where there is a quarantine for them."""
        table = read_table(connection, self.target)
        if table is None:
            raise TerminalError(
                "SINK_TABLE_GONE",
                f"sink {self.sink}: the table does not exist anymore",
                context={"table": self.target},
                hint="a new start creates a new table; the rows of the old one are not written again",
            )
        if self.replaces:
            run(connection, replaced_rows(self.target, self.replaces))
        tables = staged_tables(self.manifests)
        if not tables:
            return []
        assert self.written is not None, "prepare comes before rows are staged"
        self._check_staged(connection, tables)
        load = Load(self.target, self.written, dict(table.columns), tables, self.rules)
        check_table(self.sink, self.target, table, self.written, self.rules, load.deletes)
        try:
            with connection.transaction():
                run(connection, *load.statements(f"({load.picked(f'({load.staged})')})"))
        except psycopg.Error as error:
            if not is_of_a_row(error):
                raise
            return self._apply_by_halves(connection, load, error)
        return []

    def _check_staged(self, connection: Connection, tables: Sequence[StagedTable]) -> None:
        """Raise where staged rows are lost: a crash of the server empties unlogged tables, a clean-up may drop one."""
        for table in tables:
            there = fetch(connection, "SELECT to_regclass(%s)", own(table.name))[0][0] is not None
            found = fetch(connection, f"SELECT count(*) FROM {own(table.name)}")[0][0] if there else 0
            if found != table.rows:
                raise TransientError(
                    "SINK_STAGED_ROWS_LOST",
                    f"sink {self.sink}: {self._doing}: staged rows are missing",
                    context={"staged": table.rows, "found": found, "staging table": table.name},
                    hint="a restart of the database empties staging tables; the batch is staged again",
                )

    def _apply_by_halves(self, connection: Connection, load: Load, error: psycopg.Error) -> list[Refusal]:
        token = self.position.last
        scratch = f"scratch_{self.mark}_{query_mark(token)}_{token.batch_id:x}"
        refused: dict[OffsetRange, Refusal] = {}
        for count, row in enumerate(apply_by_halves(connection, load, scratch), 1):
            if not self.quarantine or row.record is None:
                raise self._refuse(row)
            if count > MOST_REFUSED:
                raise self._refuse(row, f"more than {MOST_REFUSED} rows")
            refusal = Refusal(row.record, ROW_REFUSED, f"sink {self.sink}: {_reason(row)}")
            refused.setdefault(row.record, refusal)
        if not refused and not self.quarantine:
            # Only the whole statement was refused: by a statement trigger, or by another writer's row that is gone now.
            raise self._refuse(RefusedRow(None, message_of(error), error.diag.constraint_name))
        return list(refused.values())

    @property
    def _doing(self) -> str:
        return f"committing batch {self.position.last.batch_id}"

    def _refuse(self, row: RefusedRow, count: str = "a row") -> PenstockError:
        hint = REFUSED_HINT
        if self.quarantine:
            hint = "change the table, or the pipeline, so that they fit" if row.record else "keep the column _penstock"
        return TerminalError(
            ROW_REFUSED,
            f"sink {self.sink}: {self._doing}: the table refuses {count}: {row.message}",
            context={
                "record": row.record or "unknown: the rows have no coordinates",
                "constraint or column": row.constraint or "none named",
                "table": self.target,
            },
            hint=hint,
        )


def staged_tables(manifests: Sequence[Manifest]) -> list[StagedTable]:
    """The staging tables that manifests name."""
    return [item for manifest in manifests for item in manifest.items if isinstance(item, StagedTable)]


def _without(connection: Connection, manifest: Manifest, refused: Sequence[Refusal]) -> Manifest:
    """Delete all rows of the refused records from the staging tables, so that no record is half in the table."""
    topic, partition, offset, _ = (quote(column.name) for column in COORDINATE_COLUMNS)
    records = [each.record for each in refused]
    places = [[r.topic for r in records], [r.partition for r in records], [r.start for r in records]]
    items = []
    for table in staged_tables([manifest]):
        statement = (
            f"DELETE FROM {own(table.name)} USING unnest(%s::text[], %s::integer[], %s::bigint[]) AS r (t, p, o)"
            f" WHERE ({topic}, {partition}, {offset}) = (r.t, r.p, r.o)"
        )
        items.append(replace(table, rows=table.rows - connection.execute(statement.encode(), places).rowcount))
    return replace(manifest, rows=sum(table.rows for table in items), items=tuple(items))


def _reason(row: RefusedRow) -> str:
    return f"{row.message} ({row.constraint})" if row.constraint and row.constraint not in row.message else row.message


# The position of a sink: one row of the table `penstock.penstock_commits`, which all pipelines share.
#
# Versions before 0.8 had a row for each query, and the rows that the table refused in its newest batch in
# `penstock.penstock_rejects`. Both are still read, and the first commit deletes them.

COMMITS, REJECTS = own("penstock_commits"), own("penstock_rejects")
# The number of the advisory lock that keeps two starts from creating the same tables at once.
_MAKING = 0x70656E73

_MAKE = f"""CREATE TABLE IF NOT EXISTS {COMMITS} (
    pipeline text, sink text, target text, query_id text, batch_id bigint NOT NULL, token jsonb NOT NULL,
    committed_at timestamptz NOT NULL, PRIMARY KEY (pipeline, sink, target, query_id))"""


def lock_making(connection: Connection) -> None:
    """Let one start at a time create schemas and tables, until the transaction ends."""
    run(connection, f"SELECT pg_advisory_xact_lock({_MAKING})")


@dataclass(frozen=True, slots=True)
class Ledger:
    """The position of one sink of one pipeline in one table."""

    pipeline: str
    sink: str
    target: TableName

    def make(self, connection: Connection) -> None:
        """Create the schema and the table where they do not exist. IF NOT EXISTS would need rights even if they do."""
        if fetch(connection, "SELECT to_regnamespace(%s)", OWN_SCHEMA)[0][0] is None:
            run(connection, f"CREATE SCHEMA {quote(OWN_SCHEMA)}")
        if not _exists(connection, COMMITS):
            run(connection, _MAKE)

    def forget(self, connection: Connection) -> None:
        """Delete every position of a target table that was just created: they belong to a dropped table of its name."""
        run(connection, f"DELETE FROM {COMMITS} WHERE target = {text(str(self.target))}")

    def lock(self, connection: Connection) -> Position | None:
        """Lock out other commits of this pipeline and sink until the transaction ends; returns the position."""
        run(connection, f"SELECT pg_advisory_xact_lock({int(sink_mark(self.pipeline, self.sink, self.target), 16)})")
        return self.position(connection, "FOR UPDATE")

    def position(self, connection: Connection, locking: str = "") -> Position | None:
        """The position, or None where there was no commit or the target table is gone.

        The first row is the newest. A commit removes the rows of all other queries, so one that has no number
        was written by an older version, after any that has one.
        """
        if not _exists(connection, COMMITS, self.target.quoted):
            return None
        rows = fetch(
            connection,
            f"SELECT token::text FROM {COMMITS} WHERE {self._mine} AND token <> '{{}}'"
            f" ORDER BY token ? 'number', committed_at DESC {locking}",
        )
        found = [Position.from_json(stored) for (stored,) in rows]
        return Position.united(found[0], found[1:]) if found else None

    def record(self, connection: Connection, position: Position) -> None:
        """Store a position: it replaces that of every query."""
        token = position.last
        values = (self.pipeline, self.sink, str(self.target), token.query_id)
        run(
            connection,
            f"DELETE FROM {COMMITS} WHERE {self._mine} AND query_id <> {text(token.query_id)}",
            f"INSERT INTO {COMMITS} (pipeline, sink, target, query_id, batch_id, token, committed_at)"
            f" VALUES ({', '.join(map(text, values))}, {token.batch_id}, {text(position.to_json())}, clock_timestamp())"
            " ON CONFLICT (pipeline, sink, target, query_id) DO UPDATE"
            " SET batch_id = excluded.batch_id, token = excluded.token, committed_at = excluded.committed_at",
        )
        if token.rule is not Rule.MOVES and _exists(connection, REJECTS):
            run(connection, f"DELETE FROM {REJECTS} WHERE {self._mine}")

    def other_writers(self, connection: Connection) -> list[str]:
        """The other pipelines and sinks with a position in the same table."""
        if not _exists(connection, COMMITS, self.target.quoted):
            return []
        rows = fetch(
            connection,
            f"SELECT DISTINCT pipeline, sink FROM {COMMITS} WHERE target = {text(str(self.target))}"
            f" AND NOT {self._mine}",
        )
        return sorted(f"{pipeline}/{sink}" for pipeline, sink in rows)

    def pending_rejects(self, connection: Connection, token: BatchToken) -> Sequence[Refusal]:
        """The rows of a batch that a version before 0.8 committed without, one for each record."""
        if not _exists(connection, REJECTS):
            return ()
        rows = fetch(
            connection,
            'SELECT DISTINCT ON (topic, "partition", "offset") topic, "partition", "offset", code, message'
            f" FROM {REJECTS} WHERE {self._mine} AND query_id = {text(token.query_id)}"
            f' AND batch_id = {token.batch_id} ORDER BY topic, "partition", "offset"',
        )
        return [Refusal(OffsetRange(topic, part, at, at + 1), code, said) for topic, part, at, code, said in rows]

    @property
    def _mine(self) -> str:
        return f"(pipeline, sink, target) = ({text(self.pipeline)}, {text(self.sink)}, {text(str(self.target))})"


def _exists(connection: Connection, *tables: str) -> bool:
    """Whether all of these tables, given as quoted names, exist."""
    asked = "SELECT bool_and(to_regclass(name) IS NOT NULL) FROM unnest(%s::text[]) AS name"
    return bool(fetch(connection, asked, list(tables))[0][0])

"""One batch into the table, with the position of the sink, in one transaction on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import psycopg
import pyarrow as pa

from penstock.contracts import RowsRefused
from penstock.errors import PenstockError, TerminalError, TransientError
from penstock.model import Manifest, MergeRules, OffsetRange, Position, Refusal
from penstock.sinks.commit import position_moved
from penstock.sinks.postgres.connection import Connection, fetch, run
from penstock.sinks.postgres.failures import is_of_a_row, message_of
from penstock.sinks.postgres.ledger import Ledger
from penstock.sinks.postgres.load import Load, replaced_rows
from penstock.sinks.postgres.names import TableName, own, query_mark, quote
from penstock.sinks.postgres.refused import RefusedRow, apply_by_halves
from penstock.sinks.postgres.stage import COORDINATE_COLUMNS, REFUSED_HINT, ROW_REFUSED, StagedTable
from penstock.sinks.postgres.table import check_table, read_table

MOST_REFUSED = 10_000
"""More refused rows in one batch than this say that the table does not fit, and would take minutes to find."""

# Each statement sees what was committed while it waited for the lock; a driver that is stopped in the middle must not
# hold its successor up; one row a key sorts the batch in memory; a commit is on disk before the checkpoint relies on
# it; constraints are checked where the row can still be found.
_SETTINGS = """
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SET LOCAL TimeZone = 'UTC'; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '60s';
    SET LOCAL idle_in_transaction_session_timeout = '60s'; SET LOCAL work_mem = '256MB';
    SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
    SET CONSTRAINTS ALL IMMEDIATE"""


@dataclass(frozen=True)
class Landing:
    """What one commit is about."""

    sink: str
    target: TableName
    ledger: Ledger
    written: pa.Schema | None
    """The columns that the table was prepared for; none where the commit has no rows and nothing was prepared."""
    rules: MergeRules | None
    quarantine: bool
    position: Position
    onto: Position | None
    manifests: Sequence[Manifest]
    mark: str
    replaces: Sequence[OffsetRange] = ()
    """The rows of these ranges go out of the table, which keeps the coordinates."""

    def land(self, connection: Connection) -> None:
        """Everything or nothing, and only onto the expected position.

        Where the table refuses single rows, all that is committed is that the staging tables lack their records.
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
        """Bring the staged rows into the table; the rows that it refuses, where there is a quarantine for them."""
        table = read_table(connection, self.target)
        if table is None:
            raise TerminalError(
                "SINK_TABLE_GONE",
                f"sink {self.sink}: the table does not exist any more",
                context={"table": self.target},
                hint="a new start makes a new table; what was in the old one is not written again",
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
        """A crash of the server empties unlogged tables; another clean-up may have dropped one."""
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
            # Only the whole was refused: a trigger for each statement, or another writer's row that is gone again.
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
                "record": row.record or "not known: the rows do not say where they came from",
                "constraint or column": row.constraint or "none named",
                "table": self.target,
            },
            hint=hint,
        )


def staged_tables(manifests: Sequence[Manifest]) -> list[StagedTable]:
    """The staging tables that manifests name."""
    return [item for manifest in manifests for item in manifest.items if isinstance(item, StagedTable)]


def _without(connection: Connection, manifest: Manifest, refused: Sequence[Refusal]) -> Manifest:
    """Take every row of the refused records out of the staging tables, so that a record is never half in the table."""
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

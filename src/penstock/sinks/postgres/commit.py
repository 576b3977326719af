"""One batch into the table, with its token, in one transaction on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
import pyarrow as pa

from penstock.errors import PenstockError, TerminalError, TransientError
from penstock.model import BatchToken, MergeRules, OffsetRange, Refusal
from penstock.sinks.failures import other_offsets
from penstock.sinks.postgres.connection import Connection, fetch, run
from penstock.sinks.postgres.failures import is_of_a_row, message_of
from penstock.sinks.postgres.ledger import Ledger
from penstock.sinks.postgres.load import Load, replaced_rows
from penstock.sinks.postgres.names import TableName, own, query_mark
from penstock.sinks.postgres.refused import RefusedRow, apply_by_halves
from penstock.sinks.postgres.stage import REFUSED_HINT, ROW_REFUSED, StagedTable
from penstock.sinks.postgres.table import check_table, read_table

MOST_REFUSED = 10_000
"""More refused rows in one batch than this say that the table does not fit, and would take minutes to find."""

# A driver that is stopped in the middle must not hold its successor up; one row a key sorts the batch in memory;
# a commit is on disk before the checkpoint relies on it; constraints are checked where the row can still be found.
_SETTINGS = """
    SET LOCAL TimeZone = 'UTC'; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '60s';
    SET LOCAL idle_in_transaction_session_timeout = '60s'; SET LOCAL work_mem = '256MB';
    SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
    SET CONSTRAINTS ALL IMMEDIATE"""


@dataclass(frozen=True)
class Batch:
    """What one commit is about."""

    sink: str
    target: TableName
    ledger: Ledger
    written: pa.Schema
    rules: MergeRules | None
    quarantine: bool
    token: BatchToken
    tables: Sequence[StagedTable]
    mark: str
    replaces: Sequence[OffsetRange] = ()
    """The rows of these ranges go out of the table, which keeps the coordinates."""

    def commit(self, connection: Connection) -> None:
        """Everything or nothing; nothing where the batch is there already."""
        with connection.transaction():
            run(connection, _SETTINGS)
            if already_held(self.sink, self.ledger.lock(connection, self.token), self.token):
                return
            if self.replaces:
                run(connection, replaced_rows(self.target, self.replaces))
            if self.tables:
                self._check_staged(connection)
                self._apply(connection, self._load(connection))
            self.ledger.record(connection, self.token)

    def _load(self, connection: Connection) -> Load:
        table = read_table(connection, self.target)
        if table is None:
            raise TerminalError(
                "SINK_TABLE_GONE",
                f"sink {self.sink}: the table is not there any more",
                context={"table": self.target},
                hint="a new start makes a new table; what was in the old one is not written again",
            )
        load = Load(self.target, self.written, dict(table.columns), self.tables, self.rules)
        check_table(self.sink, self.target, table, self.written, self.rules, load.deletes)
        return load

    def _check_staged(self, connection: Connection) -> None:
        """A crash of the server empties unlogged tables; another clean-up may have taken one away."""
        for table in self.tables:
            there = fetch(connection, "SELECT to_regclass(%s)", own(table.name))[0][0] is not None
            found = fetch(connection, f"SELECT count(*) FROM {own(table.name)}")[0][0] if there else 0
            if found != table.rows:
                raise TransientError(
                    "SINK_STAGED_ROWS_LOST",
                    f"sink {self.sink}: committing batch {self.token.batch_id}: staged rows are not there any more",
                    context={"staged": table.rows, "found": found, "staging table": table.name},
                    hint="a restart of the database empties staging tables; the batch is staged again",
                )

    def _apply(self, connection: Connection, load: Load) -> None:
        try:
            with connection.transaction():
                run(connection, *load.statements(f"({load.picked(f'({load.staged})')})"))
        except psycopg.Error as error:
            if not is_of_a_row(error):
                raise
            self._apply_without_refused(connection, load, error)

    def _apply_without_refused(self, connection: Connection, load: Load, error: psycopg.Error) -> None:
        scratch = f"scratch_{self.mark}_{query_mark(self.token)}_{self.token.batch_id:x}"
        refused: list[Refusal] = []
        for row in apply_by_halves(connection, load, scratch):
            if not self.quarantine or row.record is None:
                raise self._refuse(row)
            refused.append(Refusal(row.record, ROW_REFUSED, f"sink {self.sink}: {_said(row)}"))
            if len(refused) > MOST_REFUSED:
                raise self._refuse(row, f"more than {MOST_REFUSED} rows")
        if not refused and not self.quarantine:
            # Only the whole was refused: a trigger for each statement, or another writer's row that is gone again.
            raise self._refuse(RefusedRow(None, message_of(error), error.diag.constraint_name))
        self.ledger.reject(connection, self.token, refused)

    def _refuse(self, row: RefusedRow, count: str = "a row") -> PenstockError:
        hint = REFUSED_HINT
        if self.quarantine:
            hint = "change the table, or the pipeline, so that they fit" if row.record else "keep the column _penstock"
        return TerminalError(
            ROW_REFUSED,
            f"sink {self.sink}: committing batch {self.token.batch_id}: the table refuses {count}: {row.message}",
            context={
                "record": row.record or "not known: the rows do not say where they came from",
                "constraint or column": row.constraint or "none named",
                "table": self.target,
            },
            hint=hint,
        )


def already_held(sink: str, newest: BatchToken | None, token: BatchToken) -> bool:
    """Whether the query's newest commit covers the batch. Raises where it has other offsets."""
    if newest is None:
        return False
    if newest.batch_id == token.batch_id and newest.ranges != token.ranges:
        raise other_offsets(sink, token, newest)
    return newest.batch_id >= token.batch_id


def _said(row: RefusedRow) -> str:
    return f"{row.message} ({row.constraint})" if row.constraint and row.constraint not in row.message else row.message

"""The position of a sink: one row of the table `penstock.penstock_commits`, which all pipelines share.

Versions before 0.8 kept a row for each query, and the rows that the table refused in its newest batch in
`penstock.penstock_rejects`. Both are still read, and the first commit clears them away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.model import BatchToken, OffsetRange, Position, Refusal, Rule
from penstock.sinks.postgres.connection import Connection, fetch, run
from penstock.sinks.postgres.names import OWN_SCHEMA, TableName, own, quote, sink_mark, text

COMMITS, REJECTS = own("penstock_commits"), own("penstock_rejects")
# A number of our own for the advisory lock that keeps two starts from making the same tables at once.
_MAKING = 0x70656E73

_MAKE = f"""CREATE TABLE IF NOT EXISTS {COMMITS} (
    pipeline text, sink text, target text, query_id text, batch_id bigint NOT NULL, token jsonb NOT NULL,
    committed_at timestamptz NOT NULL, PRIMARY KEY (pipeline, sink, target, query_id))"""


def lock_making(connection: Connection) -> None:
    """Let one start at a time make schemas and tables, to the end of the transaction."""
    run(connection, f"SELECT pg_advisory_xact_lock({_MAKING})")


@dataclass(frozen=True, slots=True)
class Ledger:
    """The position of one sink of one pipeline in one table."""

    pipeline: str
    sink: str
    target: TableName

    def make(self, connection: Connection) -> None:
        """Make the schema and the table where they do not exist. IF NOT EXISTS asks for rights even then."""
        if fetch(connection, "SELECT to_regnamespace(%s)", OWN_SCHEMA)[0][0] is None:
            run(connection, f"CREATE SCHEMA {quote(OWN_SCHEMA)}")
        if not _exists(connection, COMMITS):
            run(connection, _MAKE)

    def forget(self, connection: Connection) -> None:
        """Remove every position in a target table that was just created: what its namesake held went with it."""
        run(connection, f"DELETE FROM {COMMITS} WHERE target = {text(str(self.target))}")

    def lock(self, connection: Connection) -> Position | None:
        """Keep every other commit of this pipeline and sink out until the transaction ends; the position."""
        run(connection, f"SELECT pg_advisory_xact_lock({int(sink_mark(self.pipeline, self.sink, self.target), 16)})")
        return self.position(connection, "FOR UPDATE")

    def position(self, connection: Connection, locking: str = "") -> Position | None:
        """The position, or none where no commit was made or the target table is gone.

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
        """Make a position current: it replaces that of every query."""
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
    """Whether every one of these tables, given as quoted names, is there."""
    asked = "SELECT bool_and(to_regclass(name) IS NOT NULL) FROM unnest(%s::text[]) AS name"
    return bool(fetch(connection, asked, list(tables))[0][0])

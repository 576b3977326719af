"""What the database remembers of a sink: the newest batch of each query, and the rows refused in it.

Two tables in the schema `penstock`, shared by all pipelines. A commit row is locked before anything is written, so
of two drivers with one token the second waits and then finds it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.model import BatchToken, OffsetRange, Refusal
from penstock.sinks.postgres.connection import Connection, fetch, run
from penstock.sinks.postgres.names import OWN_SCHEMA, TableName, own, quote, text

COMMITS, REJECTS = own("penstock_commits"), own("penstock_rejects")
# A number of our own for the advisory lock that keeps two starts from making the same tables at once.
_MAKING = 0x70656E73

_MAKE = (
    f"""CREATE TABLE IF NOT EXISTS {COMMITS} (
        pipeline text, sink text, target text, query_id text, batch_id bigint NOT NULL, token jsonb NOT NULL,
        committed_at timestamptz NOT NULL, PRIMARY KEY (pipeline, sink, target, query_id))""",
    f"""CREATE TABLE IF NOT EXISTS {REJECTS} (
        pipeline text NOT NULL, sink text NOT NULL, target text NOT NULL, query_id text NOT NULL,
        batch_id bigint NOT NULL, topic text NOT NULL, "partition" integer NOT NULL, "offset" bigint NOT NULL,
        code text NOT NULL, message text NOT NULL)""",
    f"CREATE INDEX IF NOT EXISTS penstock_rejects_of_a_batch ON {REJECTS} (pipeline, sink, target, query_id, batch_id)",
)


def lock_making(connection: Connection) -> None:
    """Let one start at a time make schemas and tables, to the end of the transaction."""
    run(connection, f"SELECT pg_advisory_xact_lock({_MAKING})")


@dataclass(frozen=True, slots=True)
class Ledger:
    """The entries of one sink of one pipeline for one table."""

    pipeline: str
    sink: str
    target: TableName

    def make(self, connection: Connection) -> None:
        """Make the schema and the two tables where they are not there. IF NOT EXISTS asks for rights even then."""
        if fetch(connection, "SELECT to_regnamespace(%s)", OWN_SCHEMA)[0][0] is None:
            run(connection, f"CREATE SCHEMA {quote(OWN_SCHEMA)}")
        if None in fetch(connection, "SELECT to_regclass(%s), to_regclass(%s)", COMMITS, REJECTS)[0]:
            run(connection, *_MAKE)

    def forget(self, connection: Connection) -> None:
        """The table is made anew: what its namesake held went with it."""
        run(connection, f"DELETE FROM {COMMITS} WHERE target = {text(str(self.target))}")

    def newest(self, connection: Connection, query_id: str | None = None) -> BatchToken | None:
        """The newest commit that the table holds, of one query or of any. None where the table is gone."""
        found = fetch(connection, "SELECT to_regclass(%s), to_regclass(%s)", COMMITS, self.target.quoted)[0]
        if None in found:
            return None
        of_query = f" AND query_id = {text(query_id)}" if query_id is not None else ""
        rows = fetch(
            connection,
            f"SELECT token::text FROM {COMMITS} WHERE {self._mine}{of_query} AND batch_id >= 0"
            " ORDER BY committed_at DESC LIMIT 1",
        )
        return BatchToken.from_json(rows[0][0]) if rows else None

    def lock(self, connection: Connection, token: BatchToken) -> BatchToken | None:
        """Lock the query's commit row to the end of the transaction; the batch it stands for, if any."""
        run(
            connection,
            f"INSERT INTO {COMMITS} VALUES ({self._values(token.query_id)}, -1, '{{}}', clock_timestamp())"
            " ON CONFLICT DO NOTHING",
        )
        row = fetch(
            connection,
            f"SELECT batch_id, token::text FROM {COMMITS} WHERE {self._of(token)} FOR UPDATE",
        )[0]
        return BatchToken.from_json(row[1]) if row[0] >= 0 else None

    def record(self, connection: Connection, token: BatchToken) -> None:
        """Write the commit row, and forget the rows refused in earlier batches."""
        run(
            connection,
            f"UPDATE {COMMITS} SET batch_id = {token.batch_id}, token = {text(token.to_json())},"
            f" committed_at = clock_timestamp() WHERE {self._of(token)}",
            f"DELETE FROM {REJECTS} WHERE {self._of(token)} AND batch_id < {token.batch_id}",
        )

    def reject(self, connection: Connection, token: BatchToken, refused: Sequence[Refusal]) -> None:
        """Note rows that the table refused."""
        with connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {REJECTS} VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)".encode(),
                [
                    (
                        *(self.pipeline, self.sink, str(self.target), token.query_id, token.batch_id),
                        *(each.record.topic, each.record.partition, each.record.start, each.code, each.message),
                    )
                    for each in refused
                ],
            )

    def rejected(self, connection: Connection, token: BatchToken) -> list[Refusal]:
        """The rows that the table refused in this batch, one a record."""
        rows = fetch(
            connection,
            f'SELECT DISTINCT ON (topic, "partition", "offset") topic, "partition", "offset", code, message'
            f" FROM {REJECTS} WHERE {self._of(token)} AND batch_id = {token.batch_id}"
            ' ORDER BY topic, "partition", "offset"',
        )
        return [Refusal(OffsetRange(topic, part, at, at + 1), code, said) for topic, part, at, code, said in rows]

    @property
    def _mine(self) -> str:
        return f"(pipeline, sink, target) = ({text(self.pipeline)}, {text(self.sink)}, {text(str(self.target))})"

    def _of(self, token: BatchToken) -> str:
        return f"{self._mine} AND query_id = {text(token.query_id)}"

    def _values(self, query_id: str) -> str:
        return ", ".join(text(each) for each in (self.pipeline, self.sink, str(self.target), query_id))

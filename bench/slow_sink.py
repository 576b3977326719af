"""A PostgreSQL table whose commits are slow on purpose, and which counts what is written to it.

Triggers of the statement that brings a batch in sleep a fixed time and a time for each row, in its transaction: staging
is as fast as ever, and the batch waits for its commit. They also count the rows put in and those written over, so that
a batch that came twice shows although the table has one row a key.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from processes import BenchError

from penstock.model import COORDINATES

TABLE = "public.orders"
_TRIGGER = """
    CREATE FUNCTION slow_{event}() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE put bigint;
    BEGIN
        SELECT count(*) INTO put FROM put_rows;
        INSERT INTO written VALUES ('{event}', put);
        PERFORM pg_sleep({fixed} + put / {rows_a_second}::float);
        RETURN NULL;
    END $$;
    CREATE TRIGGER slow_{event} AFTER {event} ON {table} REFERENCING NEW TABLE AS put_rows
        FOR EACH STATEMENT EXECUTE FUNCTION slow_{event}()"""


@dataclass(frozen=True)
class SlowTable:
    """The table in a database of its own."""

    url: str

    def make(self, fixed_seconds: float, rows_a_second: int) -> None:
        """Make it, and what slows it down."""
        # Both triggers belong to an upsert; the fixed time is slept by one of them.
        triggers = [
            _TRIGGER.format(event=event, fixed=fixed, rows_a_second=rows_a_second, table=TABLE)
            for event, fixed in (("insert", fixed_seconds), ("update", 0.0))
        ]
        with psycopg.connect(self.url) as connection:
            connection.execute(
                f"CREATE TABLE {TABLE} (order_id bigint PRIMARY KEY, customer_id text, amount double precision,"
                f' event_time timestamptz, "{COORDINATES}" jsonb);'
                " CREATE TABLE written (how text, put bigint)".encode()
            )
            for trigger in triggers:
                connection.execute(trigger.encode())

    def landed(self) -> int:
        """How many rows were put in."""
        return self._ask("SELECT coalesce(sum(put), 0) FROM written WHERE how = 'insert'")[0]

    def check(self, job: str, sent: int) -> None:
        """Raise unless the orders 0 to `sent` are there, each written once."""
        rows, distinct, lowest, highest = self._ask(
            f"SELECT count(*), count(DISTINCT order_id), min(order_id), max(order_id) FROM {TABLE}"
        )
        over = self._ask("SELECT coalesce(sum(put), 0) FROM written WHERE how = 'update'")[0]
        put = self.landed()
        whole = rows == distinct == put == sent and (lowest, highest) == (0, sent - 1)
        if not whole or over:
            raise BenchError(
                f"{job}: the table is wrong: sent {sent:,}, there {rows:,}, distinct {distinct:,}, put in {put:,}, "
                f"written over {over:,}"
            )

    def _ask(self, query: str) -> tuple[int, ...]:
        with psycopg.connect(self.url) as connection:
            row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return tuple(int(value or 0) for value in row)

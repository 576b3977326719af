"""Which rows of a batch the table refuses: found by halving, with the good rows left in the table.

The database says that a row is refused, not which. So the rows are numbered in the order of their source, and a
range that is refused is tried again in two halves, each behind a savepoint, the earlier one first: of two rows that
cannot both be in the table the earlier stays. That is about log2(rows) statements for each refused row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg

from penstock.model import COMPUTED, OffsetRange
from penstock.sinks.postgres.connection import Connection, fetch, run
from penstock.sinks.postgres.failures import is_of_a_row, message_of
from penstock.sinks.postgres.load import PART, PLACE, SOURCE_ORDER, Load
from penstock.sinks.postgres.names import own, quote
from penstock.sinks.postgres.stage import COORDINATE_COLUMNS

_NUMBER = quote(f"{COMPUTED}number")


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A staged row that the table refused, where it came from if that is known, and what the database said."""

    record: OffsetRange | None
    message: str
    constraint: str | None


def apply_by_halves(connection: Connection, load: Load, scratch: str) -> Iterator[RefusedRow]:
    """Bring into the table what it takes, and yield the rows that it refuses.

    Where rows are merged, a refused row gives way to the next of its key, as if it had never been in the batch.
    `scratch` begins the names of the tables that this needs until the transaction ends.
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
    """The numbers of the refused rows, in order, each with what the database said."""
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

"""How rows go into a table that is there: what of them is written, and what the table is given first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import psycopg
import pyarrow as pa
from psycopg import errors

from penstock.sinks.evolution import Evolve
from penstock.sinks.failures import mismatch
from penstock.sinks.postgres.connection import Connection, run
from penstock.sinks.postgres.failures import message_of
from penstock.sinks.postgres.names import TableName, quote
from penstock.sinks.postgres.types import TableColumn, declared, new_column_type, widened_type

# A column that is widened may have the whole table written anew; nobody reads it meanwhile.
_SETTINGS = "SET LOCAL lock_timeout = '60s'; SET LOCAL statement_timeout = 0"


@dataclass(frozen=True, slots=True)
class TableFit:
    """What follows from the columns of both sides and from `evolve`."""

    written: pa.Schema
    added: tuple[pa.Field, ...] = ()
    widened: Mapping[str, str] = field(default_factory=dict)
    """The types that columns get."""
    left_out: tuple[str, ...] = ()

    @property
    def changes_table(self) -> bool:
        """Whether the table has to change first."""
        return bool(self.added or self.widened)

    def told(self, columns: Mapping[str, TableColumn]) -> list[str]:
        """What follows, for people, a line each."""
        return [
            *(f"add column {added.name} {new_column_type(added.type)}" for added in self.added),
            *(f"widen {name} {columns[name].declared} -> {kind}" for name, kind in self.widened.items()),
            *(f"ignore column {name}" for name in self.left_out),
        ]


def fit_columns(columns: Mapping[str, TableColumn], schema: pa.Schema, evolve: Evolve) -> TableFit:
    """What is to be done. Whether the table can take the rows then is for `check_table` to say.

    A value that is too large for its column is refused at the INSERT, as the one row it is; so under any `evolve` but
    `widen` a smaller integer, a shorter text or fewer digits before the point will do.
    """
    there = [each for each in schema if each.name in columns]
    lacking = [each for each in schema if each.name not in columns]
    if evolve == "ignore":
        return TableFit(pa.schema(there), left_out=tuple(each.name for each in lacking))
    if evolve == "fail":
        return TableFit(schema)
    wider = {each.name: widened_type(each.type, columns[each.name]) for each in there if evolve == "widen"}
    widened = {name: kind for name, kind in wider.items() if kind is not None}
    return TableFit(schema, tuple(each.with_nullable(True) for each in lacking), widened)


def alter_statement(name: TableName, fit: TableFit) -> str:
    """The statement that gives a table what it lacks."""
    added = [f"ADD COLUMN IF NOT EXISTS {declared(each)}" for each in fit.added]
    widened = [f"ALTER COLUMN {quote(column)} TYPE {kind}" for column, kind in fit.widened.items()]
    return f"ALTER TABLE {name.quoted} {', '.join([*added, *widened])}"


def alter_table(sink: str, connection: Connection, name: TableName, fit: TableFit) -> None:
    """Give a table what it lacks. Refused where something else in the database depends on a column's type."""
    try:
        run(connection, _SETTINGS, alter_statement(name, fit))
    except (errors.FeatureNotSupported, errors.InvalidTableDefinition, errors.DatatypeMismatch) as error:
        raise _refused(sink, name, fit, error) from None


def _refused(sink: str, name: TableName, fit: TableFit, error: psycopg.Error) -> Exception:
    return mismatch(
        sink,
        f"the table's columns cannot be changed: {message_of(error)}",
        {"table": name, "wanted": ", ".join(f"{column} {kind}" for column, kind in fit.widened.items()) or "none"},
        f"drop what depends on the column, then run: {alter_statement(name, fit)}",
    )

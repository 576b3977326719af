"""The target table: created from the rows' columns, or checked whether it can take them, all problems in one error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import psycopg
import pyarrow as pa
from psycopg import errors

from penstock.errors import MissingError
from penstock.model import MergeRules
from penstock.postgres import Connection, message_of, quote
from penstock.sinks.evolution import Evolve
from penstock.sinks.failures import mismatch
from penstock.sinks.postgres.connection import fetch, run
from penstock.sinks.postgres.names import NAME_BYTES, OWN_SCHEMA, TableName
from penstock.sinks.postgres.types import TableColumn, can_be_key, declared, fits, new_column_type, widened_type

_RESERVED = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})
_TABLES = ("r", "p")

_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), b.typname, n.nspname, b.typtype = 'e',
           CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,
           a.attnotnull OR t.typnotnull,
           a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL,
           a.attgenerated <> '' OR a.attidentity = 'a'
    FROM pg_attribute a
    JOIN pg_type t ON t.oid = a.atttypid
    JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
    JOIN pg_namespace n ON n.oid = b.typnamespace
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum"""

# What ON CONFLICT (keys) can find: whole, plain columns, valid, checked at once.
_UNIQUE = """
    SELECT array_agg(a.attname::text)
    FROM pg_index i
    CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indexprs IS NULL AND k.place <= i.indnkeyatts
    GROUP BY i.indexrelid"""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is there."""

    kind: str
    columns: Mapping[str, TableColumn]
    unique: tuple[frozenset[str], ...]
    rights: frozenset[str]
    is_own: bool
    """Whether its columns may be changed."""


def read_table(connection: Connection, name: TableName) -> Table | None:
    """The table as it is now, or none."""
    found = fetch(
        connection,
        "SELECT c.oid, c.relkind::text, array(SELECT r FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) r"
        " WHERE has_table_privilege(c.oid, r)), pg_has_role(c.relowner, 'USAGE')"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s AND c.relkind NOT IN ('i', 'I', 'S', 't', 'c')",
        name.schema,
        name.name,
    )
    if not found:
        return None
    oid, kind, rights, is_own = found[0]
    columns = [TableColumn(*row) for row in fetch(connection, _COLUMNS, oid)]
    unique = tuple(frozenset(row[0]) for row in fetch(connection, _UNIQUE, oid))
    return Table(kind, {column.name: column for column in columns}, unique, frozenset(rights), is_own)


def check_schema(sink: str, schema: pa.Schema, rules: MergeRules | None) -> None:
    """Refuse rows that no table can hold as they are."""
    problems = {f.name: f"{f.type}: no such type in PostgreSQL" for f in schema if new_column_type(f.type) is None}
    for name in schema.names:
        if len(name.encode()) > NAME_BYTES:
            problems[name] = f"a name of more than {NAME_BYTES} bytes"
        elif name in _RESERVED or "\0" in name or not name:
            problems[name] = "a name that PostgreSQL keeps for itself"
        elif schema.names.count(name) > 1:
            problems[name] = "there twice"
    keys = rules.keys if rules is not None else ()
    newer = [rules.when_newer] if rules is not None and rules.when_newer else []
    for name in [*keys, *newer]:
        if name not in schema.names:
            problems[name] = "not in the rows"
        elif name in keys and not can_be_key(schema.field(name).type, None):
            problems[name] = f"{schema.field(name).type}: cannot be a key"
    if problems:
        raise mismatch(sink, "columns that no table can take", problems)


def check_table(
    sink: str,
    name: TableName,
    table: Table,
    written: pa.Schema,
    rules: MergeRules | None,
    deletes: bool,
    fit: TableFit | None = None,
) -> None:
    """Refuse a table that cannot take the rows, even after the changes in `fit`."""
    if table.kind not in _TABLES:
        raise mismatch(sink, "not a table", {"table": f"{name} is a view or a foreign table"})
    added = {field.name for field in fit.added} if fit is not None else set()
    lacking = [field for field in written if field.name not in table.columns and field.name not in added]
    problems = dict(_differences(table, written, rules, fit.widened if fit is not None else {}))
    if lacking:
        problems |= {"pipeline": ", ".join(written.names), "table": ", ".join(table.columns)}
        summary = f"the table lacks {', '.join(field.name for field in lacking)}"
        added_by_hand = ", ".join(f"ADD COLUMN {declared(field.with_nullable(True))}" for field in lacking)
        hint = (
            "set evolve: add_columns on this sink, drop the columns in the pipeline, "
            f"or run: ALTER TABLE {name.quoted} {added_by_hand}"
        )
        raise mismatch(sink, summary, problems, hint)
    if problems:
        raise mismatch(
            sink, "the table has other columns", problems, "cast the column in the pipeline, or write to another table"
        )
    _check_rights(sink, name, table, rules, deletes)
    if fit is not None and fit.changes_table and not table.is_own:
        raise _denied(sink, f"no right to change the columns of {name}", alter_statement(name, fit))
    if rules is not None and frozenset(rules.keys) not in table.unique:
        keys = ", ".join(map(quote, rules.keys))
        raise MissingError(
            "SINK_KEYS_NOT_UNIQUE",
            f"sink {sink}: no unique index on {', '.join(rules.keys)}, so that rows cannot be found by their keys",
            context={
                "keys": ", ".join(rules.keys),
                "table": "; ".join(", ".join(sorted(each)) for each in table.unique) or "no unique index",
            },
            hint=f"run: CREATE UNIQUE INDEX CONCURRENTLY ON {name.quoted} ({keys})",
        )


def create_statement(name: TableName, written: pa.Schema, keys: Sequence[str]) -> str:
    """The statement that makes the table, keyed where rows are merged by their keys."""
    parts = [declared(field) for field in written]
    if keys:
        parts.append(f"PRIMARY KEY ({', '.join(map(quote, keys))})")
    return f"CREATE TABLE IF NOT EXISTS {name.quoted} ({', '.join(parts)})"


def refuse_absent(sink: str, name: TableName, written: pa.Schema, keys: Sequence[str]) -> MissingError:
    """The error for a table that does not exist and may not be created."""
    return MissingError(
        "SINK_TABLE_MISSING",
        f"sink {sink}: there is no table {name}",
        hint=f"set create: true on this sink, or run: {create_statement(name, written, keys)}",
    )


def check_may_create(sink: str, connection: Connection, name: TableName) -> None:
    """Refuse where the table's schema does not exist or no table may be created in it."""
    found = fetch(
        connection, "SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %s", name.schema
    )
    if not found:
        raise MissingError(
            "SINK_SCHEMA_MISSING",
            f"sink {sink}: there is no schema {name.schema}",
            hint=f"run: CREATE SCHEMA {quote(name.schema)}",
        )
    if not found[0][0]:
        raise _denied(
            sink,
            f"no right to create a table in the schema {name.schema}",
            f"GRANT USAGE, CREATE ON SCHEMA {quote(name.schema)} TO ...",
        )


def check_own_schema(sink: str, connection: Connection) -> None:
    """Refuse where the schema to stage in is missing and may not be created, or its tables may not be written."""
    found = fetch(
        connection,
        "SELECT has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE')"
        " FROM pg_namespace WHERE nspname = %s",
        OWN_SCHEMA,
    )
    if found and not found[0][0]:
        raise _denied(
            sink,
            f"no right to stage rows in the schema {OWN_SCHEMA}",
            f"GRANT USAGE, CREATE ON SCHEMA {OWN_SCHEMA} TO ...",
        )
    if not found and not fetch(connection, "SELECT has_database_privilege(current_database(), 'CREATE')")[0][0]:
        raise _denied(
            sink,
            f"no schema {OWN_SCHEMA} to stage rows in, and no right to create one",
            f"CREATE SCHEMA {OWN_SCHEMA} AUTHORIZATION ...",
        )
    closed = fetch(
        connection,
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = to_regnamespace(%s) AND c.relname LIKE 'penstock%%'"
        " AND c.relkind = 'r' AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')"
        " AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))",
        OWN_SCHEMA,
    )
    if closed:
        tables = ", ".join(f"{OWN_SCHEMA}.{quote(name)}" for (name,) in closed)
        raise _denied(sink, "no right to note commits", f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO ...")


def check_encoding(sink: str, connection: Connection) -> None:
    """Refuse a database whose encoding lacks characters that rows may have."""
    encoding = fetch(connection, "SELECT current_setting('server_encoding')")[0][0]
    if encoding != "UTF8":
        raise MissingError(
            "SINK_DATABASE_ENCODING",
            f"sink {sink}: the database's encoding cannot hold every character",
            context={"pipeline": "UTF8", "database": encoding},
            hint="write to a database that was created with ENCODING 'UTF8'",
        )


def _check_rights(sink: str, name: TableName, table: Table, rules: MergeRules | None, deletes: bool) -> None:
    wanted = ["INSERT"] if rules is None else ["SELECT", "INSERT"]
    if rules is not None and not rules.insert_only:
        wanted += ["UPDATE", "DELETE"] if deletes else ["UPDATE"]
    denied = [right for right in wanted if right not in table.rights]
    if denied:
        raise _denied(
            sink, f"no right to {', '.join(denied)} on {name}", f"GRANT {', '.join(denied)} ON {name.quoted} TO ..."
        )


def _differences(
    table: Table, written: pa.Schema, rules: MergeRules | None, widened: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    for column in table.columns.values():
        index = written.get_field_index(column.name)
        if index < 0:
            if column.not_null and not column.has_default:
                yield column.name, "pipeline does not write it, table NOT NULL"
            continue
        kind = written.field(index).type
        if column.generated:
            yield column.name, f"pipeline {new_column_type(kind)}, table GENERATED ALWAYS"
        elif column.name not in widened and not fits(kind, column):
            yield column.name, f"pipeline {new_column_type(kind)}, table {column.declared}"
        elif rules is not None and column.name in rules.keys and not can_be_key(kind, column):
            yield column.name, f"a key, but equal values of {column.declared} may differ as text"


def _denied(sink: str, summary: str, statement: str) -> MissingError:
    return MissingError("SINK_ACCESS_DENIED", f"sink {sink}: {summary}", hint=f"have an administrator run: {statement}")


# How rows go into an existing table: which columns are written, and how the table changes first.

# Widening a column may rewrite the whole table, which cannot be read meanwhile.
_ALTER_SETTINGS = "SET LOCAL lock_timeout = '60s'; SET LOCAL statement_timeout = 0"


@dataclass(frozen=True, slots=True)
class TableFit:
    """How rows go into a table, given the columns of both and `evolve`."""

    written: pa.Schema
    added: tuple[pa.Field, ...] = ()
    widened: Mapping[str, str] = field(default_factory=dict)
    """The types that columns get."""
    left_out: tuple[str, ...] = ()

    @property
    def changes_table(self) -> bool:
        """Whether the table changes."""
        return bool(self.added or self.widened)

    def told(self, columns: Mapping[str, TableColumn]) -> list[str]:
        """What follows, for people, a line each."""
        return [
            *(f"add column {added.name} {new_column_type(added.type)}" for added in self.added),
            *(f"widen {name} {columns[name].declared} -> {kind}" for name, kind in self.widened.items()),
            *(f"ignore column {name}" for name in self.left_out),
        ]


def fit_columns(columns: Mapping[str, TableColumn], schema: pa.Schema, evolve: Evolve) -> TableFit:
    """The changes that the table needs. `check_table` says whether it can take the rows after them.

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
    """The statement that makes the changes."""
    added = [f"ADD COLUMN IF NOT EXISTS {declared(each)}" for each in fit.added]
    widened = [f"ALTER COLUMN {quote(column)} TYPE {kind}" for column, kind in fit.widened.items()]
    return f"ALTER TABLE {name.quoted} {', '.join([*added, *widened])}"


def alter_table(sink: str, connection: Connection, name: TableName, fit: TableFit) -> None:
    """Make the changes. Refused where something else in the database depends on a column's type."""
    try:
        run(connection, _ALTER_SETTINGS, alter_statement(name, fit))
    except (errors.FeatureNotSupported, errors.InvalidTableDefinition, errors.DatatypeMismatch) as error:
        raise _refused(sink, name, fit, error) from None


def _refused(sink: str, name: TableName, fit: TableFit, error: psycopg.Error) -> Exception:
    return mismatch(
        sink,
        f"the table's columns cannot be changed: {message_of(error)}",
        {"table": name, "wanted": ", ".join(f"{column} {kind}" for column, kind in fit.widened.items()) or "none"},
        f"drop what depends on the column, then run: {alter_statement(name, fit)}",
    )

"""A PostgreSQL table or view: written out by the database as CSV, and read by Arrow. Nothing is ever changed there."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import errors

from penstock.errors import MissingError, PenstockError
from penstock.model.pem import DatabaseTls
from penstock.postgres import Connection, Database, is_access_refused, is_tls_failure, quote, split_table_name
from penstock.tables.table import StoredTable
from penstock.tables.types import TextError, parse_columns, read_delimited

_BLOCK_BYTES = 4 * 1024**2
_SESSION = b"SET LOCAL TimeZone = 'UTC'; SET LOCAL DateStyle = 'ISO'; SET LOCAL extra_float_digits = 1"
_TYPES = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "bytea": pa.binary(),
}
_COLUMNS = """
SELECT a.attname, coalesce(b.typname, t.typname), CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = nullif(t.typbasetype, 0)
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# The statistics of a table count its changes, but not of a view, on a standby, or where they are turned off.
_CHANGES = """
SELECT current_setting('track_counts')::bool AND NOT pg_is_in_recovery() AND bool_and(c.relkind IN ('r', 'p', 'm')),
  string_agg(concat_ws(':', c.oid, c.relfilenode, pg_stat_get_tuples_inserted(c.oid),
    pg_stat_get_tuples_updated(c.oid), pg_stat_get_tuples_deleted(c.oid)), ' ' ORDER BY c.oid)
FROM pg_class c WHERE c.oid = to_regclass(%s)
  OR c.oid IN (SELECT relid FROM pg_partition_tree(to_regclass(%s)))
"""
_SIZE = """
SELECT to_regclass(%s) IS NOT NULL, sum(pg_table_size(c.oid))
FROM pg_class c WHERE c.oid = to_regclass(%s) OR c.oid IN (SELECT relid FROM pg_partition_tree(to_regclass(%s)))
"""


class PostgresLookup(StoredTable):
    """Implements `LookupTable`.

    Types that Spark does not have come as their text. A table's version is what the database's statistics count,
    which follow a change by some seconds; what they do not cover counts as changed every time.
    """

    gone = (errors.UndefinedTable, errors.InvalidSchemaName)

    def __init__(self, name: str, url: str, table: str, tls: DatabaseTls | None = None) -> None:
        parts = split_table_name(table)
        if parts is None:
            raise MissingError(
                "TABLE_NAME_INVALID",
                f"table {name}: not the name of a table in a database",
                context={"given": table},
                hint='write table, schema.table or "a schema"."a table"',
            )
        self._table = ".".join(map(quote, parts))
        self._database = Database(url, tls)
        self._looks = itertools.count()
        super().__init__(name, f"{self._database.address} {self._table}")

    def _refresh(self) -> None:
        """Each method asks the database itself."""

    def _version(self) -> str:
        """From the number of changes that the database counted."""
        [(is_counted, counts)] = self._fetch(_CHANGES, 2)
        if counts is None:
            raise errors.UndefinedTable
        return str(counts) if is_counted else f"look {next(self._looks)}"

    def _columns(self) -> pa.Schema:
        found = self._fetch(_COLUMNS, 1)
        if not found:
            raise errors.UndefinedTable
        return pa.schema([pa.field(column, _arrow_type(kind, modifier)) for column, kind, modifier in found])

    def _size_bytes(self) -> int | None:
        """The size on the database's disk; None for a view."""
        [(is_there, size)] = self._fetch(_SIZE, 3)
        if not is_there:
            raise errors.UndefinedTable
        return int(size) or None

    def _rows(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        items = ", ".join(f"{_as_text(field)} AS {quote(field.name)}" for field in wanted)
        statement = f"COPY (SELECT {items} FROM {self._table}) TO STDOUT (FORMAT csv)"
        texts = pa.schema([(f.name, pa.string() if f.type == pa.binary() else f.type) for f in wanted])
        try:
            with self._connection() as connection, connection.cursor().copy(statement.encode()) as copy:
                for block in _blocks(copy):
                    for batch in read_delimited(block, wanted.names, wanted.names):
                        yield _with_bytes(parse_columns(batch, texts), wanted)
        except TextError as error:
            why = "the database has a value that the column's type does not"
            raise self._unreadable("reading the rows", why, column=error.column) from error

    def _fetch(self, query: str, names: int) -> list[tuple[Any, ...]]:
        with self._connection() as connection:
            return connection.execute(query.encode(), [self._table] * names).fetchall()

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """A connection with one transaction that only reads."""
        if not self._database.is_valid:
            raise MissingError(
                "TABLE_URL_INVALID",
                f"table {self.name}: the url is not one of a PostgreSQL database",
                hint="write postgresql://user:password@host:5432/database",
            )
        with self._database.open(autocommit=False) as connection:
            connection.read_only = True
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute(_SESSION)
            yield connection

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        with super()._errors(doing):
            try:
                yield
            except self.gone:
                raise
            except psycopg.Error as error:
                raise self._database_error(error, doing) from None

    def _database_error(self, error: psycopg.Error, doing: str) -> PenstockError:
        reason, context = self._database.reason(error), {"looked at": self.target}
        if is_tls_failure(error):
            return MissingError(
                "TABLE_TLS",
                f"table {self.name}: {doing}: TLS handshake failed: {reason}",
                context=context,
                hint="check security.ca_file, the client certificate and its key, and the host in the url",
            )
        if is_access_refused(error):
            return MissingError(
                "TABLE_ACCESS_DENIED",
                f"table {self.name}: {doing}: the database refuses the user: {reason}",
                context=context,
                hint="check user and password in the url, and the user's rights on the table",
            )
        return self._unreachable(doing, reason)


def _blocks(rows: Iterable[bytes | bytearray | memoryview]) -> Iterator[io.BytesIO]:
    """What the database writes out, row by row, in larger pieces of whole rows.

    Arrow reads ahead in a thread of its own, in which no connection may be used.
    """
    block = io.BytesIO()
    for row in rows:
        block.write(row)
        if block.tell() >= _BLOCK_BYTES:
            block.seek(0)
            yield block
            block = io.BytesIO()
    if block.tell():
        block.seek(0)
        yield block


def _with_bytes(texts: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The columns of bytes out of their hexadecimal text."""
    columns = [
        pa.array([None if text is None else bytes.fromhex(text) for text in column.to_pylist()], field.type)
        if field.type == pa.binary()
        else column
        for field, column in zip(wanted, texts.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _as_text(field: pa.Field) -> str:
    name = quote(field.name)
    if field.type == pa.binary():
        return f"encode({name}, 'hex')"
    return name if field.type != pa.bool_() else f"{name}::text"


def _arrow_type(kind: str, modifier: int) -> pa.DataType:
    if kind != "numeric":
        return _TYPES.get(kind, pa.string())
    if modifier < 0:
        return pa.decimal128(38, 18)  # as Spark has it for a numeric without digits
    precision, scale = (modifier - 4) >> 16, (((modifier - 4) & 0x7FF) ^ 1024) - 1024
    return pa.decimal128(precision, scale) if precision <= 38 and 0 <= scale <= precision else pa.string()

"""A PostgreSQL table or view: written out by the database as CSV, and read by Arrow. Nothing is ever changed there."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.errors import MissingError
from penstock.model.pem import DatabaseTls
from penstock.tables.table import TableState, gather, select_columns, told
from penstock.tables.types import TextError, parse_columns, read_delimited

_Connection = psycopg.Connection[tuple[Any, ...]]

_PART = r'"(?:[^"]|"")+"|[^".\s]+'
_TABLE = re.compile(rf"(?:({_PART})\.)?({_PART})")
_BLOCK_BYTES = 4 * 1024**2
_DEFAULTS: Mapping[str, str | int] = {"connect_timeout": 10, "tcp_user_timeout": 60_000, "application_name": "penstock"}
_SESSION = b"SET LOCAL TimeZone = 'UTC'; SET LOCAL DateStyle = 'ISO'; SET LOCAL extra_float_digits = 1"
_DENIED = re.compile(r"authentication failed|no password supplied|no pg_hba.conf entry|role .* does not exist|SASL")
_TLS = re.compile(r"\bSSL\b|certificate|\bTLS\b", re.IGNORECASE)
_GONE = (errors.UndefinedTable, errors.InvalidSchemaName)
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


class PostgresLookup:
    """Implements `LookupTable`. The URL is a secret: no error shows it.

    Types that Spark does not have come as their text. A table's version is what the database's statistics count,
    which follow a change by some seconds; what they do not cover is taken as changed at every look.
    """

    def __init__(self, name: str, url: str, table: str, tls: DatabaseTls | None = None) -> None:
        self.name = name
        self._url = url
        self._tls = tls
        self._table = _quoted(name, table)
        self._standing = TableState(name, self.target, _GONE)
        self._looks = itertools.count()

    @property
    def target(self) -> str:
        """Host, port, database and table, without user and password."""
        try:
            parts = conninfo_to_dict(self._url)
        except (psycopg.Error, UnicodeError):
            return self._table
        port = f":{parts['port']}" if parts.get("port") else ""
        return f"{parts.get('host') or 'localhost'}{port}/{parts.get('dbname') or ''} {self._table}"

    def schema(self) -> pa.Schema:
        """The columns as they are now."""
        with self._connection("reading the columns") as connection:
            return self._columns(connection)

    def version(self) -> str:
        """By the changes that the database counted."""
        with self._connection("looking at the table") as connection:
            [(is_counted, counts)] = self._fetch(connection, _CHANGES, 2)
            if counts is None:
                raise errors.UndefinedTable
            return str(counts) if is_counted else f"look {next(self._looks)}"

    def estimated_bytes(self) -> int | None:
        """The size on the database's disk; none for a view."""
        with self._connection("looking at the table") as connection:
            [(is_there, size)] = self._fetch(connection, _SIZE, 3)
            if not is_there:
                raise errors.UndefinedTable
            return int(size) or None

    def read(self, columns: Sequence[str], most_bytes: int | None = None) -> pa.Table | None:
        """All rows of these columns, of one moment."""
        with self._standing.reading(), self._connection("reading the rows") as connection:
            wanted = select_columns(self.name, self._columns(connection), columns)
            return gather(self._rows(connection, wanted), wanted, most_bytes)

    def _rows(self, connection: _Connection, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        items = ", ".join(f"{_as_text(field)} AS {_quote(field.name)}" for field in wanted)
        statement = f"COPY (SELECT {items} FROM {self._table}) TO STDOUT (FORMAT csv)"
        texts = pa.schema([(f.name, pa.string() if f.type == pa.binary() else f.type) for f in wanted])
        try:
            with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
                for block in _blocks(copy):
                    for batch in read_delimited(block, wanted.names, wanted.names):
                        yield _with_bytes(parse_columns(batch, texts), wanted)
        except TextError as error:
            why = "the database has a value that the column's type does not"
            raise self._standing.unreadable("reading the rows", why, column=error.column) from error

    def _columns(self, connection: psycopg.Connection) -> pa.Schema:
        found = self._fetch(connection, _COLUMNS, 1)
        if not found:
            raise errors.UndefinedTable
        return pa.schema([pa.field(column, _arrow_type(kind, modifier)) for column, kind, modifier in found])

    def _fetch(self, connection: _Connection, query: str, names: int) -> list[tuple[Any, ...]]:
        return connection.execute(query.encode(), [self._table] * names).fetchall()

    @contextmanager
    def _connection(self, doing: str) -> Iterator[_Connection]:
        """A connection with one transaction that reads; what goes wrong in it is an error of this table."""
        with self._standing.looking(doing):
            try:
                with self._connect() as connection:
                    connection.read_only = True
                    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                    connection.execute(_SESSION)
                    yield connection
            except psycopg.Error as error:
                said = _told(error)
                if isinstance(error, errors.InsufficientPrivilege) or _DENIED.search(said):
                    raise MissingError(
                        "TABLE_ACCESS_DENIED",
                        f"table {self.name}: {doing}: the database refuses the user",
                        context={"looked at": self.target},
                        hint="check user and password in the url, and the user's rights on the table",
                    ) from None
                if _TLS.search(said) and error.sqlstate is None:
                    raise MissingError(
                        "TABLE_TLS",
                        f"table {self.name}: {doing}: the TLS handshake failed: {said}",
                        context={"looked at": self.target},
                        hint="check security.ca_file, the client certificate and its key, and the host in the url",
                    ) from None
                if isinstance(error, _GONE):
                    raise
                raise self._standing.unreachable(doing, said) from None

    def _connect(self) -> _Connection:
        try:
            given = conninfo_to_dict(self._url)
            settings = {name: value for name, value in _DEFAULTS.items() if name not in given}
            settings |= self._tls.settings() if self._tls is not None else {}
            whole = make_conninfo(self._url, client_encoding="utf8", **settings)
        except (psycopg.Error, UnicodeError):
            raise MissingError(
                "TABLE_URL_INVALID",
                f"table {self.name}: the url is not one of a PostgreSQL database",
                hint="write postgresql://user:password@host:5432/database",
            ) from None
        return psycopg.connect(whole, prepare_threshold=None)


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
    name = _quote(field.name)
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


def _quoted(table: str, given: str) -> str:
    """`table` (in the schema `public`) or `schema.table`, each as it is or in double quotes, safe in a statement."""
    found = _TABLE.fullmatch(given)
    if found is None:
        raise MissingError(
            "TABLE_NAME_INVALID",
            f"table {table}: not the name of a table in a database",
            context={"given": given},
            hint='write table, schema.table or "a schema"."a table"',
        )
    return ".".join(part if part.startswith('"') else _quote(part) for part in found.groups("public"))


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _told(error: psycopg.Error) -> str:
    """The database's words without its details, which may quote rows."""
    # libpq puts the address in front of what the server answered.
    return told(error).split("FATAL:")[-1].strip() if error.sqlstate is None else error.diag.message_primary or ""

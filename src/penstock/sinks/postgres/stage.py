"""One attempt of one slot: rows in, one COPY into a staging table of its own, in one transaction.

Nobody sees the table before `finish`, and a task that dies leaves nothing: its transaction is rolled back. The
table is unlogged, so a crash of the server empties it; the commit counts its rows before it relies on them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import reduce

import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.types as types

from penstock.errors import PenstockError, TerminalError
from penstock.model import COORDINATES, COORDINATES_FIELD, DELETES, Manifest, Refusal, SlotAttempt
from penstock.model.stored_manifests import stored_as
from penstock.postgres import Connection, quote
from penstock.sinks.merging import refusals, refuse_null_keys
from penstock.sinks.postgres.connection import SinkDatabase, run
from penstock.sinks.postgres.names import own
from penstock.sinks.postgres.types import is_bytes, is_nested, is_text
from penstock.sinks.row_json import texts

ROW_REFUSED = "SINK_ROW_REFUSED"
REFUSED_HINT = "set on_reject: quarantine on this sink to quarantine such records and continue"

_SETTINGS = """
    SET LOCAL TimeZone = 'UTC'; SET LOCAL synchronous_commit = off; SET LOCAL statement_timeout = 0;
    SET LOCAL idle_in_transaction_session_timeout = 0"""


@stored_as("postgres column")
@dataclass(frozen=True, slots=True)
class StagedColumn:
    """A column of a staging table: its name and type there."""

    name: str
    type: str


COORDINATE_COLUMNS = tuple(
    StagedColumn(f"{COORDINATES}_{name}", type)
    for name, type in (("topic", "text"), ("partition", "integer"), ("offset", "bigint"), ("timestamp", "timestamptz"))
)


@stored_as("postgres table")
@dataclass(frozen=True, slots=True)
class StagedTable:
    """A staging table that is finished: the item of a manifest."""

    name: str
    rows: int
    columns: tuple[StagedColumn, ...]


class PostgresStage:
    """Implements `contracts.Stage`. `columns` are those of the rows, without coordinates and the mark of deletes."""

    def __init__(
        self,
        sink: str,
        database: SinkDatabase,
        table: str,
        writer: SlotAttempt,
        columns: Sequence[StagedColumn],
        *,
        keys: Sequence[str],
        deletes: bool,
        quarantine: bool,
    ) -> None:
        self._sink = sink
        self._database = database
        self._table = table
        self._writer = writer
        self._columns = tuple(columns)
        self._keys = tuple(keys)
        self._deletes = deletes
        self._quarantine = quarantine
        self._rows = 0
        self._size_bytes = 0
        self._connection: Connection | None = None
        self._copy: psycopg.Copy | None = None
        self._open = ExitStack()
        self._finished = False

    @property
    def _staged_columns(self) -> tuple[StagedColumn, ...]:
        deletes = (StagedColumn(DELETES, "boolean"),) if self._deletes else ()
        return (*self._columns, *COORDINATE_COLUMNS, *deletes)

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Take some rows; give back those without a key, and those that no text can hold."""
        rows, refused = refuse_null_keys(self._sink, rows, self._keys)
        columns, more = self._texts(rows)
        if columns and len(columns[0]):
            with self._database.failures("staging rows"):
                text = to_csv(columns)
                self._copying().write(text)
                self._rows += len(columns[0])
                self._size_bytes += len(text)
        return [*refused, *more]

    def finish(self) -> Manifest:
        """End the COPY and commit the staging table."""
        if not self._rows:
            return Manifest(self._sink, self._writer, 0, 0)
        with self._database.failures("finishing staged rows"):
            self._open.close()
        self._finished = True
        item = StagedTable(self._table, self._rows, self._staged_columns)
        return Manifest(self._sink, self._writer, self._rows, self._size_bytes, (item,))

    def abort(self) -> None:
        """Roll back; a table that was finished already is dropped, or goes with a later commit of the sink."""
        with suppress(psycopg.Error, PenstockError, OSError):
            if self._connection is not None:
                self._connection.close()
            with suppress(psycopg.Error):
                self._open.close()
            if self._finished:
                with self._database.connect() as connection:
                    run(connection, f"DROP TABLE IF EXISTS {own(self._table)}")

    def _copying(self) -> psycopg.Copy:
        """The one COPY of this attempt, begun with the first rows."""
        if self._copy is None:
            self._connection = self._open.enter_context(self._database.connect())
            self._open.enter_context(self._connection.transaction())
            columns = ", ".join(f"{quote(column.name)} {column.type}" for column in self._staged_columns)
            table = own(self._table)
            run(self._connection, _SETTINGS, f"CREATE UNLOGGED TABLE {table} ({columns})")
            statement = f"COPY {table} FROM STDIN (FORMAT csv, FREEZE)"
            self._copy = self._open.enter_context(self._connection.cursor().copy(statement.encode()))
        return self._copy

    def _texts(self, rows: pa.RecordBatch) -> tuple[list[pa.Array], list[Refusal]]:
        """The staged columns as text, without the rows that are refused."""
        names = [column.name for column in self._columns]
        columns = [to_text(rows.column(name)) for name in names]
        found = [
            each
            for column, values in zip(self._columns, columns, strict=True)
            for each in unholdable(column.name, values, rows.schema.field(column.name).type, column.type)
        ]
        columns += [to_text(values) for values in _coordinates(rows)]
        if self._deletes:
            columns.append(rows.column(DELETES))
        if not found:
            return columns, []
        refused = self._refuse(rows, [(each.rows, each.why) for each in found])
        kept = pc.invert(reduce(pc.or_, [each.rows for each in found]))
        return [values.filter(kept) for values in columns], refused

    def _refuse(self, rows: pa.RecordBatch, found: Sequence[tuple[pa.BooleanArray, str]]) -> list[Refusal]:
        refused: dict[object, Refusal] = {}
        for mask, why in found:
            for refusal in refusals(self._sink, rows.filter(mask), ROW_REFUSED, f"sink {self._sink}: {why}"):
                refused.setdefault(refusal.record, refusal)
        if not self._quarantine:
            first = min(refused.values(), key=lambda refusal: refusal.record)
            raise TerminalError(
                ROW_REFUSED,
                f"{first.message}, which the table cannot hold",
                context={"record": first.record, "rows refused": len(refused)},
                hint=REFUSED_HINT,
            )
        return list(refused.values())


def _coordinates(rows: pa.RecordBatch) -> list[pa.Array]:
    if COORDINATES in rows.schema.names:
        *place, moment = rows.column(COORDINATES).flatten()
        return [*place, within_limits(moment)]
    return [pa.nulls(rows.num_rows, field.type) for field in COORDINATES_FIELD.type]


# Rows as the CSV text of a COPY, and the rows that no text can hold.
#
# PostgreSQL parses every value itself, by the type of the staging column. An empty field is null, `""` an empty
# string: Arrow quotes every string, so the two stay apart.
#
# Structs, lists and maps are JSON text, as other sinks write them.


def naive(values: pa.Array) -> pa.Array:
    """Timestamps without their zone, which is UTC: Arrow writes these as text 20 times as fast."""
    return values.cast(pa.int64()).cast(pa.timestamp(values.type.unit))


# Arrow and PostgreSQL write years outside of these in different ways, and Spark does not promise to keep them.
_FIRST, _LAST = date(1, 1, 1), date(9999, 12, 31)
_UUID = r"^[0-9A-Fa-f]{8}-([0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}$"
# An escaped NUL: an odd number of backslashes before the u.
_JSON_NUL = r"(^|[^\\])(\\\\)*\\u0000"
_PIECE_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Unholdable:
    """Which rows a column keeps out, and why."""

    rows: pa.BooleanArray
    why: str


def to_text(values: pa.Array) -> pa.Array:
    """A column in a form that Arrow writes as PostgreSQL reads it."""
    if is_nested(values.type):
        return texts(values)
    if is_bytes(values.type):
        digits = pl.Series(values.cast(pa.large_binary())).bin.encode("hex").to_arrow().cast(pa.string())
        return pc.binary_join_element_wise("\\x", digits, "")
    if types.is_timestamp(values.type) and values.type.tz:
        return naive(values)
    return values


def unholdable(name: str, values: pa.Array, kind: pa.DataType, staged: str) -> Iterator[Unholdable]:
    """What of a column that went through `to_text` the staging column could not take; nothing, nearly always."""
    if is_nested(kind):
        yield from _found(pc.match_substring_regex(values, _JSON_NUL), f"column {name}: a NUL character")
    elif is_text(kind):
        yield from _found(pc.match_substring(values, "\0"), f"column {name}: a NUL character")
        if staged.endswith('"uuid"'):
            yield from _found(pc.invert(pc.match_substring_regex(values, _UUID)), f"column {name}: not a uuid")
    elif types.is_date32(kind) or types.is_timestamp(kind):
        yield from _found(_outside(values), f"column {name}: a time outside of the years 1 to 9999")


def within_limits(values: pa.TimestampArray) -> pa.TimestampArray:
    """Timestamps with those left out that no text can hold: a producer may stamp its records with any number."""
    return pc.if_else(_outside(values), pa.scalar(None, values.type), values)


def to_csv(columns: Sequence[pa.Array]) -> bytes:
    """The rows as CSV, one line each, in the order of the columns."""
    rows = pa.RecordBatch.from_arrays(list(columns), names=[str(number) for number in range(len(columns))])
    out = io.BytesIO()
    pa.csv.write_csv(rows, out, pa.csv.WriteOptions(include_header=False, batch_size=_PIECE_ROWS))
    return out.getvalue()


def _found(rows: pa.BooleanArray, why: str) -> Iterator[Unholdable]:
    if pc.any(rows, min_count=0).as_py():
        yield Unholdable(pc.fill_null(rows, False), why)


def _outside(values: pa.Array) -> pa.BooleanArray:
    first, last = _limits(values.type)
    return pc.or_(pc.less(values, first), pc.greater(values, last))


def _limits(kind: pa.DataType) -> tuple[pa.Scalar, pa.Scalar]:
    if types.is_date32(kind):
        return pa.scalar(_FIRST, kind), pa.scalar(_LAST, kind)
    first = datetime(_FIRST.year, 1, 1, tzinfo=UTC).timestamp()
    units = {"s": 1, "ms": 10**3, "us": 10**6}[kind.unit]
    days = (_LAST - _FIRST).days + 1
    start = int(first) * units
    return pa.scalar(start, pa.int64()).cast(kind), pa.scalar(start + days * 86_400 * units - 1, pa.int64()).cast(kind)

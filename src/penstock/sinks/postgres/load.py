"""The statements that bring staged rows into the table: an INSERT, or what a merge by keys amounts to.

An append may first take the rows of some offset ranges out, by their coordinates in the table.

A merge is a DELETE of the keys that the batch deletes and an INSERT ... ON CONFLICT of the others, from one row a
key. `when_newer` is the WHERE of the DO UPDATE, which sees the new row and the one that is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.model import COMPUTED, COORDINATES, DELETES, MergeRules, OffsetRange
from penstock.postgres import Connection, quote
from penstock.sinks.merging import counts_sql, later_sql, one_row_a_key
from penstock.sinks.postgres.names import TableName, own
from penstock.sinks.postgres.stage import COORDINATE_COLUMNS, StagedTable
from penstock.sinks.postgres.types import TableColumn, is_cast, staged_type
from penstock.sinks.replacing import RecordRanges, ranges_sql

_FETCHED_ROWS = 10_000

PART, PLACE = quote(f"{COMPUTED}part"), quote(f"{COMPUTED}place")
"""Which of the batch's staging tables a row is in, and where there: these name a row."""

_TOPIC, _PARTITION, _OFFSET, _TIMESTAMP = (quote(column.name) for column in COORDINATE_COLUMNS)
SOURCE_ORDER = (_TOPIC, _PARTITION, _OFFSET, PART, PLACE)
_POSITION = (_OFFSET, _PARTITION, _TOPIC, PART, PLACE)
_COORDINATES = (
    f"jsonb_build_object('topic', s.{_TOPIC}, 'partition', s.{_PARTITION}, 'offset', s.{_OFFSET}, 'timestamp',"
    f""" to_char(s.{_TIMESTAMP} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))"""
)


@dataclass(frozen=True)
class Load:
    """A batch's staged rows on their way into the table."""

    target: TableName
    written: pa.Schema
    columns: dict[str, TableColumn]
    """The table's columns as they are now."""
    tables: Sequence[StagedTable]
    rules: MergeRules | None

    @property
    def deletes(self) -> bool:
        """Whether rows of the batch may delete."""
        marked = any(column.name == DELETES for table in self.tables for column in table.columns)
        return marked and self.rules is not None and not self.rules.insert_only

    @property
    def staged(self) -> str:
        """All staged rows as one query; null where a staging table lacks a column, as one of tombstones does."""
        rows = [field for field in self.written if field.name != COORDINATES]
        types = {field.name: str(staged_type(field.type, self.columns[field.name])) for field in rows}
        types |= {column.name: column.type for column in COORDINATE_COLUMNS} | {DELETES: "boolean"}
        selects = []
        for number, table in enumerate(self.tables):
            there = {column.name for column in table.columns}
            listed = [quote(n) if n in there else f"NULL::{kind} AS {quote(n)}" for n, kind in types.items()]
            places = f"{number} AS {PART}, ctid AS {PLACE}"
            selects.append(f"SELECT {places}, {', '.join(listed)} FROM {own(table.name)}")
        return " UNION ALL ".join(selects)

    def picked(self, relation: str) -> str:
        """Of these staged rows those that count: all, or one a key."""
        if self.rules is None:
            return f"SELECT * FROM {relation} AS staged"
        return one_row_a_key(f"{relation} AS staged", self.rules, quote=quote, position=_POSITION)

    def statements(self, picked: str) -> list[str]:
        """What brings the rows of the relation `picked` into the table."""
        if self.rules is None:
            return [self._insert(f"{picked} AS s")]
        put = self._insert(f"{picked} AS s WHERE {_KEPT}", self._on_conflict())
        return [self._delete(picked), put] if self.deletes else [put]

    def same_key(self, left: str, right: str) -> str:
        """The condition that two staged rows have one key."""
        keys = self.rules.keys if self.rules is not None else ()
        return " AND ".join(f"{left}.{quote(key)} = {right}.{quote(key)}" for key in keys)

    def _insert(self, source: str, on_conflict: str = "") -> str:
        names = ", ".join(map(quote, self.written.names))
        values = ", ".join(map(self._value, self.written.names))
        return f"INSERT INTO {self.target.quoted} AS t ({names}) SELECT {values} FROM {source}{on_conflict}"

    def _on_conflict(self) -> str:
        assert self.rules is not None
        keys = ", ".join(map(quote, self.rules.keys))
        others = [quote(name) for name in self.written.names if name not in self.rules.keys]
        if self.rules.insert_only or not others:
            return f" ON CONFLICT ({keys}) DO NOTHING"
        sets = ", ".join(f"{name} = excluded.{name}" for name in others)
        newer = self.rules.when_newer
        both = (f"excluded.{quote(newer)}", f"t.{quote(newer)}") if newer is not None else None
        counts = counts_sql(both, later_sql(_held, _excluded) if self._by_position else None)
        return f" ON CONFLICT ({keys}) DO UPDATE SET {sets}{f' WHERE {counts}' if counts else ''}"

    def _delete(self, picked: str) -> str:
        assert self.rules is not None
        same = " AND ".join(f"t.{quote(key)} = {self._value(key)}" for key in self.rules.keys)
        newer = quote(self.rules.when_newer) if self.rules.when_newer is not None else None
        later = later_sql(_held, _staged) if self._by_position else None
        counts = counts_sql((f"s.{newer}", f"t.{newer}") if newer is not None else None, later)
        guard = f" AND ({counts})" if counts else ""
        return f"DELETE FROM {self.target.quoted} AS t USING {picked} AS s WHERE s.{quote(DELETES)} AND {same}{guard}"

    @property
    def _by_position(self) -> bool:
        return self.rules is not None and self.rules.by_position and COORDINATES in self.written.names

    def _value(self, name: str) -> str:
        """A staged value in the type of the table's column; what remains to be done is an assignment, which refuses."""
        if name == COORDINATES:
            return _COORDINATES
        column = self.columns[name]
        cast = f"::{column.base_type}" if is_cast(self.written.field(name).type, column) else ""
        return f"s.{quote(name)}{cast}"


def replaced_rows(target: TableName, ranges: Sequence[OffsetRange], what: str = "DELETE") -> str:
    """The statement that takes the rows of some ranges out of the table, or does something else with them."""
    return f"{what} FROM {target.quoted} AS t WHERE {ranges_sql(ranges, _held)}"


def find_records(connection: Connection, target: TableName, ranges: Sequence[OffsetRange]) -> set[tuple[str, int, int]]:
    """The topic, partition and offset of every record in the ranges that the table has a row of.

    The ranges may be thousands of single records: the database looks from the first to the last of each partition.
    """
    wanted = RecordRanges(ranges)
    if not wanted.hulls:
        return set()
    columns = ", ".join(map(_held, ("topic", "partition", "offset")))
    with connection.transaction(), connection.cursor("records_held") as cursor:
        cursor.itersize = _FETCHED_ROWS
        statement = f"SELECT {columns} FROM {target.quoted} AS t WHERE {ranges_sql(wanted.hulls, _held)}"
        return {at for at in cursor.execute(statement.encode()) if at in wanted}


def _held(part: str, row: str = "t") -> str:
    """A coordinate of the row that is there, in its type."""
    kind = {"topic": "text", "partition": "integer", "offset": "bigint"}[part]
    return f"({row}.{quote(COORDINATES)}->>'{part}')::{kind}"


def _excluded(part: str) -> str:
    """The same of the row that is put there."""
    return _held(part, "excluded")


def _staged(part: str) -> str:
    """The same of a row that is staged."""
    return f"s.{quote(f'{COORDINATES}_{part}')}"


_KEPT = f"s.{quote(DELETES)} IS NOT TRUE"

"""`enrich`: adds columns of a table to the rows whose keys it has.

Keys are equal as Spark's `=` has them: NULL never matches. A table that fits in memory comes to the tasks as an Arrow
stream (`with_rows`), and the step runs over Arrow in both lanes; without it Spark joins a relation of the table's name.
Rows for the quarantine are only marked by the join: `Unmatched` then refuses them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.config.step_columns import added, without
from penstock.contracts import Transform
from penstock.errors import DefinitionError, TerminalError
from penstock.model import COMPUTED, COORDINATES, OffsetRange, Refusal, Split
from penstock.transforms.columns import check_distinct, check_reserved, check_there, find_column, quote
from penstock.transforms.expressions.terms import NoFormError, common_type, sql_name
from penstock.transforms.lookup import (
    KeyIndex,
    OnDuplicate,
    TableRows,
    can_order,
    changed_column,
    checked_keys,
    missing_column,
    read_rows,
    write_rows,
)
from penstock.transforms.step import Step

T = TypeVar("T")
FOUND = f"{COMPUTED}found"
"""Whether the table had a row for the key: a column between the two steps."""
MISS = "ENRICH_MISS"
"""The code of a row that goes to the quarantine."""


class Unmatched(Step):
    """Refuses the rows that `Enrich` found no match for."""

    def __init__(self, table: str, keys: Sequence[str]) -> None:
        self.table = table
        self.keys = list(keys)

    def __repr__(self) -> str:
        return f"quarantine rows without a match in {self.table}"

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns without the mark. Raises where the rows do not say which record they are of."""
        left = without(((field.name, field) for field in schema), [FOUND])
        if COORDINATES not in schema.names:
            raise DefinitionError(
                "ENRICH_NEEDS_COORDINATES",
                f"enrich with table {self.table}: rows without a match go to the quarantine, and these no longer say "
                "which record they are of",
                context={"needed": COORDINATES, "columns": ", ".join(name for name, _ in left)},
                hint=f"keep `{COORDINATES}` in the step that leaves it out, or set another `on_miss`",
            )
        return pa.schema([field for _, field in left])

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Keep the rows with a match."""
        found = rows.column(FOUND)
        good = rows.select(self.output(rows.schema).names)
        if found.true_count == len(found):
            return Split.all_good(good)
        message = f"enrich: table {self.table} has no row for the key ({', '.join(self.keys)})"
        missed = rows.column(COORDINATES).filter(pc.invert(found)).to_pylist()
        if any(at is None or at["topic"] is None or at["offset"] is None for at in missed):
            raise TerminalError(
                "ENRICH_WITHOUT_RECORD",
                f"quarantining rows: some without a match in table {self.table} do not say which record they are of",
                context={"column": COORDINATES},
                hint="put `enrich` in front of the step that makes rows without a record, or set another `on_miss`",
            )
        records = dict.fromkeys((at["topic"], at["partition"], at["offset"]) for at in missed)
        refused = tuple(
            Refusal(OffsetRange(topic, partition, offset, offset + 1), MISS, message)
            for topic, partition, offset in records
        )
        return Split(good.filter(found), refused=refused)


OnMiss = Literal["keep", "drop", "quarantine"]

_TABLE = quote(f"{COMPUTED}table")
_RANK = quote(f"{COMPUTED}rank")


def enrich_steps(
    table: str,
    on: Mapping[str, str],
    take: Mapping[str, str] | None,
    table_schema: pa.Schema,
    on_miss: OnMiss = "keep",
    on_duplicate: OnDuplicate = "fail",
) -> tuple[Transform, ...]:
    """The steps, one after the other, that add the columns of a table. The first is the `Enrich`."""
    step = Enrich(table, on, take, table_schema, on_miss, on_duplicate)
    return (step, Unmatched(table, list(on))) if on_miss == "quarantine" else (step,)


class Enrich(Step):
    """Adds columns of a table. `on` is row column: table column; `take` is new column: table column, None for all."""

    def __init__(
        self,
        table: str,
        on: Mapping[str, str],
        take: Mapping[str, str] | None,
        table_schema: pa.Schema,
        on_miss: OnMiss = "keep",
        on_duplicate: OnDuplicate = "fail",
        rows: TableRows | None = None,
    ) -> None:
        if not on:
            raise DefinitionError("ENRICH_WITHOUT_KEYS", f"enrich with table {table} needs at least one key column")
        self.table = table
        self.on = {mine: _table_column(table, theirs, table_schema) for mine, theirs in on.items()}
        keys = set(self.on.values())
        if take is None:
            take = {name: name for name in table_schema.names if name not in keys and name != COORDINATES}
        check_distinct([*take])
        check_reserved(take)
        self.take = {new: _table_column(table, theirs, table_schema) for new, theirs in take.items()}
        self.needed = tuple(dict.fromkeys([*self.on.values(), *self.take.values()]))
        """The columns of the table that the step reads, the keys first."""
        self.table_schema = pa.schema([table_schema.field(name) for name in self.needed])
        self.on_miss: OnMiss = on_miss
        self.on_duplicate: OnDuplicate = on_duplicate
        self.rows = rows
        unordered = [field for field in self.table_schema if not can_order(field.type)]
        if on_duplicate == "first" and unordered:
            raise DefinitionError(
                "ENRICH_WITHOUT_ORDER",
                f"enrich with table {table}: `on_duplicate: first` needs columns that have an order",
                context={"column": f"{unordered[0].name} {sql_name(unordered[0].type)}"},
                hint="leave the column out of `take`, or set another `on_duplicate`",
            )

    def __repr__(self) -> str:
        return f"enrich with {', '.join(self.take) or 'no columns'} of {self.table} by {', '.join(self.on)}"

    def with_rows(self, rows: TableRows) -> Enrich:
        """The same step with the table in memory."""
        return Enrich(self.table, self.on, self.take, self.table_schema, self.on_miss, self.on_duplicate, rows)

    def pack(self, table: pa.Table) -> bytes:
        """On the driver: what this step needs of the table's rows, for `with_rows`.

        Raises where a key has several rows that are not allowed, and where a column is no longer what it was.
        """
        for field in self.table_schema:
            if field.name not in table.schema.names:
                raise missing_column(self.table, field.name, table.schema.names)
            if table.schema.field(field.name).type != field.type:
                raise changed_column(self.table, field, table.schema.field(field.name))
        needed = table.select(list(self.needed)).cast(self.table_schema.remove_metadata())
        kept, _ = checked_keys(needed, list(self.on.values()), self.on_duplicate, self.table)
        return write_rows(kept)

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """None where it holds the table's rows; else why Spark joins them."""
        self._keys(schema)
        return None if self.rows is not None else f"table {self.table} is larger than its `memory`: Spark joins it"

    def _columns(self, columns: Sequence[tuple[str, T]], made: Mapping[str, T]) -> list[tuple[str, T]]:
        """The columns that leave: those of the table, and the mark, added to the others."""
        names = [name for name, _ in columns]
        check_there(self.on, names)
        found = added(columns, made.items())
        check_distinct([name for name, _ in found])
        return found

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns that leave. Those of the table may all be NULL."""
        self._keys(schema)
        made = {new: pa.field(new, self.table_schema.field(theirs).type) for new, theirs in self.take.items()}
        if self.on_miss == "quarantine":
            made[FOUND] = pa.field(FOUND, pa.bool_())
        return pa.schema([field for _, field in self._columns([(field.name, field) for field in schema], made)])

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Add the columns."""
        keys = self._keys(rows.schema)
        loaded = self._loaded(keys)
        numbers = loaded.index.find([rows.column(key.mine).cast(key.type) for key in keys])
        found = numbers >= 0
        if self.on_duplicate == "all":
            sources, places = loaded.index.every(numbers[found])
            sources = np.flatnonzero(found)[sources]
            if self.on_miss != "drop":
                missed = np.flatnonzero(~found)
                order = np.argsort(np.concatenate([sources, missed]), kind="stable")
                places = np.concatenate([places, np.zeros(len(missed), np.int64)])[order]
                sources = np.concatenate([sources, missed])[order]
            rows, found = rows.take(pa.array(sources)), found[sources]
        else:
            places = loaded.index.first(numbers)
            if self.on_miss == "drop" and not found.all():
                rows, places, found = rows.filter(pa.array(found)), places[found], found[found]
        indices = pa.array(places, mask=~found)
        made = {new: loaded.columns.column(theirs).take(indices) for new, theirs in self.take.items()}
        if self.on_miss == "quarantine":
            made[FOUND] = pa.array(found)
        columns = self._columns(list(zip(rows.schema.names, rows.columns, strict=True)), made)
        schema = self.output(rows.schema)
        return Split.all_good(pa.RecordBatch.from_arrays([array for _, array in columns], schema=schema))

    def select(self, columns: Sequence[str]) -> str | None:
        """The join in Spark SQL, over relations named input and as the table; None where it holds the rows."""
        made = {new: f"{_TABLE}.{quote(theirs)} AS {quote(new)}" for new, theirs in self.take.items()}
        if self.on_miss == "quarantine":
            made[FOUND] = f"coalesce({_TABLE}.{quote(FOUND)}, false) AS {quote(FOUND)}"
        items = [item for _, item in self._columns([(name, f"input.{quote(name)}") for name in columns], made)]
        if self.rows is not None:
            return None
        equal = (
            f"input.{quote(columns[find_column(mine, columns)])} = {_TABLE}.{quote(theirs)}"
            for mine, theirs in self.on.items()
        )
        join = "JOIN" if self.on_miss == "drop" else "LEFT JOIN"
        return (
            f"SELECT {', '.join(items)} FROM input AS input {join} ({self._relation()}) AS {_TABLE} "
            f"ON {' AND '.join(equal)}"
        )

    def duplicates_query(self) -> str | None:
        """A query for the number of keys that have several rows; None where they may.

        For a table that Spark joins, and that no task reads as a whole.
        """
        if self.on_duplicate != "fail":
            return None
        keys = [quote(name) for name in dict.fromkeys(self.on.values())]
        known = " AND ".join(f"{key} IS NOT NULL" for key in keys)
        grouped = f"SELECT 1 FROM {quote(self.table)} WHERE {known} GROUP BY {', '.join(keys)} HAVING count(*) > 1"
        return f"SELECT count(*) AS duplicates FROM ({grouped})"

    def _relation(self) -> str:
        columns = ", ".join(map(quote, self.needed))
        if self.on_duplicate != "first":
            return f"SELECT {columns}, true AS {quote(FOUND)} FROM {quote(self.table)}"
        keys = ", ".join(quote(name) for name in dict.fromkeys(self.on.values()))
        ranked = (
            f"SELECT {columns}, row_number() OVER (PARTITION BY {keys} ORDER BY {columns}) AS {_RANK} "
            f"FROM {quote(self.table)}"
        )
        return f"SELECT {columns}, true AS {quote(FOUND)} FROM ({ranked}) WHERE {_RANK} = 1"

    def _keys(self, schema: pa.Schema) -> list[_Key]:
        """The keys of both sides, each pair with the type in which Spark compares them."""
        keys = []
        for name, other in self.on.items():
            mine, theirs = schema.field(find_column(name, schema.names)), self.table_schema.field(other)
            try:
                kind = common_type([mine.type, theirs.type])
                if kind == pa.null():
                    raise NoFormError("NULL equals nothing")
                if not (_is_injective(mine.type, kind) and _is_injective(theirs.type, kind)):
                    raise NoFormError(f"several values of one side are the same {sql_name(kind)}")
            except NoFormError as error:
                raise DefinitionError(
                    "ENRICH_KEY_TYPES",
                    f"enrich with table {self.table}: the keys of both sides cannot be compared",
                    context={
                        "row": f"{mine.name} {sql_name(mine.type)}",
                        "table": f"{theirs.name} {sql_name(theirs.type)}",
                        "because": error,
                    },
                    hint="cast the column of the rows to the type of the table's in a step before",
                ) from error
            keys.append(_Key(mine.name, theirs.name, kind))
        return keys

    def _loaded(self, keys: Sequence[_Key]) -> _LoadedRows:
        if self.rows is None:
            raise TerminalError(
                "TRANSFORM_NEEDS_SPARK", f"joining table {self.table}: it is not in memory", hint="use the frame lane"
            )
        value = self.rows.value
        slot = (self.table, self.needed, tuple(keys))
        loaded = _LOADED.get(slot)
        if loaded is None or loaded.value is not value:
            if loaded is not None and loaded.value == value:
                loaded = replace(loaded, value=value)
            else:
                columns = read_rows(value)
                loaded = _LoadedRows(
                    value, columns, KeyIndex([columns.column(key.theirs).cast(key.type) for key in keys])
                )
            _LOADED[slot] = loaded
        return loaded


@dataclass(frozen=True, slots=True)
class _Key:
    mine: str
    theirs: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class _LoadedRows:
    value: bytes
    columns: pa.RecordBatch
    index: KeyIndex


_LOADED: dict[tuple[object, ...], _LoadedRows] = {}
"""In each process, for each use of a table, its newest rows."""


def _is_injective(source: pa.DataType, kind: pa.DataType) -> bool:
    """Whether distinct keys stay distinct in the type in which they are compared."""
    return not pa.types.is_floating(kind) or not (source == pa.int64() or pa.types.is_decimal(source))


def _table_column(table: str, name: str, schema: pa.Schema) -> str:
    if name.lower() not in [column.lower() for column in schema.names]:
        raise missing_column(table, name, schema.names)
    return str(schema.names[find_column(name, schema.names)])

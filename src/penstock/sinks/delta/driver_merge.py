"""A MERGE by delta-rs, in the driver's own process: no row enters the JVM, and a small batch takes a tenth of a second.

For a batch and a part of the table that fit into memory, and for keys that Arrow and Spark compare alike; anything else
is merged by Spark. Both leave the same rows, and the same commit: the MERGE and the token are one. The terms of a MERGE
are here for both engines, which differ in how they quote a name and write a literal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types
from deltalake import CommitProperties, DeltaTable, WriterProperties

from penstock.model import COORDINATES, DELETES, MergeRules
from penstock.sinks.delta.touched import Literal, Touched, within
from penstock.sinks.merging import counts_sql, later_sql, rows_that_count


@dataclass(frozen=True)
class MergeTerms:
    """Conditions over the table `t` and the rows `s` that are merged into it."""

    rules: MergeRules
    quote: Callable[..., str]
    """A column, or with two names a member of one."""
    literal: Literal

    def target(self, name: str) -> str:
        """A column of the table."""
        return f"t.{self.quote(name)}"

    def source(self, name: str) -> str:
        """A column of the rows."""
        return f"s.{self.quote(name)}"

    @property
    def deletes(self) -> str:
        """Whether a row deletes."""
        return f"coalesce({self.source(DELETES)}, FALSE)"

    @property
    def newer(self) -> str:
        """That a row is not late, as a further condition; empty where any row counts."""
        newer, later = self.rules.when_newer, None
        if self.rules.by_position:
            later = later_sql(*(partial(self._coordinate, of) for of in "ts"))
        both = (self.source(newer), self.target(newer)) if newer is not None else None
        counts = counts_sql(both, later)
        return f" AND ({counts})" if counts else ""

    def on(self, columns: pa.Schema, touched: Mapping[str, Touched]) -> str:
        """When a row meets one of the table: their keys are equal, in the part of the table that can be touched."""
        equal = (f"{self.target(key)} = {self.source(key)}" for key in self.rules.keys)
        return " AND ".join([*equal, *self._bounds(columns, touched)])

    def _coordinate(self, of: str, part: str) -> str:
        return f"{of}.{self.quote(COORDINATES, part)}"

    def _bounds(self, columns: pa.Schema, touched: Mapping[str, Touched]) -> Iterator[str]:
        """Predicates on the table alone, by which files and partitions are left out."""
        for name in (*self.rules.keys, *self.rules.prune_by):
            if name not in touched:
                continue
            bound = within(self.target(name), columns.field(name).type, touched[name], self.literal)
            if bound is not None:
                # A row from before the column was added, or with an empty text to partition by, has a null there.
                yield f"({bound})" if name in self.rules.keys else f"({bound} OR {self.target(name)} IS NULL)"


STAGED_BYTES = 256 * 1024 * 1024
"""The most that a batch may have staged to be merged here. It is read whole, and is several times larger then."""

TOUCHED_BYTES = 1024 * 1024 * 1024
"""The most that the files of the table may have which the batch can touch. They are rewritten as a stream."""


def fits_driver(table: DeltaTable, columns: pa.Schema, rules: MergeRules, touched: Mapping[str, Touched]) -> bool:
    """Whether a batch that is small enough itself can be merged here."""
    compared = [*rules.keys, *([rules.when_newer] if rules.when_newer else [])]
    return (
        all(_compares_alike(columns.field(name).type) for name in compared)
        and not any('"' in name for name in columns.names)
        and _touched_bytes(table, touched) <= TOUCHED_BYTES
    )


def merge_in_driver(
    table: DeltaTable,
    staged: pa.Table,
    columns: pa.Schema,
    rules: MergeRules,
    touched: Mapping[str, Touched],
    properties: CommitProperties,
) -> bool:
    """Merge staged rows into the `columns` of the table, in one commit with `properties`.

    False where the merge changes nothing: delta-rs then makes no commit.
    """
    before = table.version()
    terms = MergeTerms(rules, _quoted, _literal)
    merger = table.merge(
        rows_that_count(staged, rules),
        predicate=terms.on(columns, touched),
        source_alias="s",
        target_alias="t",
        commit_properties=properties,
        writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
    )
    if not rules.insert_only:
        merger = merger.when_matched_delete(predicate=f"{terms.deletes}{terms.newer}")
        changed = {_quoted(name): terms.source(name) for name in columns.names if name not in rules.keys}
        if changed:
            merger = merger.when_matched_update(updates=changed, predicate=f"NOT {terms.deletes}{terms.newer}")
    every = {_quoted(name): terms.source(name) for name in columns.names}
    merger.when_not_matched_insert(updates=every, predicate=f"NOT {terms.deletes}").execute()
    return table.version() > before


def _literal(kind: pa.DataType, value: Any) -> str | None:
    """A value as a DataFusion literal of exactly this type, or none where there is none to trust."""
    if types.is_signed_integer(kind):
        return f"arrow_cast({value}, 'Int{kind.bit_width}')"
    if types.is_date32(kind) and isinstance(value, date):
        return f"arrow_cast('{value.isoformat()}', 'Date32')"
    if types.is_timestamp(kind) and isinstance(value, datetime):
        zone = 'Some("UTC")' if kind.tz else "None"
        moment = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return f"arrow_cast('{moment}{'Z' if kind.tz else ''}', 'Timestamp(Microsecond, {zone})')"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return None


def _touched_bytes(table: DeltaTable, touched: Mapping[str, Touched]) -> int:
    """The size of the files that the batch can touch, by their partition values and statistics."""
    files = pa.table(table.get_add_actions(flatten=True))
    if not files.num_rows:
        return 0
    possible: Any = pa.repeat(pa.scalar(True), files.num_rows)
    for name, seen in touched.items():
        for low, high in ((f"min.{name}", f"max.{name}"), (f"partition.{name}", f"partition.{name}")):
            if low in files.column_names and high in files.column_names:
                outside = pc.or_(pc.greater(files.column(low), seen.high), pc.less(files.column(high), seen.low))
                possible = pc.and_(possible, pc.invert(pc.fill_null(outside, False)))
    return int(pc.sum(files.filter(possible).column("size_bytes")).as_py() or 0)


def _compares_alike(kind: pa.DataType) -> bool:
    """Whether Arrow and Spark find the same values equal, and order them alike. For floats they do not: NaN, -0.0."""
    return bool(
        types.is_signed_integer(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
        or types.is_decimal(kind)
    )


def _quoted(name: str, *members: str) -> str:
    return "".join([f'"{name}"', *(f"['{member}']" for member in members)])

"""SQL for tables in a lake: names and literals of Spark SQL, and the MERGE of staged rows into a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from penstock.contracts import SqlEngine
from penstock.errors import TerminalError
from penstock.model import COORDINATES, COORDINATES_FIELD, DELETES, MergeRules
from penstock.sinks.merging import counts_sql, later_sql, one_row_a_key


def quoted(*names: str) -> str:
    """Names as one Spark SQL identifier, escaped."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def literal(text: str) -> str:
    """Text as a Spark SQL string literal, escaped."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def require_engine(sql: SqlEngine | None, sink: str, doing: str) -> SqlEngine:
    """The engine that a sink was given; refused where it was given none."""
    if sql is None:
        raise TerminalError("SINK_NEEDS_SPARK", f"sink {sink}: {doing}: the sink was given no SQL engine")
    return sql


_POSITION = tuple(quoted(COORDINATES, name) for name in ("offset", "timestamp", "topic", "partition"))


@dataclass(frozen=True)
class MergeTerms:
    """Conditions over the table `t` and the rows `s` that are merged into it, in one dialect."""

    rules: MergeRules
    quote: Callable[..., str]
    """A column, or with two names a member of one."""

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

    def on(self, bounds: Mapping[str, str]) -> str:
        """When a row matches one of the table: their keys are equal, in the part of the table that can be touched.

        `bounds` are conditions on single columns of the table alone, by which files and partitions are left out.
        """
        terms = [f"{self.target(key)} = {self.source(key)}" for key in self.rules.keys]
        for name, bound in bounds.items():
            # A row from before the column was added, or with an empty text to partition by, has a null there.
            terms.append(f"({bound})" if name in self.rules.keys else f"({bound} OR {self.target(name)} IS NULL)")
        return " AND ".join(terms)

    def _coordinate(self, of: str, part: str) -> str:
        return f"{of}.{self.quote(COORDINATES, part)}"


def staged_schema(columns: pa.Schema, *, positioned: bool) -> pa.Schema:
    """How the staged files are read: the table's columns, the rows' coordinates, and what deletes."""
    fields = [field for field in columns if field.name != COORDINATES]
    coordinates = [COORDINATES_FIELD] if positioned else []
    return pa.schema([*fields, *coordinates, pa.field(DELETES, pa.bool_())])


def merge_statement(
    table: str,
    written: Sequence[str],
    held: Sequence[str],
    rules: MergeRules,
    bounds: Mapping[str, str],
    *,
    positioned: bool,
) -> str:
    """Merge the relation `staged`, one row per key, into `table`, whose columns are `held`; rows fill those `written`.

    Rows that are not `positioned`, having lost their coordinates on the way, must be one per key already, or differ in
    `when_newer`.
    """
    if COORDINATES not in written:
        rules = replace(rules, by_position=False)
    terms = MergeTerms(rules, quoted)
    lines = [f"MERGE INTO {table} AS t USING ({_rows(rules, positioned)}) AS s", f"ON {terms.on(bounds)}"]
    if not rules.insert_only:
        lines.append(f"WHEN MATCHED AND {terms.deletes}{terms.newer} THEN DELETE")
        sets = ", ".join(f"{terms.target(n)} = {terms.source(n)}" for n in written if n not in rules.keys)
        if sets:
            lines.append(f"WHEN MATCHED AND NOT {terms.deletes}{terms.newer} THEN UPDATE SET {sets}")
    names = ", ".join(map(quoted, held))
    values = ", ".join(terms.source(name) if name in written else "NULL" for name in held)
    lines.append(f"WHEN NOT MATCHED AND NOT {terms.deletes} THEN INSERT ({names}) VALUES ({values})")
    return "\n".join(lines)


def _rows(rules: MergeRules, positioned: bool) -> str:
    """The query for the rows that count."""
    # To a sink that only inserts a delete means nothing; it must not stand for a row that is to be inserted.
    live = f"(SELECT * FROM staged WHERE NOT coalesce({quoted(DELETES)}, FALSE)) AS live"
    relation = live if rules.insert_only else "staged"
    return one_row_a_key(relation, rules, quote=quoted, position=_POSITION if positioned else ("0",))

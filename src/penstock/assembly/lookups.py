"""The tables that the steps of a run join with: read when they change, and carried to where the steps are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.assembly.tables import LoadedTable, Tables
from penstock.config import ExpressionError
from penstock.config.expressions import read_query
from penstock.contracts import Transform
from penstock.errors import MissingError
from penstock.transforms import Enrich, LocalRows, Sql, TableRows
from penstock.transforms.lookup import duplicate_keys


class Awaited:
    """Stands for the rows of a table that fits in memory, until they are read."""

    @property
    def value(self) -> bytes:
        """Never asked: the rows are put in its place before a batch."""
        raise AssertionError("the table is read before the first batch")


@dataclass
class Lookups:
    """On the driver: the tables that some steps name, as they are now."""

    tables: Tables
    steps: Sequence[Transform]
    session: Any
    tell: Callable[[str], None]
    _loaded: dict[str, LoadedTable] = field(default_factory=dict)
    _carried: dict[tuple[str, str], TableRows] = field(default_factory=dict)
    """What was carried to the tasks for each step and version."""
    _asked: set[tuple[str, str]] = field(default_factory=set)

    def refresh(self) -> set[str]:
        """Look at the tables; the names of those that are new or changed."""
        found = self.tables.current(self._wanted(), time.monotonic())
        fresh = {name for name, table in found.items() if table.changed or name not in self._loaded}
        for name in sorted(fresh & self._loaded.keys()):
            self.tell(found[name].notice)
        self._loaded = found
        return fresh

    def held(self, steps: Iterable[Transform]) -> tuple[Transform, ...]:
        """The steps, with the rows of the tables that fit in memory."""
        return tuple(self._with_rows(step) if isinstance(step, Enrich) and step.rows else step for step in steps)

    def views(self, session: Any) -> None:
        """Make the tables that Spark reads views of a session."""
        for name in self._by_spark():
            self.tables.view(session, name)
        for step in self.steps:
            if isinstance(step, Enrich) and step.rows is None:
                self._refuse_duplicates(session, step)

    def _refuse_duplicates(self, session: Any, step: Enrich) -> None:
        """Ask once for each version of a table that Spark joins."""
        query, key = step.duplicates_query(), (repr(step), self._loaded[step.table].version)
        if query is None or key in self._asked:
            return
        [found] = session.sql(query).collect()
        if found[0]:
            raise duplicate_keys(step.table, list(step.on.values()), found[0])
        self._asked.add(key)

    def _with_rows(self, step: Enrich) -> Enrich:
        table = self._loaded[step.table]
        if table.rows is None:
            raise MissingError(
                "TABLE_TOO_LARGE",
                f"table {step.table} has grown larger than its memory",
                hint=f"start again: Spark then joins it; or raise tables.{step.table}.memory",
            )
        key = (repr(step), table.version)
        if key not in self._carried:
            self._carried = {k: rows for k, rows in self._carried.items() if k[0] != key[0]}
            packed = step.pack(table.rows)
            session = self.session
            self._carried[key] = LocalRows(packed) if session is None else session.sparkContext.broadcast(packed)
        return step.with_rows(self._carried[key])

    def _by_spark(self) -> set[str]:
        """The tables that SQL names, or that are too large for the tasks."""
        joined = {step.table for step in self.steps if isinstance(step, Enrich) and step.rows is None}
        return joined | {name for step in self.steps if isinstance(step, Sql) for name in self._named(step)}

    def _named(self, step: Sql) -> list[str]:
        try:
            named = {name.lower() for name in read_query(step.query).tables}
        except ExpressionError:
            return []
        return [name for name in self.tables.names if name.lower() in named]

    def _wanted(self) -> dict[str, Sequence[str]]:
        wanted: dict[str, Sequence[str]] = {name: self.tables.schema(name).names for name in self._by_spark()}
        for step in self.steps:
            if isinstance(step, Enrich):
                wanted[step.table] = sorted({*wanted.get(step.table, ()), *step.needed})
        return wanted

"""The terms of a MERGE, for either engine that runs it: they differ in how they quote a name and write a literal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from penstock.model import COORDINATES, DELETES, MergeRules
from penstock.sinks.delta.touched import Literal, Touched, within
from penstock.sinks.merging import counts_sql, later_sql


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

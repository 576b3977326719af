"""What one sink is given of the rows: the columns it selects, where its condition holds, and what is computed for it.

Conditions and expressions of the sinks are computed once, as the last transform, in both lanes: `SinkExpressions` puts
them into further columns of the row, and an inlet picks its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import Sink
from penstock.model import COMPUTED, COORDINATES, DELETES
from penstock.transforms import Derive, Where
from penstock.transforms.step import StepExpression


class SinkExpressions(Derive):
    """The sinks' own expressions, as columns."""

    def __repr__(self) -> str:
        return f"for the sinks: {', '.join(self.columns.values())}"

    @property
    def expressions(self) -> list[StepExpression]:
        """The expressions."""
        return [StepExpression(f"for the sinks: {text.strip()}", text) for text in self.columns.values()]


class RouteCondition(Where):
    """The condition of a route, before its first step."""

    def __repr__(self) -> str:
        return f"the route's where {self.condition}"

    @property
    def expressions(self) -> list[StepExpression]:
        """The condition."""
        return [StepExpression(f"the route's where {self.condition.strip()}", self.condition, condition=True)]


@dataclass(frozen=True)
class Inlet:
    """A sink and what reaches it. `where` and the values of `computed` are columns of `SinkExpressions`."""

    sink: Sink
    select: tuple[str, ...] | None = None
    where: str | None = None
    computed: Mapping[str, str] = field(default_factory=dict)
    """The sink's name for a computed column, and the column."""

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """The columns that reach the sink."""
        own = [rows.field(source).with_name(name) for name, source in self.computed.items()]
        return pa.schema([*(rows.field(name) for name in self._columns(rows)), *own])

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that reach the sink."""
        if self.where is None and not self.computed and self.select is None and not _has_computed(rows.schema):
            return rows
        if self.where is not None:
            rows = rows.filter(rows.column(self.where))
        arrays = [rows.column(name) for name in self._columns(rows.schema)]
        # A condition that is neither true nor false does not hold: such a row is not selected, and deletes nothing.
        arrays += [
            pc.fill_null(rows.column(source), False) if name == DELETES else rows.column(source)
            for name, source in self.computed.items()
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema(rows.schema))

    def _columns(self, rows: pa.Schema) -> list[str]:
        wanted = None if self.select is None else {COORDINATES, *(name.lower() for name in self.select)}
        return [
            name for name in rows.names if not name.startswith(COMPUTED) and (wanted is None or name.lower() in wanted)
        ]


def _has_computed(schema: pa.Schema) -> bool:
    return any(name.startswith(COMPUTED) for name in schema.names)

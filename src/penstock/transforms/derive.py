"""`derive` and `cast`: columns computed from the columns that enter.

A column that is there already is replaced where it stands; a new one goes behind the others, before the
coordinates, which stay last. Expressions see the columns that enter, not each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from penstock.model import COORDINATES, Split
from penstock.transforms.columns import check_distinct, check_reserved, quote, select_list
from penstock.transforms.expressions import ArrowExpression, NoArrowForm
from penstock.transforms.expressions.expression import LazyExpressions
from penstock.transforms.failing import OnError, Tried, apply_computing


class Derive:
    """Adds or replaces columns by Spark SQL expressions."""

    def __init__(self, columns: Mapping[str, str], on_error: OnError = "fail") -> None:
        check_distinct(list(columns))
        check_reserved(columns)
        self.columns = dict(columns)
        self.on_error: OnError = on_error
        self._compiled = LazyExpressions(list(columns.values()))

    def __repr__(self) -> str:
        return f"derive {', '.join(self.columns)}"

    @property
    def tried(self) -> list[Tried]:
        """The expressions, in the order of the file."""
        return [Tried(f"derive {name}", text) for name, text in self.columns.items()]

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """Why this needs Spark, or None where Arrow gives exactly the same values."""
        return next((c.reason for c in self._compiled.over(schema) if isinstance(c, NoArrowForm)), None)

    def may_fail(self, schema: pa.Schema) -> bool:
        """Whether some row may fail, where there is an Arrow form."""
        return any(isinstance(c, ArrowExpression) and c.failures for c in self._compiled.over(schema))

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns that leave. Only where there is an Arrow form; otherwise the types are Spark's to say."""
        return self.given(schema, [pa.field("", c.type) for c in self._compiled.arrow(schema)])

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Compute the columns."""
        return apply_computing(self, self._compiled.arrow(rows.schema), rows)

    def given(self, schema: pa.Schema, values: Sequence[pa.Field]) -> pa.Schema:
        """The columns that leave, given the fields of the computed ones."""
        made = dict(zip(self.columns, values, strict=True))
        return pa.schema(
            schema.field(source).with_name(name) if isinstance(source, int) else made[source].with_name(name)
            for name, source in self._layout(schema.names)
        )

    def finished(self, rows: pa.RecordBatch, values: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
        """The rows with the computed columns."""
        made = dict(zip(self.columns, values, strict=True))
        arrays = [
            rows.column(source) if isinstance(source, int) else made[source]
            for _, source in self._layout(rows.schema.names)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def select(self, columns: Sequence[str]) -> str:
        """The same in Spark SQL, over a relation named input."""
        # The line break ends a comment that the text may close with.
        return select_list(
            quote(name) if isinstance(source, int) else f"({self.columns[source]}\n) AS {quote(name)}"
            for name, source in self._layout(columns)
        )

    def _layout(self, columns: Sequence[str]) -> list[tuple[str, int | str]]:
        """Name and source of each column that leaves: the place of one that enters, or an entry's name."""
        entries = {name.lower(): name for name in self.columns}
        layout: list[tuple[str, int | str]] = []
        for index, column in enumerate(columns):
            entry = entries.pop(column.lower(), None)
            layout.append((column, index) if entry is None else (entry, entry))
        end = len(layout) - (bool(columns) and columns[-1] == COORDINATES)
        return [*layout[:end], *((name, name) for name in entries.values()), *layout[end:]]


class Cast(Derive):
    """Changes the type of columns: `CAST(column AS type)`, which keep their place and name."""

    def __init__(self, types: Mapping[str, str], on_error: OnError = "fail") -> None:
        super().__init__({name: f"CAST({quote(name)} AS {kind})" for name, kind in types.items()}, on_error)
        self.types = dict(types)

    def __repr__(self) -> str:
        return f"cast {', '.join(self.columns)}"

    @property
    def tried(self) -> list[Tried]:
        """The casts, in the order of the file."""
        return [Tried(f"cast {name} to {self.types[name]}", text) for name, text in self.columns.items()]

"""`derive` and `cast`: columns computed from the columns that enter.

A column that is there already is replaced where it stands; a new one goes after the others, before the
coordinates, which stay last. Expressions see the columns that enter, not each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from penstock.config.step_columns import computed
from penstock.transforms.columns import check_distinct, check_reserved, quote, select_list
from penstock.transforms.step import ExpressionStep, OnError, StepExpression


class Derive(ExpressionStep):
    """Adds or replaces columns by Spark SQL expressions."""

    def __init__(self, columns: Mapping[str, str], on_error: OnError = "fail") -> None:
        check_distinct(list(columns))
        check_reserved(columns)
        self.columns = dict(columns)
        super().__init__(list(columns.values()), on_error)

    def __repr__(self) -> str:
        return f"derive {', '.join(self.columns)}"

    @property
    def expressions(self) -> list[StepExpression]:
        """The expressions, in the order of the file."""
        return [StepExpression(f"derive {name}", text) for name, text in self.columns.items()]

    def output_with(self, schema: pa.Schema, values: Sequence[pa.Field]) -> pa.Schema:
        """The columns that leave, given the fields of the computed ones."""
        made = zip(self.columns, values, strict=True)
        return pa.schema(field.with_name(name) for name, field in computed(((f.name, f) for f in schema), made))

    def rows_with(self, rows: pa.RecordBatch, values: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
        """The rows with the computed columns."""
        made = zip(self.columns, values, strict=True)
        columns = computed(zip(rows.schema.names, rows.columns, strict=True), made)
        return pa.RecordBatch.from_arrays([array for _, array in columns], schema=schema)

    def select(self, columns: Sequence[str]) -> str:
        """The same in Spark SQL, over a relation named input."""
        # The line break ends a comment that the text may close with.
        made = ((name, f"({text}\n) AS {quote(name)}") for name, text in self.columns.items())
        return select_list(item for _, item in computed(((name, quote(name)) for name in columns), made))


class Cast(Derive):
    """Changes the type of columns: `CAST(column AS type)`, which keep their place and name."""

    def __init__(self, types: Mapping[str, str], on_error: OnError = "fail") -> None:
        super().__init__({name: f"CAST({quote(name)} AS {kind})" for name, kind in types.items()}, on_error)
        self.types = dict(types)

    def __repr__(self) -> str:
        return f"cast {', '.join(self.columns)}"

    @property
    def expressions(self) -> list[StepExpression]:
        """The casts, in the order of the file."""
        return [StepExpression(f"cast {name} to {self.types[name]}", text) for name, text in self.columns.items()]

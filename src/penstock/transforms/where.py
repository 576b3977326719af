"""`where`: the rows for which a condition is true; not those for which it is false or NULL. `rename` and `drop`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from penstock.config import step_columns
from penstock.model import Split
from penstock.transforms.columns import check_distinct, check_reserved, check_there, quote, select_list
from penstock.transforms.expressions.parsing import invalid
from penstock.transforms.expressions.terms import sql_name
from penstock.transforms.step import ExpressionStep, OnError, Step, StepExpression

T = TypeVar("T")


class Where(ExpressionStep):
    """Keeps the rows that satisfy a Spark SQL condition."""

    def __init__(self, condition: str, on_error: OnError = "fail") -> None:
        self.condition = condition
        super().__init__([condition], on_error, condition=True)

    def __repr__(self) -> str:
        return f"where {self.condition}"

    @property
    def expressions(self) -> list[StepExpression]:
        """The condition."""
        return [StepExpression(f"where {self.condition.strip()}", self.condition, condition=True)]

    def check_type(self, number: int, kind: pa.DataType) -> None:
        """Raise where the condition is not BOOLEAN."""
        if kind != pa.bool_():
            raise invalid(self.condition, f"the condition gives {sql_name(kind)}, it has to give BOOLEAN")

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The same columns."""
        self._checked(schema)
        return schema

    def output_with(self, schema: pa.Schema, values: Sequence[pa.Field]) -> pa.Schema:
        """The same columns."""
        return schema

    def rows_with(self, rows: pa.RecordBatch, values: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
        """The rows for which the condition is true."""
        [condition] = values
        return rows.filter(condition)

    def select(self, columns: Sequence[str]) -> str:
        """The same in Spark SQL, over a relation named input."""
        # Without the alias Spark reads `FROM input WHERE (paid)` as an alias named WHERE with a column list.
        return f"{select_list(map(quote, columns))} AS input WHERE ({self.condition}\n)"


class Arranged(Step):
    """The same rows and values under other names, or fewer of them. Always exact in Arrow."""

    @abstractmethod
    def columns_of(self, columns: Sequence[tuple[str, T]]) -> list[tuple[str, T]]:
        """The columns that leave when these enter, whatever comes with their names."""

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns that leave."""
        columns = self.columns_of([(field.name, field) for field in schema])
        return pa.schema(field.with_name(name) for name, field in columns)

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Rename the columns, or leave some out."""
        arrays = self.columns_of(list(zip(rows.schema.names, rows.columns, strict=True)))
        schema = self.output(rows.schema)
        return Split.all_good(pa.RecordBatch.from_arrays([array for _, array in arrays], schema=schema))

    def select(self, columns: Sequence[str]) -> str:
        """The same in Spark SQL, over a relation named input."""
        pairs = self.columns_of([(name, name) for name in columns])
        return select_list(quote(old) if old == new else f"{quote(old)} AS {quote(new)}" for new, old in pairs)


class Rename(Arranged):
    """Gives columns other names, all at once, so that two may swap theirs."""

    def __init__(self, names: Mapping[str, str]) -> None:
        check_distinct(list(names))
        check_reserved([*names, *names.values()])
        self.renamed = dict(names)

    def __repr__(self) -> str:
        return f"rename {', '.join(f'{old} to {new}' for old, new in self.renamed.items())}"

    def columns_of(self, columns: Sequence[tuple[str, T]]) -> list[tuple[str, T]]:
        """The columns under their new names."""
        check_there(self.renamed, [name for name, _ in columns])
        found = step_columns.renamed(columns, self.renamed)
        check_distinct([name for name, _ in found])
        return found


class Drop(Arranged):
    """Leaves columns out."""

    def __init__(self, columns: Sequence[str]) -> None:
        check_reserved(columns)
        self.columns = list(columns)

    def __repr__(self) -> str:
        return f"drop {', '.join(self.columns)}"

    def columns_of(self, columns: Sequence[tuple[str, T]]) -> list[tuple[str, T]]:
        """The columns that are left."""
        check_there(self.columns, [name for name, _ in columns])
        return step_columns.without(columns, self.columns)

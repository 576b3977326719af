"""`where`: the rows for which a condition is true; not those for which it is false or NULL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from penstock.model import Split
from penstock.transforms.columns import check_distinct, check_reserved, find_column, quote, select_list
from penstock.transforms.expressions import ArrowExpression, NoArrowForm
from penstock.transforms.expressions.expression import LazyExpressions
from penstock.transforms.expressions.parsing import invalid
from penstock.transforms.expressions.terms import sql_name
from penstock.transforms.failing import OnError, Tried, apply_computing


class Where:
    """Keeps the rows that satisfy a Spark SQL condition."""

    def __init__(self, condition: str, on_error: OnError = "fail") -> None:
        self.condition = condition
        self.on_error: OnError = on_error
        self._compiled = LazyExpressions([condition], condition=True)

    def __repr__(self) -> str:
        return f"where {self.condition}"

    @property
    def tried(self) -> list[Tried]:
        """The condition."""
        return [Tried(f"where {self.condition.strip()}", self.condition, condition=True)]

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """Why this needs Spark, or None where Arrow gives exactly the same rows."""
        compiled = self._condition(schema)
        return compiled.reason if isinstance(compiled, NoArrowForm) else None

    def may_fail(self, schema: pa.Schema) -> bool:
        """Whether some row may fail, where there is an Arrow form."""
        compiled = self._condition(schema)
        return isinstance(compiled, ArrowExpression) and bool(compiled.failures)

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The same columns."""
        self._condition(schema)
        return schema

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Drop the rows for which the condition is not true."""
        return apply_computing(self, self._compiled.arrow(rows.schema), rows)

    def given(self, schema: pa.Schema, values: Sequence[pa.Field]) -> pa.Schema:
        """The same columns."""
        return schema

    def finished(self, rows: pa.RecordBatch, values: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
        """The rows for which the condition is true."""
        [condition] = values
        return rows.filter(condition)

    def select(self, columns: Sequence[str]) -> str:
        """The same in Spark SQL, over a relation named input."""
        # Without the alias Spark reads `FROM input WHERE (paid)` as an alias named WHERE with a column list.
        return f"{select_list(map(quote, columns))} AS input WHERE ({self.condition}\n)"

    def _condition(self, schema: pa.Schema) -> ArrowExpression | NoArrowForm:
        [compiled] = self._compiled.over(schema)
        if isinstance(compiled, ArrowExpression) and compiled.type != pa.bool_():
            raise invalid(self.condition, f"the condition gives {sql_name(compiled.type)}, it has to give BOOLEAN")
        return compiled


# `rename` and `drop`: the same rows with other column names, or fewer columns. Always exact in Arrow.


class Rename:
    """Gives columns other names, all at once, so that two may swap theirs."""

    def __init__(self, names: Mapping[str, str]) -> None:
        check_distinct(list(names))
        check_reserved([*names, *names.values()])
        self.renamed = dict(names)

    def __repr__(self) -> str:
        return f"rename {', '.join(f'{old} to {new}' for old, new in self.renamed.items())}"

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """None: renaming is exact."""
        self.names(schema.names)
        return None

    def names(self, columns: Sequence[str]) -> list[str]:
        """The columns that leave when these enter."""
        result = list(columns)
        for old, new in self.renamed.items():
            result[find_column(old, columns)] = new
        check_distinct(result)
        return result

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns under their new names."""
        return pa.schema(field.with_name(name) for field, name in zip(schema, self.names(schema.names), strict=True))

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Rename the columns."""
        return Split.all_good(pa.RecordBatch.from_arrays(rows.columns, schema=self.output(rows.schema)))

    def select(self, columns: Sequence[str]) -> str:
        """The same in Spark SQL, over a relation named input."""
        pairs = zip(columns, self.names(columns), strict=True)
        return select_list(quote(old) if old == new else f"{quote(old)} AS {quote(new)}" for old, new in pairs)


class Drop:
    """Leaves columns out."""

    def __init__(self, columns: Sequence[str]) -> None:
        check_reserved(columns)
        self.columns = list(columns)

    def __repr__(self) -> str:
        return f"drop {', '.join(self.columns)}"

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """None: leaving columns out is exact."""
        self.names(schema.names)
        return None

    def names(self, columns: Sequence[str]) -> list[str]:
        """The columns that leave when these enter."""
        dropped = {find_column(name, columns) for name in self.columns}
        return [column for index, column in enumerate(columns) if index not in dropped]

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns that are left."""
        return pa.schema(schema.field(name) for name in self.names(schema.names))

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Leave the columns out."""
        return Split.all_good(rows.select(self.names(rows.schema.names)))

    def select(self, columns: Sequence[str]) -> str:
        """The same in Spark SQL, over a relation named input."""
        return select_list(map(quote, self.names(columns)))

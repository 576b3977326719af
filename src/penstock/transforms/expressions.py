"""Spark SQL expressions as Arrow computations, where the two agree on every value, NULL and type.

Text and a schema enter; an `ArrowExpression` leaves, or a `NoArrowForm` that says why Spark has to evaluate it.
Spark 4.1 in ANSI mode with the session in UTC is what counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.transforms.forms import Compiler
from penstock.transforms.parsing import check_columns, parse_expression
from penstock.transforms.terms import Datum, NoFormError


@dataclass(frozen=True, slots=True)
class NoArrowForm:
    """The expression has to be evaluated by Spark."""

    reason: str


@dataclass(frozen=True, slots=True)
class ArrowExpression:
    """An expression with the exact meaning that Spark gives it."""

    text: str
    type: pa.DataType
    run: Callable[[pa.RecordBatch], Datum] = field(repr=False)

    def evaluate(self, rows: pa.RecordBatch) -> pa.Array:
        """The value of every row."""
        result = self.run(rows)
        return pa.repeat(result, rows.num_rows) if isinstance(result, pa.Scalar) else result


def compile_expression(text: str, schema: pa.Schema) -> ArrowExpression | NoArrowForm:
    """The Arrow form of a Spark SQL expression over `schema`, or why there is none.

    Raises `DefinitionError` for what Spark would certainly refuse, such as a column that is not there.
    """
    check_columns(text, schema.names)
    try:
        term = Compiler(text, schema).term(parse_expression(text))
        if term.type == pa.null():
            raise NoFormError("it is NULL without a type")
    except NoFormError as reason:
        return NoArrowForm(f"`{text.strip()}`: {reason}")
    return ArrowExpression(text, term.type, term.run)

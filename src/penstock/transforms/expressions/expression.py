"""Spark SQL expressions as Arrow computations, where the two agree on every value, NULL, type and failure.

Text and a schema enter; an `ArrowExpression` leaves, or a `NoArrowForm` that says why Spark has to evaluate it.
Spark 4.1 in ANSI mode with the session in UTC is what counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.errors import TerminalError
from penstock.model import COORDINATES
from penstock.transforms.expressions.forms import compile_tree
from penstock.transforms.expressions.laziness import Failure
from penstock.transforms.expressions.parsing import check_columns, parse_expression
from penstock.transforms.expressions.terms import Datum, NoFormError, RowError, Rows


@dataclass(frozen=True, slots=True)
class NoArrowForm:
    """The expression has to be evaluated by Spark."""

    reason: str


@dataclass(frozen=True, slots=True)
class ArrowExpression:
    """An expression with the exact meaning that Spark gives it."""

    text: str
    type: pa.DataType
    run: Callable[[Rows], Datum] = field(repr=False)
    failures: tuple[Failure, ...] = field(default=(), repr=False)
    """What in it may fail on a row."""

    def evaluate(self, rows: pa.RecordBatch) -> pa.Array:
        """The value of every row. Raises `TerminalError` EXPRESSION_FAILED where Spark would fail on a row."""
        try:
            result = self.run(Rows(rows))
        except RowError as failure:
            raise self._failed(failure.error_class, rows, failure.row) from failure
        except pa.ArrowInvalid as failure:
            raise self._failed("ARITHMETIC_OVERFLOW", rows, None) from failure
        return pa.repeat(result, rows.num_rows) if isinstance(result, pa.Scalar) else result

    def _failed(self, error_class: str, rows: pa.RecordBatch, row: int | None) -> TerminalError:
        context = {"expression": self.text.strip(), "error class": error_class}
        if row is not None and COORDINATES in rows.schema.names:
            place = rows.column(COORDINATES)[row].as_py()
            context["record"] = f"{place.get('topic')}[{place.get('partition')}] offset {place.get('offset')}"
        return TerminalError(
            "EXPRESSION_FAILED",
            f"evaluating an expression: {error_class}",
            context=context,
            hint="leave such rows out with `where` before it, or allow for them: try_divide, try_cast, CASE, ...",
        )


def compile_expression(text: str, schema: pa.Schema, *, condition: bool = False) -> ArrowExpression | NoArrowForm:
    """The Arrow form of a Spark SQL expression over `schema`, or why there is none.

    With `condition` it is the one of a filter, which drops a row as soon as a part of it is NULL.
    Raises `DefinitionError` for what Spark would certainly refuse, such as a column that is not there.
    """
    check_columns(text, schema.names)
    try:
        term, failures = compile_tree(parse_expression(text), text, schema, condition=condition)
        if term.type == pa.null():
            raise NoFormError("it is NULL without a type")
    except NoFormError as reason:
        return NoArrowForm(f"`{text.strip()}`: {reason}")
    return ArrowExpression(text, term.type, term.run, failures)

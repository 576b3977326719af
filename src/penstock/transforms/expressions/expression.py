"""Spark SQL expressions as Arrow computations, where the two agree on every value, NULL, type and failure.

Text and a schema enter; an `ArrowExpression` leaves, or a `NoArrowForm` that says why Spark has to evaluate it. Spark
4.1 in ANSI mode with the session in UTC is what counts. Expressions of a step are kept as text and compiled where they
are used: in a task, once for each schema. Of aggregates, which are Spark's, only the type is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from sqlglot import exp

from penstock.errors import DefinitionError, TerminalError
from penstock.transforms.columns import place_in_words
from penstock.transforms.expressions.forms import Compiler
from penstock.transforms.expressions.laziness import Failure, repeated
from penstock.transforms.expressions.parsing import check_columns, parse_expression
from penstock.transforms.expressions.terms import Datum, NoFormError, RowError, Rows


class LazyExpressions:
    """The expressions of one step, over one schema at a time. Pickles as their text."""

    def __init__(self, texts: Sequence[str], *, condition: bool = False) -> None:
        self._texts = list(texts)
        self._condition = condition
        self._schema: pa.Schema | None = None
        self._compiled: list[ArrowExpression | NoArrowForm] = []

    def __reduce__(self) -> tuple[object, ...]:
        return partial(LazyExpressions, condition=self._condition), (self._texts,)

    def over(self, schema: pa.Schema) -> list[ArrowExpression | NoArrowForm]:
        """Each expression compiled, or why it has no Arrow form."""
        if self._schema is None or not self._schema.equals(schema):
            self._compiled = _apart([compile_expression(t, schema, condition=self._condition) for t in self._texts])
            self._schema = schema
        return self._compiled

    def arrow(self, schema: pa.Schema) -> list[ArrowExpression]:
        """Each expression compiled, where all have an Arrow form."""
        exact = []
        for compiled in self.over(schema):
            if isinstance(compiled, NoArrowForm):
                raise TerminalError("TRANSFORM_NEEDS_SPARK", compiled.reason, hint="run it in the frame lane")
            exact.append(compiled)
        return exact


def _apart(compiled: list[ArrowExpression | NoArrowForm]) -> list[ArrowExpression | NoArrowForm]:
    """No Arrow form for expressions of which Spark may compute a piece that fails once for several of them."""
    exact = [expression for expression in compiled if isinstance(expression, ArrowExpression)]
    if not repeated([failure for expression in exact for failure in expression.failures]):
        return compiled
    reason = "a piece that may fail is there twice"
    return [
        NoArrowForm(f"`{c.text.strip()}`: {reason}") if isinstance(c, ArrowExpression) and c.failures else c
        for c in compiled
    ]


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
        values, failed = self.attempt(rows)
        if failed:
            row = min(failed)
            raise expression_failed(self.text, failed[row], rows, row)
        return values

    def attempt(self, rows: pa.RecordBatch) -> tuple[pa.Array, dict[int, str]]:
        """The value of every row, and the error class of each row on which Spark would fail; its value is arbitrary."""
        failed: dict[int, str] = {}
        try:
            return _column(self.run(Rows(rows, failed=failed)), rows.num_rows), failed
        except (pa.ArrowInvalid, IndexError):
            if rows.num_rows == 1:
                return pa.nulls(1, self.type), {0: self._failure_of(rows)}
        middle = rows.num_rows // 2
        (left, failed), (right, others) = self.attempt(rows.slice(0, middle)), self.attempt(rows.slice(middle))
        return pa.concat_arrays([left, right]), failed | {middle + row: why for row, why in others.items()}

    def _failure_of(self, row: pa.RecordBatch) -> str:
        """The error class of a row that fails."""
        try:
            self.run(Rows(row))
        except RowError as failure:
            return failure.error_class
        except pa.ArrowInvalid:
            pass
        return "ARITHMETIC_OVERFLOW"


def expression_failed(text: str, error_class: str, rows: pa.RecordBatch, row: int) -> TerminalError:
    """The error for a row on which an expression fails, with the place of its record where that is known."""
    return TerminalError(
        "EXPRESSION_FAILED",
        f"evaluating an expression: {error_class}",
        context={"expression": text.strip(), "error class": error_class, **place_in_words(rows, row)},
        hint="leave such rows out with `where` before it, or allow for them: try_divide, try_cast, CASE, ...\n"
        "or add a `quarantine:`, which then takes their records",
    )


def _column(result: Datum, count: int) -> pa.Array:
    return pa.repeat(result, count) if isinstance(result, pa.Scalar) else result


def compile_expression(text: str, schema: pa.Schema, *, condition: bool = False) -> ArrowExpression | NoArrowForm:
    """The Arrow form of a Spark SQL expression over `schema`, or why there is none.

    With `condition` it is the one of a filter, which drops a row as soon as a part of it is NULL.
    Raises `DefinitionError` for what Spark would certainly refuse, such as a column that is not there.
    """
    check_columns(text, schema.names)
    try:
        term, failures = Compiler(text, schema, condition=condition).compile(parse_expression(text))
        if term.type == pa.null():
            raise NoFormError("it is NULL without a type")
    except NoFormError as reason:
        return NoArrowForm(f"`{text.strip()}`: {reason}")
    return ArrowExpression(text, term.type, term.run, failures)


_SAME = (exp.Min, exp.Max, exp.AnyValue, exp.First, exp.Last)
_COUNTS = (exp.Count, exp.ApproxDistinct, exp.CountIf)


def aggregate_type(text: str, schema: pa.Schema) -> pa.DataType | None:
    """The type that Spark gives an aggregate over `schema`, or None where only Spark knows."""
    try:
        tree = parse_expression(text)
    except DefinitionError:
        return None
    if isinstance(tree, _COUNTS):
        return pa.int64()
    if not isinstance(tree, (*_SAME, exp.Sum, exp.Avg)):
        return None
    operand = _type_of(tree.this, schema)
    if operand is None or isinstance(tree, _SAME):
        return operand
    return _summed(operand) if isinstance(tree, exp.Sum) else _averaged(operand)


def _type_of(node: exp.Expr, schema: pa.Schema) -> pa.DataType | None:
    inner = node.this if isinstance(node, exp.Distinct | exp.IgnoreNulls | exp.RespectNulls) else node
    try:
        compiled = compile_expression(inner.sql("spark"), schema)
    except DefinitionError:
        return None
    return compiled.type if isinstance(compiled, ArrowExpression) else None


def _summed(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    return pa.decimal128(min(38, kind.precision + 10), kind.scale) if pa.types.is_decimal(kind) else None


def _averaged(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return pa.float64()
    # Of a decimal the scale is cut in ways that depend on the precision: left to Spark.
    return None

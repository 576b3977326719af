"""What steps have in common: exact over Arrow, run by Spark alone, or computing expressions that may fail on a row.

A row fails where it would in Spark: a text that is not a number, a division by zero, a value that does not fit. Either
the run stops at the first such row, or exactly these rows are refused: in both lanes the same rows and records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import TerminalError
from penstock.model import COMPUTED, Refusal, Split
from penstock.transforms.columns import records_of
from penstock.transforms.expressions import ArrowExpression, NoArrowForm
from penstock.transforms.expressions.expression import LazyExpressions, expression_failed

OnError = Literal["fail", "quarantine"]

FAILED = "EXPRESSION_FAILED"
"""The code of a row that goes to the quarantine, and of the error where the run stops."""

_TRIED = f"{COMPUTED}tried_"


class Step(ABC):
    """Implements `contracts.Transform`: unless a subclass says otherwise, a step over Arrow in both lanes."""

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """Why this needs Spark; None where Arrow gives exactly the same. Raises where columns are missing."""
        self.output(schema)
        return None

    def select(self, columns: Sequence[str]) -> str | None:
        """The same in Spark SQL, over a relation named input; None where it runs over Arrow in both lanes."""
        return None

    @abstractmethod
    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns that leave."""

    @abstractmethod
    def apply(self, rows: pa.RecordBatch) -> Split:
        """The step over Arrow."""


class SparkStep(Step):
    """A step without an Arrow form."""

    reason: ClassVar[str]

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """Why this needs Spark."""
        return self.reason

    def output(self, schema: pa.Schema) -> pa.Schema:
        """Not known without Spark."""
        raise self.needs_spark()

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Not possible without Spark."""
        raise self.needs_spark()

    def needs_spark(self) -> TerminalError:
        """The error for running the step without Spark."""
        return TerminalError("TRANSFORM_NEEDS_SPARK", self.reason, hint="run it in the frame lane")


@dataclass(frozen=True, slots=True)
class StepExpression:
    """One expression of a step."""

    label: str
    """Its name in messages."""
    text: str
    condition: bool = False
    """Whether it is a filter, which drops a row as soon as a part of it is NULL."""


class ExpressionStep(Step):
    """A step that evaluates expressions, each of which may fail on a row."""

    def __init__(self, texts: Sequence[str], on_error: OnError, *, condition: bool = False) -> None:
        self.on_error: OnError = on_error
        self._compiled = LazyExpressions(texts, condition=condition)

    @property
    @abstractmethod
    def expressions(self) -> Sequence[StepExpression]:
        """Its expressions, in the order of the file."""

    @abstractmethod
    def output_with(self, schema: pa.Schema, values: Sequence[pa.Field]) -> pa.Schema:
        """The columns that leave, given the fields of the computed values."""

    @abstractmethod
    def rows_with(self, rows: pa.RecordBatch, values: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
        """The rows that leave, given the computed values; `schema` is that of `output_with`."""

    def check_type(self, number: int, kind: pa.DataType) -> None:
        """Raise where an expression has a type that it must not have."""

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """Why this needs Spark, or None where Arrow gives exactly the same values."""
        return next((c.reason for c in self._checked(schema) if isinstance(c, NoArrowForm)), None)

    def may_fail(self, schema: pa.Schema) -> bool:
        """Whether some row may fail, where all expressions have an Arrow form."""
        return any(isinstance(c, ArrowExpression) and c.failures for c in self._checked(schema))

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns that leave. Raises where only Spark knows the types."""
        self._checked(schema)
        return self.output_with(schema, [pa.field("", c.type) for c in self._compiled.arrow(schema)])

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Evaluate the expressions over Arrow; rows that fail stop the run, or are refused."""
        values: list[pa.Array] = []
        failed: dict[int, tuple[int, str]] = {}
        expressions = self._compiled.arrow(rows.schema)
        for number, expression in enumerate(expressions):
            found, fails = expression.attempt(rows)
            values.append(found)
            for row, error_class in fails.items():
                failed.setdefault(row, (number, error_class))
        fields = [pa.field("", expression.type) for expression in expressions]
        return self.split(rows, values, self.output_with(rows.schema, fields), failed)

    def split(
        self,
        rows: pa.RecordBatch,
        values: Sequence[pa.Array],
        schema: pa.Schema,
        failed: Mapping[int, tuple[int, str]],
    ) -> Split:
        """The rows that leave, and the records of those that failed: each with its expression's number and why."""
        if not failed:
            return Split.all_good(self.rows_with(rows, values, schema))
        refused = tuple(self._refusals(rows, failed))
        kept = np.ones(rows.num_rows, np.bool_)
        kept[list(failed)] = False
        mask = pa.array(kept)
        return Split(self.rows_with(rows.filter(mask), [v.filter(mask) for v in values], schema), refused=refused)

    def _refusals(self, rows: pa.RecordBatch, failed: Mapping[int, tuple[int, str]]) -> Iterator[Refusal]:
        """The records of rows that failed. Raises where the run has to stop."""
        expressions, places = self.expressions, sorted(failed)
        for row, record in zip(places, records_of(rows, places), strict=True):
            number, why = failed[row]
            if self.on_error == "fail" or record is None:
                raise expression_failed(expressions[number].text, why, rows, row)
            yield Refusal(record, FAILED, f"{expressions[number].label}: {why}")

    def _checked(self, schema: pa.Schema) -> list[ArrowExpression | NoArrowForm]:
        found = self._compiled.over(schema)
        for number, compiled in enumerate(found):
            if isinstance(compiled, ArrowExpression):
                self.check_type(number, compiled.type)
        return found


class FromSpark(Step):
    """The second half of an `ExpressionStep` that only Spark can evaluate: takes the values that Spark computed.

    Each row has a struct column for each expression, with the value in it, and NULL where Spark failed.
    """

    def __init__(self, step: ExpressionStep) -> None:
        self.step = step

    def __repr__(self) -> str:
        return repr(self.step)

    @staticmethod
    def column(number: int) -> str:
        """The struct column of an expression."""
        return f"{_TRIED}{number}"

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns that leave the step."""
        entered, tried = _apart(schema)
        return self.step.output_with(entered, [schema.field(name).type.field(0) for name in tried])

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Take the values; rows that lack one are refused."""
        entered, tried = _apart(rows.schema)
        structs = [rows.column(name) for name in tried]
        failed: dict[int, tuple[int, str]] = {}
        for number, struct in enumerate(structs):
            for row in pc.indices_nonzero(struct.is_null()).to_pylist() if struct.null_count else ():
                failed.setdefault(row, (number, "Spark cannot compute it"))
        values = [struct.field(0) for struct in structs]
        return self.step.split(rows.select(entered.names), values, self.output(rows.schema), failed)


def _apart(schema: pa.Schema) -> tuple[pa.Schema, list[str]]:
    """The columns that entered the step, and those that Spark computed."""
    tried = [name for name in schema.names if name.startswith(_TRIED)]
    return pa.schema([field for field in schema if field.name not in tried]), tried

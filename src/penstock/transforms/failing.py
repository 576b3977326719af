"""Rows for which a step cannot compute its values: the run stops at the first, or exactly these rows are refused.

A row fails where Spark would: a text that is no number, a division by zero, a value that does not fit. In both lanes
a step that quarantines gives the same rows and refuses the same records.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import Transform
from penstock.errors import PenstockError, TerminalError
from penstock.model import COMPUTED, Refusal, Split
from penstock.transforms.columns import records_of
from penstock.transforms.expressions import ArrowExpression
from penstock.transforms.expressions.expression import expression_failed

OnError = Literal["fail", "quarantine"]

FAILED = "EXPRESSION_FAILED"
"""The code of a row that goes to the quarantine, and of the error where the run stops."""

_TRIED = f"{COMPUTED}tried_"


@dataclass(frozen=True, slots=True)
class Tried:
    """An expression of a step."""

    label: str
    """What messages call it."""
    text: str
    condition: bool = False
    """Whether it is one of a filter, which drops a row as soon as a part of it is NULL."""


@runtime_checkable
class ComputingStep(Transform, Protocol):
    """A step that evaluates expressions, which may fail on a row."""

    on_error: OnError

    @property
    def tried(self) -> Sequence[Tried]:
        """Its expressions, in the order of the file."""
        ...

    def may_fail(self, schema: pa.Schema) -> bool:
        """Whether some row may fail, where all of them have an Arrow form."""
        ...

    def given(self, schema: pa.Schema, values: Sequence[pa.Field]) -> pa.Schema:
        """The columns that leave, given the fields of the values."""
        ...

    def finished(self, rows: pa.RecordBatch, values: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
        """The rows that leave, given the values: those of `given`."""
        ...


def apply_computing(step: ComputingStep, expressions: Sequence[ArrowExpression], rows: pa.RecordBatch) -> Split:
    """Evaluate the expressions over Arrow; rows that fail stop the run, or are refused."""
    values: list[pa.Array] = []
    failed: dict[int, tuple[int, str]] = {}
    for number, expression in enumerate(expressions):
        found, fails = expression.attempt(rows)
        values.append(found)
        for row, error_class in fails.items():
            failed.setdefault(row, (number, error_class))
    fields = [pa.field("", expression.type) for expression in expressions]
    return _split(step, rows, values, step.given(rows.schema, fields), failed)


class FromSpark:
    """The second half of a step whose expressions only Spark can evaluate: it takes what Spark computed.

    Beside each row there is a struct for each expression, with the value in it, and NULL where Spark failed.
    """

    def __init__(self, step: ComputingStep) -> None:
        self.step = step

    def __repr__(self) -> str:
        return repr(self.step)

    @staticmethod
    def column(number: int) -> str:
        """The column of the struct for an expression."""
        return f"{_TRIED}{number}"

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """None: this is a step over Arrow in both lanes."""
        return None

    def select(self, columns: Sequence[str]) -> str | None:
        """None: this is a step over Arrow in both lanes."""
        return None

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns that leave the step."""
        entered, tried = _apart(schema)
        return self.step.given(entered, [schema.field(name).type.field(0) for name in tried])

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Take the values; rows without some are refused."""
        entered, tried = _apart(rows.schema)
        structs = [rows.column(name) for name in tried]
        failed: dict[int, tuple[int, str]] = {}
        for number, struct in enumerate(structs):
            for row in pc.indices_nonzero(struct.is_null()).to_pylist() if struct.null_count else ():
                failed.setdefault(row, (number, "Spark cannot compute it"))
        values = [struct.field(0) for struct in structs]
        return _split(self.step, rows.select(entered.names), values, self.output(rows.schema), failed)


def _apart(schema: pa.Schema) -> tuple[pa.Schema, list[str]]:
    """The columns that entered the step, and those that Spark computed."""
    tried = [name for name in schema.names if name.startswith(_TRIED)]
    return pa.schema([field for field in schema if field.name not in tried]), tried


def _split(
    step: ComputingStep,
    rows: pa.RecordBatch,
    values: Sequence[pa.Array],
    schema: pa.Schema,
    failed: Mapping[int, tuple[int, str]],
) -> Split:
    if not failed:
        return Split.all_good(step.finished(rows, values, schema))
    refused = tuple(_refusals(step, rows, failed))
    kept = np.ones(rows.num_rows, np.bool_)
    kept[list(failed)] = False
    mask = pa.array(kept)
    return Split(step.finished(rows.filter(mask), [v.filter(mask) for v in values], schema), refused=refused)


def _refusals(step: ComputingStep, rows: pa.RecordBatch, failed: Mapping[int, tuple[int, str]]) -> Iterator[Refusal]:
    """The records of rows that fail. Raises where the run has to stop."""
    tried, places = step.tried, sorted(failed)
    for row, record in zip(places, records_of(rows, places), strict=True):
        number, why = failed[row]
        if step.on_error == "fail" or record is None:
            raise expression_failed(tried[number].text, why, rows, row)
        yield Refusal(record, FAILED, f"{tried[number].label}: {why}")


# What the user's own code raised, as people look for it: the message, and the last line of theirs it came through.

_MOST = 200


def said(error: BaseException) -> str:
    """The type and the first line of the message."""
    lines = str(error).splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def place_of(error: BaseException, folder: str) -> str:
    """`rules.py:12`: the innermost line inside the folder, or the innermost of all."""
    if isinstance(error, SyntaxError) and error.filename in (None, "<unknown>"):
        return f"line {error.lineno}"
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((Path(error.filename), error.lineno))
    root = Path(folder).resolve()
    for file, line in reversed(frames):
        if file.is_relative_to(root):
            return f"{file.relative_to(root)}:{line}"
    return f"{frames[-1][0].name}:{frames[-1][1]}" if frames else "no line of its own"


def step_failed(step: str, folder: str, error: BaseException) -> TerminalError:
    """The error for a step that raised."""
    return TerminalError(
        "STEP_FAILED",
        f"running {step}: it raised",
        context={"raised": said(error), "at": place_of(error, folder)},
    )


@contextmanager
def told(step: str, folder: str) -> Iterator[None]:
    """What the user's code raises in here as an error of Penstock's."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise step_failed(step, folder, error) from error

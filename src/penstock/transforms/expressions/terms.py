"""A typed piece of an expression: what it evaluates to, how Arrow computes it, and where Spark would fail.

Every term gives exactly what Spark gives, or it is not made: `NoFormError` is raised instead, with the reason. A term
is computed for all rows of a batch at once, also for those for which Spark would never evaluate it: in a branch of CASE
that is not taken, after an operand that is NULL. Such rows are not *live*, and a failure in them does not count. Types
are as Spark's ANSI mode sees them, those of constants too: `1` is INT, `3000000000` BIGINT, `1.5` DECIMAL(2,1), `1e3`
DOUBLE.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.config.arrow_types import SQL_NAMES

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")
Datum = Any
"""An Arrow array or, where no column is involved, an Arrow scalar."""

Outcome = tuple[Datum, Mapping[str, Datum]]
"""Values, and by Spark's error class the rows that fail. What the values are in rows that fail does not matter."""

_PLAIN = {pa.null(): "VOID", **SQL_NAMES}


class NoFormError(Exception):
    """This piece has no exact Arrow form; the message says why."""


class RowError(Exception):
    """Spark would fail on a row."""

    def __init__(self, error_class: str, row: int) -> None:
        super().__init__(error_class, row)
        self.error_class = error_class
        self.row = row


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch, and which of its rows Spark would evaluate a term for; all of them where `live` is None."""

    batch: pa.RecordBatch
    live: pa.Array | None = None
    failed: dict[int, str] | None = None
    """Takes the error class of each row that fails, the first one it meets; without it such a row raises."""

    def only(self, mask: Datum) -> Rows:
        """The rows that are live and true in `mask`."""
        if isinstance(mask, pa.Scalar):
            mask = pa.repeat(mask, self.batch.num_rows)
        mask = pc.fill_null(mask, False)
        return replace(self, live=mask if self.live is None else pc.and_(self.live, mask))

    def fail(self, failures: Mapping[str, Datum]) -> None:
        """Record the live rows that fail, or raise `RowError` for the first."""
        for error_class, mask in failures.items():
            failed = self.only(mask).live
            if not pc.any(failed, min_count=0).as_py():
                continue
            if self.failed is None:
                raise RowError(error_class, pc.index(failed, True).as_py())
            for row in pc.indices_nonzero(failed).to_pylist():
                self.failed.setdefault(row, error_class)


@dataclass(frozen=True, slots=True)
class Term:
    """A typed piece of an expression."""

    type: pa.DataType
    run: Callable[[Rows], Datum]
    value: pa.Scalar | None = None
    """Set where it is a constant."""
    fails: bool = False
    """Whether it may fail on a row."""
    written: bool = False
    """Whether it is a number literal: next to a DECIMAL it has only the digits it needs."""

    @property
    def is_null(self) -> bool:
        """Whether this is a NULL constant."""
        return self.value is not None and not self.value.is_valid


def constant(scalar: pa.Scalar) -> Term:
    """A term that has the same value in every row."""
    return Term(scalar.type, lambda rows: scalar, scalar)


def literal(value: object, kind: pa.DataType) -> Term:
    """A constant of a Python value, None for NULL."""
    return constant(pa.scalar(value, kind))


def call(kind: pa.DataType, function: Callable[..., Datum], *terms: Term, strict: bool = True) -> Term:
    """A term that applies an Arrow function to others. Constants are folded.

    `strict` is how Spark evaluates most functions: an operand is NULL, so the operands after it are not evaluated.
    """
    values = [term.value for term in terms if term.value is not None]
    if len(values) == len(terms):
        return constant(function(*(pa.repeat(value, 1) for value in values))[0].cast(kind))
    fails = any(term.fails for term in terms)
    return Term(kind, lambda rows: function(*_operands(rows, terms, strict)[1]), fails=fails)


def attempt(kind: pa.DataType, function: Callable[..., Outcome], *terms: Term, null_on_error: bool = False) -> Term:
    """A term of a function that may fail on a row; with `null_on_error` it is NULL there, and operands still fail."""
    values = [term.value for term in terms if term.value is not None]
    if len(values) == len(terms):
        if any(not value.is_valid for value in values):
            return literal(None, kind)
        [value], failures = function(*(pa.repeat(value, 1) for value in values))
        if any(pc.any(mask).as_py() for mask in failures.values()):
            if null_on_error:
                return literal(None, kind)
            raise NoFormError(f"it fails with {next(iter(failures))} for every row")
        return constant(value)

    def run(rows: Rows) -> Datum:
        rows, data = _operands(rows, terms, strict=True)
        result, failures = function(*data)
        if null_on_error:
            for mask in failures.values():
                result = pc.if_else(pc.fill_null(mask, False), pa.scalar(None, kind), result)
        else:
            rows.fail(failures)
        return result

    return Term(kind, run, fails=not null_on_error or any(term.fails for term in terms))


def sql_name(kind: pa.DataType) -> str:
    """What Spark SQL calls an Arrow type."""
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _PLAIN.get(kind) or str(kind).upper()


def is_plain(kind: pa.DataType) -> bool:
    """Whether values of this type can be compared and converted here: not nested, and a type of Spark's."""
    return kind in _PLAIN or pa.types.is_decimal128(kind)


def _operands(rows: Rows, terms: tuple[Term, ...], strict: bool) -> tuple[Rows, list[Datum]]:
    data = []
    for index, term in enumerate(terms):
        data.append(term.run(rows))
        if strict and any(later.fails for later in terms[index + 1 :]):
            rows = rows.only(pc.is_valid(data[-1]))
    return rows, data


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
MOMENTS = (pa.date32(), TIMESTAMP, TIMESTAMP_NTZ)
MAX_DIGITS = 38


def common_type(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """The type that Spark converts all of these to, in a comparison or as branches of one result."""
    widest = kinds[0]
    for kind in kinds[1:]:
        widest = _wider(widest, kind)
    if not is_plain(widest):
        raise NoFormError(f"values of type {sql_name(widest)} are left to Spark")
    return widest


def value_type(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """The common type of values that are not all NULL constants."""
    kind = common_type(kinds)
    if kind == pa.null():
        raise NoFormError("NULL has no type of its own here")
    return kind


def digits(kind: pa.DataType) -> tuple[int, int]:
    """Digits before and after the point."""
    if kind in INTEGER_DIGITS:
        return INTEGER_DIGITS[kind], 0
    return kind.precision - kind.scale, kind.scale


def is_number(kind: pa.DataType) -> bool:
    """Whether it is a type of numbers."""
    return kind in INTEGERS or pa.types.is_floating(kind) or pa.types.is_decimal128(kind)


def _wider(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if left == right or right == pa.null():
        return left
    if left == pa.null():
        return right
    if left in INTEGERS and right in INTEGERS:
        return max(left, right, key=INTEGERS.index)
    if is_number(left) and is_number(right):
        if pa.types.is_floating(left) or pa.types.is_floating(right):
            return pa.float64()
        return _wider_decimal(left, right)
    if {left, right} <= set(MOMENTS):
        return TIMESTAMP if TIMESTAMP in (left, right) else TIMESTAMP_NTZ
    raise NoFormError(f"{sql_name(left)} and {sql_name(right)} meet only by a conversion that may fail")


def _wider_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    (left_whole, left_scale), (right_whole, right_scale) = digits(left), digits(right)
    scale = max(left_scale, right_scale)
    precision = max(left_whole, right_whole) + scale
    if precision > MAX_DIGITS:
        raise NoFormError(f"{sql_name(left)} and {sql_name(right)} have no common type of {MAX_DIGITS} digits")
    return pa.decimal128(precision, scale)


def require_type(term: Term, what: str, *kinds: pa.DataType) -> Term:
    """`term`, where it has one of the types."""
    if term.type not in kinds:
        raise NoFormError(f"{what} of another type than {' or '.join(map(sql_name, kinds))} is left to Spark")
    return term


def constant_text(term: Term, name: str) -> str:
    """The value of an operand that has to be a constant string."""
    value = None if term.value is None else term.value.as_py()
    if term.type != pa.string() or not isinstance(value, str):
        raise NoFormError(f"{name} with something that is not a constant is left to Spark")
    return value


def constant_int(term: Term, name: str) -> int:
    """The value of an operand that has to be a constant INT."""
    value = None if term.value is None else term.value.as_py()
    if term.type != pa.int32() or not isinstance(value, int):
        raise NoFormError(f"{name} by a number that is not an INT constant is left to Spark")
    return value


Function = Callable[..., Term]


class Functions(dict[str, Function]):
    """Spark's functions that have an Arrow form, by name: each takes its arguments as terms, and gives a term."""

    def named(self, *names: str) -> Callable[[Function], Function]:
        """Registers a function. Its positional parameters are the arguments that have an Arrow form."""

        def register(function: Function) -> Function:
            self.update(dict.fromkeys(names, function))
            return function

        return register

    def call(self, name: str, arguments: Sequence[Term]) -> Term:
        """The term of a function call."""
        function = self.get(name.lower())
        if function is None or not _takes(function, len(arguments)):
            raise NoFormError(f"{name.lower()} has no Arrow form")
        return function(*arguments)


def _takes(function: Function, count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True

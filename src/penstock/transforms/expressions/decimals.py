"""DECIMAL arithmetic: the digits of the result by Spark's rules, values rounded half up, and where they do not fit.

Everything is computed exactly with up to 76 digits first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.casts import WIDE_DIGITS, fit
from penstock.transforms.expressions.conversion import convert, digits
from penstock.transforms.expressions.terms import Datum, NoFormError, Outcome, Term, attempt, call, sql_name

MAX_DIGITS = 38
_LONG_DIGITS = 18
_LEAST_SCALE = 6
_FUNCTIONS: Mapping[str, Callable[..., Datum]] = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}


def applies(left: Term, right: Term) -> bool:
    """Whether Spark computes with decimals: one is a DECIMAL, and none a floating-point number."""
    kinds = (left.type, right.type)
    return any(map(pa.types.is_decimal, kinds)) and not any(map(pa.types.is_floating, kinds))


def combine(operator: str, left: Term, right: Term, *, null_on_error: bool = False) -> Term:
    """`left operator right` for `+ - *`."""
    left, right = as_decimal(left), as_decimal(right)
    (whole, scale), (other_whole, other_scale) = digits(left.type), digits(right.type)
    if operator == "*":
        kind = _bounded(whole + scale + other_whole + other_scale + 1, scale + other_scale)
        needed = left.type.precision + right.type.precision + 1
    else:
        most = max(scale, other_scale)
        kind = _bounded(max(whole, other_whole) + most + 1, most)
        needed = max(whole, other_whole) + most + 1
    _check_room(needed)
    function = _FUNCTIONS[operator]
    return attempt(kind, lambda a, b: fit(function(_wide(a), _wide(b)), kind), left, right, null_on_error=null_on_error)


def divide(left: Term, right: Term, *, null_on_error: bool = False) -> Term:
    """`left / right`. As Spark does, the divisor is looked at first."""
    left, right = as_decimal(left), as_decimal(right)
    (whole, scale), (_, other_scale) = digits(left.type), digits(right.type)
    wanted = max(_LEAST_SCALE, scale + right.type.precision + 1)
    kind = _bounded(whole + other_scale + wanted, wanted)
    # Arrow cuts the quotient off after this many digits: enough to round the last one of the result.
    arrow_scale = max(4, scale + right.type.precision - other_scale + 1)
    more = max(kind.scale + 1 - arrow_scale, 0)
    _check_room(whole + scale + more + 2 * right.type.precision + other_scale + 6)
    dividend = pa.decimal256(whole + scale + more, scale + more)

    def run(b: Datum, a: Datum) -> Outcome:
        zero = pc.equal(b, pa.scalar(Decimal(0), b.type))
        divisor = pc.if_else(pc.fill_null(zero, False), _one(b.type), b)
        result, failures = fit(pc.divide(pc.cast(a, dividend), _wide(divisor)), kind)
        return result, {"DIVIDE_BY_ZERO": pc.and_(zero, pc.is_valid(a)), **failures}

    return attempt(kind, run, right, left, null_on_error=null_on_error)


def as_integers(left: Term, right: Term) -> tuple[Term, Term, int]:
    """Both as BIGINT counts of the smallest unit of either, and the digits of that unit after the point."""
    left, right = as_decimal(left), as_decimal(right)
    (whole, scale), (other_whole, other_scale) = digits(left.type), digits(right.type)
    scale = max(scale, other_scale)
    if max(whole, other_whole) + scale > _LONG_DIGITS:
        raise NoFormError(f"whole division of {sql_name(left.type)} by {sql_name(right.type)} is left to Spark")
    return _units(left, scale), _units(right, scale), scale


def as_decimal(term: Term) -> Term:
    """An operand. A number as written has the digits it needs, another integer those of its type."""
    if pa.types.is_decimal(term.type):
        return term
    if term.type == pa.null():
        raise NoFormError("NULL beside a DECIMAL is left to Spark")
    if term.written and term.value is not None:
        return convert(term, pa.decimal128(len(str(abs(term.value.as_py()))), 0))
    if term.value is not None:
        raise NoFormError("an integer constant with a type of its own beside a DECIMAL is left to Spark")
    whole, _ = digits(term.type)
    return convert(term, pa.decimal128(whole, 0))


def _bounded(precision: int, scale: int) -> pa.DataType:
    """With more than 38 digits, those after the point go first, down to six."""
    if precision <= MAX_DIGITS:
        return pa.decimal128(precision, scale)
    return pa.decimal128(MAX_DIGITS, max(MAX_DIGITS - (precision - scale), min(scale, _LEAST_SCALE)))


def _check_room(needed: int) -> None:
    if needed > WIDE_DIGITS:
        raise NoFormError(f"it needs {needed} digits on the way, and Arrow has {WIDE_DIGITS}")


def _wide(datum: Datum) -> Datum:
    return pc.cast(datum, pa.decimal256(datum.type.precision, datum.type.scale))


def _one(kind: pa.DataType) -> pa.Scalar:
    """Some value that is not zero."""
    return pa.scalar(Decimal(1).scaleb(-kind.scale), kind)


def _units(term: Term, scale: int) -> Term:
    kind = pa.decimal128(MAX_DIGITS, scale)
    factor = pa.scalar(Decimal(10) ** scale, pa.decimal256(scale + 1, 0))
    return call(
        pa.int64(),
        lambda datum: pc.cast(
            pc.multiply(pc.cast(pc.cast(datum, kind), pa.decimal256(MAX_DIGITS, scale)), factor), pa.int64()
        ),
        term,
    )

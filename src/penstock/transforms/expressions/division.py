"""`/`, `div`, `%` and their kin. Spark looks at the divisor first, and nothing else matters where it is NULL."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions import decimals
from penstock.transforms.expressions.conversion import common_type, convert, is_number
from penstock.transforms.expressions.terms import Datum, NoFormError, Outcome, Term, attempt, call, sql_name

_ZERO = "DIVIDE_BY_ZERO"
_LONG = pa.int64()


def quotient(left: Term, right: Term, *, null_on_error: bool = False) -> Term:
    """`left / right`: a DOUBLE, or a DECIMAL where one is and none is a floating-point number."""
    _check_numbers(left, right)
    if decimals.applies(left, right):
        return decimals.divide(left, right, null_on_error=null_on_error)
    common_type([left.type, right.type])
    double = pa.float64()
    return attempt(double, _floats, convert(right, double), convert(left, double), null_on_error=null_on_error)


def whole_quotient(left: Term, right: Term) -> Term:
    """`left div right`: a BIGINT."""
    _check_numbers(left, right)
    if decimals.applies(left, right):
        left, right, _ = decimals.as_integers(left, right)
    elif pa.types.is_floating(common_type([left.type, right.type])):
        raise NoFormError("div of floating-point numbers is left to Spark")
    return attempt(_LONG, _whole, convert(right, _LONG), convert(left, _LONG))


def remainder(left: Term, right: Term, *, null_on_error: bool = False) -> Term:
    """`left % right`, with the sign of `left`."""
    _check_numbers(left, right)
    if decimals.applies(left, right):
        return _decimal_remainder(left, right, null_on_error)
    kind = common_type([left.type, right.type])
    if kind == pa.null():
        raise NoFormError("NULL has no type of its own here")
    function = _remainder if pa.types.is_integer(kind) else _float_remainder
    return attempt(kind, function, convert(right, kind), convert(left, kind), null_on_error=null_on_error)


def _decimal_remainder(left: Term, right: Term, null_on_error: bool) -> Term:
    left, right = decimals.as_decimal(left), decimals.as_decimal(right)
    a, b, scale = decimals.as_integers(left, right)
    whole = min(left.type.precision - left.type.scale, right.type.precision - right.type.scale)
    kind = pa.decimal128(whole + scale, scale)
    unit = pa.scalar(Decimal(1).scaleb(-scale), pa.decimal128(max(scale, 1), scale))

    def in_units(datum: Datum) -> Datum:
        return pc.cast(pc.multiply(pc.cast(datum, pa.decimal128(19, 0)), unit), kind, safe=False)

    units = attempt(_LONG, _remainder, b, a, null_on_error=null_on_error)
    return call(kind, in_units, units)


def _floats(right: Datum, left: Datum) -> Outcome:
    zero = pc.equal(right, pa.scalar(0.0))
    return pc.divide(left, right), {_ZERO: pc.and_(zero, pc.is_valid(left))}


def _whole(right: Datum, left: Datum) -> Outcome:
    zero = pc.and_(pc.equal(right, pa.scalar(0, _LONG)), pc.is_valid(left))
    overflow = pc.and_(pc.equal(right, pa.scalar(-1, _LONG)), pc.equal(left, pa.scalar(-(2**63), _LONG)))
    # Where it fails the value does not matter, and Arrow must not see a divisor that it cannot take.
    divisor = pc.if_else(pc.fill_null(pc.or_kleene(zero, overflow), False), pa.scalar(1, _LONG), right)
    divisor = pc.if_else(pc.fill_null(pc.equal(divisor, pa.scalar(0, _LONG)), False), pa.scalar(1, _LONG), divisor)
    return pc.divide(left, divisor), {_ZERO: zero, "ARITHMETIC_OVERFLOW": overflow}


def _remainder(right: Datum, left: Datum) -> Outcome:
    zero = pc.equal(right, pa.scalar(0, right.type))
    # By -1 and by 1 the remainder is 0; Arrow fails to divide the least number by -1.
    small = pc.fill_null(pc.or_(zero, pc.equal(right, pa.scalar(-1, right.type))), False)
    divisor = pc.if_else(small, pa.scalar(1, right.type), right)
    rest = pc.subtract(left, pc.multiply(pc.divide(left, divisor), divisor))
    return rest, {"REMAINDER_BY_ZERO": pc.and_(zero, pc.is_valid(left))}


def _float_remainder(right: Datum, left: Datum) -> Outcome:
    zero = pc.equal(right, pa.scalar(0.0, right.type))
    valid = pc.and_(pc.is_valid(left), pc.is_valid(right))
    with np.errstate(invalid="ignore"):
        rest = np.fmod(_numpy(left), _numpy(right))
    values = pa.array(rest, right.type)
    return pc.if_else(valid, values, pa.scalar(None, right.type)), {"REMAINDER_BY_ZERO": pc.and_(zero, valid)}


def _numpy(datum: Datum) -> Any:
    if isinstance(datum, pa.Scalar):
        return datum.type.to_pandas_dtype()(np.nan if not datum.is_valid else datum.as_py())
    return datum.to_numpy(zero_copy_only=False)


def _check_numbers(*terms: Term) -> None:
    for term in terms:
        if not is_number(term.type) and term.type != pa.null():
            raise NoFormError(f"division of a {sql_name(term.type)} is left to Spark")

"""Arithmetic: `+ - *`, the negative and the absolute value, `/`, `div`, `%` and their kin, `round`, `floor` and `ceil`.

Each fails where Spark's fails: where the result does not fit its type, or the divisor is zero. Arrow's checked
functions tell only that some row overflows; they are tried first, and where they raise, the rows are found by computing
again with enough digits. Spark looks at the divisor first, and nothing else matters where it is NULL. Halves go away
from zero, of a DOUBLE by its shortest decimal spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions import decimals
from penstock.transforms.expressions.casts import fit
from penstock.transforms.expressions.conversion import common_type, convert, digits, is_number
from penstock.transforms.expressions.terms import MAX_DIGITS, Datum, NoFormError, Outcome, Term, attempt, call, sql_name

_SIGNED_DIGITS = 34
_OVERFLOW = "ARITHMETIC_OVERFLOW"
_PLAIN: Mapping[str, Callable[..., Datum]] = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}
_CHECKED: Mapping[str, Callable[..., Datum]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
}


def combine(operator: str, left: Term, right: Term, *, null_on_error: bool = False) -> Term:
    """`left operator right` for `+ - *` of numbers."""
    _check_number(left, operator)
    _check_number(right, operator)
    if null_on_error and (left.fails or right.fails):
        raise NoFormError(f"a try of `{operator}` over something that may fail is left to Spark")
    if decimals.applies(left, right):
        return decimals.combine(operator, left, right, null_on_error=null_on_error)
    kind = common_type([left.type, right.type])
    if kind == pa.null():
        raise NoFormError("NULL has no type of its own here")
    left, right = convert(left, kind), convert(right, kind)
    if not pa.types.is_integer(kind):
        return call(kind, _PLAIN[operator], left, right)
    return attempt(kind, lambda a, b: _integers(operator, kind, a, b), left, right, null_on_error=null_on_error)


def chain(operator: str, terms: Sequence[Term]) -> Term:
    """A sum or product of several integers of one type, in the order of Spark's optimizer: constants last, as one."""
    others = [term for term in terms if term.value is None]
    constants = [term for term in terms if term.value is not None]
    if not constants or not others:
        return reduce(lambda a, b: combine(operator, a, b), terms)
    if any(term.is_null for term in constants):
        raise NoFormError("NULL among other operands is left to Spark")
    folded = reduce(lambda a, b: combine(operator, a, b), constants)
    return combine(operator, reduce(lambda a, b: combine(operator, a, b), others), folded)


def negative(term: Term) -> Term:
    """`-term`."""
    _check_number(term, "-")
    if not pa.types.is_integer(term.type):
        _check_digits(term)
        return call(term.type, pc.negate, term)
    return attempt(term.type, lambda datum: _checked(pc.negate_checked, pc.negate, datum, term.type), term)


def absolute(term: Term) -> Term:
    """`abs(term)`."""
    _check_number(term, "abs")
    if not pa.types.is_integer(term.type):
        _check_digits(term)
        return call(term.type, pc.abs, term)
    return attempt(term.type, lambda datum: _checked(pc.abs_checked, pc.abs, datum, term.type), term)


def _integers(operator: str, kind: pa.DataType, left: Datum, right: Datum) -> Outcome:
    try:
        return _CHECKED[operator](left, right), {}
    except pa.ArrowInvalid:
        wide = pa.decimal256(19, 0)
        exact = _PLAIN[operator](pc.cast(left, wide), pc.cast(right, wide))
        limit = 1 << (kind.bit_width - 1)
        low, high = (pa.scalar(bound, exact.type) for bound in (-limit, limit - 1))
        error = _OVERFLOW if kind.bit_width > 16 else f"BINARY_{_OVERFLOW}"
        outside = pc.or_(pc.less(exact, low), pc.greater(exact, high))
        return _PLAIN[operator](left, right), {error: outside}


def _checked(checked: Callable[..., Datum], plain: Callable[..., Datum], datum: Datum, kind: pa.DataType) -> Outcome:
    try:
        return checked(datum), {}
    except pa.ArrowInvalid:
        return plain(datum), {_OVERFLOW: pc.equal(datum, pa.scalar(-(1 << (kind.bit_width - 1)), kind))}


def _check_number(term: Term, operator: str) -> None:
    if not is_number(term.type) and term.type != pa.null():
        raise NoFormError(f"{operator} of a {sql_name(term.type)} is left to Spark")


def _check_digits(term: Term) -> None:
    # Spark changes the sign with Scala's 34 digits, and rounds what has more.
    if pa.types.is_decimal(term.type) and term.type.precision > _SIGNED_DIGITS:
        raise NoFormError(f"the sign of a {sql_name(term.type)} is left to Spark")


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


_MOST_PLACES = 15
_EXACT = 2.0**53


def rounded(term: Term, places: Term | None) -> Term:
    """`round(term, places)` to a constant number of places after the point."""
    count = 0 if places is None else _constant(places)
    if not 0 <= count <= _MOST_PLACES:
        raise NoFormError(f"round to {count} places is left to Spark")
    kind = term.type
    if pa.types.is_integer(kind):
        return term
    if pa.types.is_decimal(kind):
        whole, scale = digits(kind)
        target = _decimal(whole + 1 + min(scale, count), min(scale, count))
        return attempt(target, lambda datum: fit(datum, target), term)
    if kind == pa.float64():
        return call(kind, lambda datum: _round_doubles(datum, count), term)
    raise NoFormError(f"round of a {sql_name(kind)} is left to Spark")


def floor(term: Term) -> Term:
    """`floor(term)`: a BIGINT, or a DECIMAL of a DECIMAL."""
    return _to_whole(term, "down")


def ceiling(term: Term) -> Term:
    """`ceil(term)`."""
    return _to_whole(term, "up")


def _to_whole(term: Term, mode: str) -> Term:
    kind = term.type
    if pa.types.is_integer(kind):
        return convert(term, _LONG)
    if pa.types.is_floating(kind):
        double = convert(term, pa.float64())
        return call(_LONG, lambda datum: _saturate(pc.floor(datum) if mode == "down" else pc.ceil(datum)), double)
    if not pa.types.is_decimal(kind):
        raise NoFormError(f"rounding a {sql_name(kind)} {mode} is left to Spark")
    whole, scale = digits(kind)
    target = _decimal(whole + 1, 0)
    wide = pa.decimal256(whole + 1 + scale, scale)
    return call(
        target,
        lambda datum: pc.cast(pc.round(pc.cast(datum, wide), ndigits=0, round_mode=mode), target, safe=False),
        term,
    )


def _decimal(precision: int, scale: int) -> pa.DataType:
    if precision > MAX_DIGITS:
        raise NoFormError(f"rounding to {precision} digits is left to Spark")
    return pa.decimal128(precision, scale)


def _saturate(doubles: Datum) -> Datum:
    """As Java casts to long: the nearest one that there is, and 0 for NaN."""
    if isinstance(doubles, pa.Scalar):
        return _saturate(pa.array([doubles.as_py()], doubles.type))[0]
    values = pc.fill_null(doubles, 0.0).to_numpy(zero_copy_only=False)
    inside = np.abs(values) < 2.0**63
    longs = np.where(inside, values, 0.0).astype(np.int64)
    longs = np.where(values >= 2.0**63, np.int64(2**63 - 1), np.where(values <= -(2.0**63), np.int64(-(2**63)), longs))
    return pa.array(longs, _LONG, mask=pc.is_null(doubles).to_numpy(zero_copy_only=False))


def _round_doubles(doubles: Datum, places: int) -> Datum:
    if isinstance(doubles, pa.Scalar):
        return _round_doubles(pa.array([doubles.as_py()], doubles.type), places)[0]
    values = pc.fill_null(doubles, 0.0).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.abs(values) * 10.0**places
        rest = scaled - np.floor(scaled)
        # An integer below 2**53 divided by an exact power of ten is the double nearest to the decimal number.
        plain = (scaled < _EXACT / 4) & (np.abs(rest - 0.5) > 1e-3) & (scaled * 1e-12 < 1e-3)
        result = np.copysign(np.floor(scaled + 0.5) / 10.0**places, values)
    # BigDecimal has no negative zero.
    result = np.where(result == 0, 0.0, result)
    for index in np.flatnonzero(~plain):
        result[index] = _round_double(float(values[index]), places)
    return pa.array(result, pa.float64(), mask=pc.is_null(doubles).to_numpy(zero_copy_only=False))


def _round_double(value: float, places: int) -> float:
    if not np.isfinite(value):
        return value
    with localcontext() as context:
        context.prec = 400
        return float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)) + 0.0


def _constant(term: Term) -> int:
    value = None if term.value is None else term.value.as_py()
    if term.type != pa.int32() or not isinstance(value, int):
        raise NoFormError("rounding to a number of places that is not an INT constant is left to Spark")
    return value

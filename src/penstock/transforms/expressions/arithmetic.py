"""Arithmetic: `+ - *`, the negative and the absolute value, `/`, `div`, `%` and their kin, `round`, `floor` and `ceil`.

Each fails where Spark's fails: where the result does not fit its type, or the divisor is zero. Arrow's checked
functions report only that some row overflows; they are tried first, and where they raise, the rows are found by
computing again with enough digits. Spark evaluates the divisor first, and nothing else matters where it is NULL. Halves
go away from zero, of a DOUBLE by its shortest decimal spelling.

A DECIMAL result has the digits that Spark's rules give it. Its values are computed exactly with up to 76 digits, then
rounded half up; those that do not fit fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.casts import WIDE_DIGITS, convert, fit
from penstock.transforms.expressions.terms import (
    MAX_DIGITS,
    Datum,
    Functions,
    NoFormError,
    Outcome,
    Term,
    attempt,
    call,
    common_type,
    constant_int,
    digits,
    is_number,
    sql_name,
    value_type,
)

functions = Functions()

_LONG = pa.int64()
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
    _check_numbers(operator, left, right)
    if null_on_error and (left.fails or right.fails):
        raise NoFormError(f"a try of `{operator}` over something that may fail is left to Spark")
    if _is_decimal(left, right):
        return _combine_decimals(operator, left, right, null_on_error)
    kind = value_type([left.type, right.type])
    left, right = convert(left, kind), convert(right, kind)
    if not pa.types.is_integer(kind):
        return call(kind, _PLAIN[operator], left, right)
    return attempt(kind, lambda a, b: _integers(operator, kind, a, b), left, right, null_on_error=null_on_error)


for _name, _operator in (("try_add", "+"), ("try_subtract", "-"), ("try_multiply", "*")):
    functions.named(_name)(partial(combine, _operator, null_on_error=True))


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


@functions.named("negative")
def negative(term: Term) -> Term:
    """`-term`."""
    return _with_sign("-", pc.negate_checked, pc.negate, term)


@functions.named("abs")
def absolute(term: Term) -> Term:
    """`abs(term)`."""
    return _with_sign("abs", pc.abs_checked, pc.abs, term)


def _with_sign(name: str, checked: Callable[..., Datum], plain: Callable[..., Datum], term: Term) -> Term:
    _check_numbers(name, term)
    kind = term.type
    if pa.types.is_integer(kind):
        return attempt(kind, lambda datum: _checked(checked, plain, datum, kind), term)
    # Spark changes the sign with Scala's 34 digits, and rounds what has more.
    if pa.types.is_decimal(kind) and kind.precision > _SIGNED_DIGITS:
        raise NoFormError(f"the sign of a {sql_name(kind)} is left to Spark")
    return call(kind, plain, term)


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


def _check_numbers(operation: str, *terms: Term) -> None:
    for term in terms:
        if not is_number(term.type) and term.type != pa.null():
            raise NoFormError(f"{operation} of a {sql_name(term.type)} is left to Spark")


def quotient(left: Term, right: Term, *, null_on_error: bool = False) -> Term:
    """`left / right`: a DOUBLE, or a DECIMAL where one is and none is a floating-point number."""
    _check_numbers("division", left, right)
    if _is_decimal(left, right):
        return _divide_decimals(left, right, null_on_error)
    common_type([left.type, right.type])
    double = pa.float64()
    return attempt(double, _floats, convert(right, double), convert(left, double), null_on_error=null_on_error)


def whole_quotient(left: Term, right: Term) -> Term:
    """`left div right`: a BIGINT."""
    _check_numbers("division", left, right)
    if _is_decimal(left, right):
        left, right, _ = _as_integers(left, right)
    elif pa.types.is_floating(common_type([left.type, right.type])):
        raise NoFormError("div of floating-point numbers is left to Spark")
    return attempt(_LONG, _whole, convert(right, _LONG), convert(left, _LONG))


def remainder(left: Term, right: Term, *, null_on_error: bool = False) -> Term:
    """`left % right`, with the sign of `left`."""
    _check_numbers("division", left, right)
    if _is_decimal(left, right):
        return _decimal_remainder(left, right, null_on_error)
    kind = value_type([left.type, right.type])
    function = _remainder if pa.types.is_integer(kind) else _float_remainder
    return attempt(kind, function, convert(right, kind), convert(left, kind), null_on_error=null_on_error)


functions.named("mod")(remainder)
functions.named("try_mod")(partial(remainder, null_on_error=True))
functions.named("try_divide")(partial(quotient, null_on_error=True))


def _decimal_remainder(left: Term, right: Term, null_on_error: bool) -> Term:
    left, right = _as_decimal(left), _as_decimal(right)
    a, b, scale = _as_integers(left, right)
    whole = min(left.type.precision - left.type.scale, right.type.precision - right.type.scale)
    kind = pa.decimal128(whole + scale, scale)
    unit = pa.scalar(Decimal(1).scaleb(-scale), pa.decimal128(max(scale, 1), scale))

    def in_units(datum: Datum) -> Datum:
        return pc.cast(pc.multiply(pc.cast(datum, pa.decimal128(19, 0)), unit), kind, safe=False)

    units = attempt(_LONG, _remainder, b, a, null_on_error=null_on_error)
    return call(kind, in_units, units)


def _floats(right: Datum, left: Datum) -> Outcome:
    zero = pc.equal(right, pa.scalar(0.0))
    return pc.divide(left, right), {"DIVIDE_BY_ZERO": pc.and_(zero, pc.is_valid(left))}


def _whole(right: Datum, left: Datum) -> Outcome:
    zero = pc.and_(pc.equal(right, pa.scalar(0, _LONG)), pc.is_valid(left))
    overflow = pc.and_(pc.equal(right, pa.scalar(-1, _LONG)), pc.equal(left, pa.scalar(-(2**63), _LONG)))
    # Where it fails the value does not matter, and Arrow must not see a divisor that it cannot take.
    divisor = pc.if_else(pc.fill_null(pc.or_kleene(zero, overflow), False), pa.scalar(1, _LONG), right)
    divisor = pc.if_else(pc.fill_null(pc.equal(divisor, pa.scalar(0, _LONG)), False), pa.scalar(1, _LONG), divisor)
    return pc.divide(left, divisor), {"DIVIDE_BY_ZERO": zero, "ARITHMETIC_OVERFLOW": overflow}


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


_LONG_DIGITS = 18
_LEAST_SCALE = 6


def _is_decimal(left: Term, right: Term) -> bool:
    """Whether Spark computes with decimals: one is a DECIMAL, and none a floating-point number."""
    kinds = (left.type, right.type)
    return any(map(pa.types.is_decimal, kinds)) and not any(map(pa.types.is_floating, kinds))


def _combine_decimals(operator: str, left: Term, right: Term, null_on_error: bool) -> Term:
    left, right = _as_decimal(left), _as_decimal(right)
    (whole, scale), (other_whole, other_scale) = digits(left.type), digits(right.type)
    if operator == "*":
        kind = _bounded(whole + scale + other_whole + other_scale + 1, scale + other_scale)
        needed = left.type.precision + right.type.precision + 1
    else:
        most = max(scale, other_scale)
        kind = _bounded(max(whole, other_whole) + most + 1, most)
        needed = max(whole, other_whole) + most + 1
    _check_room(needed)
    function = _PLAIN[operator]
    return attempt(kind, lambda a, b: fit(function(_wide(a), _wide(b)), kind), left, right, null_on_error=null_on_error)


def _divide_decimals(left: Term, right: Term, null_on_error: bool) -> Term:
    left, right = _as_decimal(left), _as_decimal(right)
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


def _as_integers(left: Term, right: Term) -> tuple[Term, Term, int]:
    """Both as BIGINT counts of the smallest unit of either, and the digits of that unit after the point."""
    left, right = _as_decimal(left), _as_decimal(right)
    (whole, scale), (other_whole, other_scale) = digits(left.type), digits(right.type)
    scale = max(scale, other_scale)
    if max(whole, other_whole) + scale > _LONG_DIGITS:
        raise NoFormError(f"whole division of {sql_name(left.type)} by {sql_name(right.type)} is left to Spark")
    return _units(left, scale), _units(right, scale), scale


def _as_decimal(term: Term) -> Term:
    """An operand. A number as written has the digits it needs, another integer those of its type."""
    if pa.types.is_decimal(term.type):
        return term
    if term.type == pa.null():
        raise NoFormError("NULL next to a DECIMAL is left to Spark")
    if term.written and term.value is not None:
        return convert(term, pa.decimal128(len(str(abs(term.value.as_py()))), 0))
    if term.value is not None:
        raise NoFormError("an integer constant with a type of its own next to a DECIMAL is left to Spark")
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


_MOST_PLACES = 15
_EXACT = 2.0**53


@functions.named("round")
def rounded(term: Term, places: Term | None = None) -> Term:
    """`round(term, places)` to a constant number of places after the point."""
    count = 0 if places is None else constant_int(places, "round")
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


def to_whole(term: Term, mode: str) -> Term:
    """`floor`, whose mode is down, and `ceil`, up: a BIGINT, or a DECIMAL of a DECIMAL."""
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

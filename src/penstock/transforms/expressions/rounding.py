"""`round`, `floor` and `ceil`. Halves go away from zero, of a DOUBLE by its shortest decimal spelling."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, localcontext

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.conversion import convert, digits
from penstock.transforms.expressions.fitting import fit
from penstock.transforms.expressions.kinds import MAX_DIGITS
from penstock.transforms.expressions.terms import Datum, NoFormError, Term, attempt, call, sql_name

_LONG = pa.int64()
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
    return _whole(term, "down")


def ceiling(term: Term) -> Term:
    """`ceil(term)`."""
    return _whole(term, "up")


def _whole(term: Term, mode: str) -> Term:
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

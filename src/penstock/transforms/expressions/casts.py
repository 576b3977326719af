"""Casts between numbers, booleans and times: the values, and where they do not fit. The calendar that they go by.

Arrow's calendar holds years in 16 bits; Spark's does not. So dates are moved by whole cycles of 400 years, in
which both the calendar and the weekdays repeat, next to 1970, and years are moved back after.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.terms import TIMESTAMP, TIMESTAMP_NTZ, Datum, Outcome

OVERFLOW = "CAST_OVERFLOW"
_MICROSECONDS = 1_000_000
_LONG = pa.int64()


def integer_to_integer(datum: Datum, kind: pa.DataType) -> Outcome:
    """A wider integer to a narrower one."""
    low, high = (pa.scalar(bound, datum.type) for bound in _bounds(kind))
    outside = pc.or_(pc.less(datum, low), pc.greater(datum, high))
    return pc.cast(datum, kind, safe=False), {OVERFLOW: outside}


def float_to_integer(datum: Datum, kind: pa.DataType) -> Outcome:
    """Towards zero. As in Java 2**63 itself passes for a BIGINT, as the greatest one."""
    low, high = _bounds(kind)
    doubles = pc.cast(datum, pa.float64())
    inside = pc.and_(
        pc.less_equal(pc.floor(doubles), pa.scalar(float(high))),
        pc.greater_equal(pc.ceil(doubles), pa.scalar(float(low))),
    )
    if isinstance(doubles, pa.Scalar):
        doubles = pa.array([doubles.as_py()], pa.float64())
    plain = pc.fill_null(pc.if_else(inside, doubles, pa.scalar(0.0)), 0.0).to_numpy(zero_copy_only=False)
    longs = np.where(plain >= 2.0**63, np.int64(2**63 - 1), np.where(plain < 2.0**63, plain, 0.0).astype(np.int64))
    result = pa.array(longs, _LONG, mask=pc.is_null(doubles).to_numpy(zero_copy_only=False))
    return pc.cast(result, kind, safe=False), {OVERFLOW: pc.invert(inside)}


def decimal_to_integer(datum: Datum, kind: pa.DataType) -> Outcome:
    """Towards zero."""
    low, high = (pa.scalar(Decimal(bound), pa.decimal256(39, 0)) for bound in _bounds(kind))
    whole = pc.cast(pc.trunc(pc.cast(datum, pa.decimal256(39, datum.type.scale))), pa.decimal256(39, 0), safe=False)
    outside = pc.or_(pc.less(whole, low), pc.greater(whole, high))
    within = pc.if_else(outside, pa.scalar(None, whole.type), whole)
    return pc.cast(within, kind), {OVERFLOW: outside}


def number_to_decimal(datum: Datum, kind: pa.DataType) -> Outcome:
    """An integer or a decimal with other digits, rounded half up."""
    if pa.types.is_integer(datum.type):
        datum = pc.cast(datum, pa.decimal128(19, 0))
    return fit(datum, kind)


def is_not_zero(datum: Datum) -> Datum:
    """A number as BOOLEAN."""
    zero = Decimal(0) if pa.types.is_decimal(datum.type) else 0
    return pc.not_equal(datum, pa.scalar(zero, datum.type))


def seconds_to_timestamp(datum: Datum) -> Datum:
    """Seconds since 1970 as a time; those beyond the range of times become its ends."""
    seconds = pc.cast(datum, _LONG)
    most = (2**63 - 1) // _MICROSECONDS
    clamped = pc.min_element_wise(pc.max_element_wise(seconds, -most, skip_nulls=False), most, skip_nulls=False)
    micros = pc.multiply(clamped, _MICROSECONDS)
    micros = pc.if_else(pc.greater(seconds, most), pa.scalar(2**63 - 1, _LONG), micros)
    micros = pc.if_else(pc.less(seconds, -most), pa.scalar(-(2**63), _LONG), micros)
    return pc.cast(pc.cast(micros, TIMESTAMP_NTZ), TIMESTAMP)


def timestamp_to_seconds(datum: Datum) -> Datum:
    """Whole seconds since 1970, rounded down."""
    return floor_divide(pc.cast(datum, _LONG), _MICROSECONDS)


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    limit = 1 << (kind.bit_width - 1)
    return -limit, limit - 1


CYCLE_DAYS = 146_097
CYCLE_YEARS = 400
_OFFSET_CYCLES = 15_000
"""Enough cycles to make every 32-bit day number positive."""

_EPOCH = date(1970, 1, 1).toordinal()


def near_1970(dates: Datum) -> tuple[Datum, Datum]:
    """The dates moved to between 1970 and 2369, and by how many cycles."""
    days = pc.add(pc.cast(pc.cast(dates, pa.int32()), _LONG), pa.scalar(_OFFSET_CYCLES * CYCLE_DAYS, _LONG))
    cycles = pc.divide(days, pa.scalar(CYCLE_DAYS, _LONG))
    rest = pc.subtract(days, pc.multiply(cycles, pa.scalar(CYCLE_DAYS, _LONG)))
    near = pc.cast(pc.cast(rest, pa.int32()), pa.date32())
    return near, pc.subtract(cycles, pa.scalar(_OFFSET_CYCLES, _LONG))


def years(dates: Datum) -> Datum:
    """The year of each date, as BIGINT."""
    near, cycles = near_1970(dates)
    return pc.add(pc.year(near), pc.multiply(cycles, pa.scalar(CYCLE_YEARS, _LONG)))


def floor_divide(longs: Datum, divisor: int) -> Datum:
    """Rounded down, where Arrow rounds towards zero."""
    quotient = pc.divide(longs, divisor)
    rest = pc.subtract(longs, pc.multiply(quotient, divisor))
    return pc.subtract(quotient, pc.cast(pc.less(rest, 0), _LONG))


def days_of(year: int, month: int, day: int) -> int | None:
    """The day number of a date; None where the calendar, or 32 bits, do not have it."""
    cycles, rest = divmod(year - 2000, CYCLE_YEARS)
    try:
        number = date(2000 + rest, month, day).toordinal() - _EPOCH + cycles * CYCLE_DAYS
    except ValueError:
        return None
    return number if -(2**31) <= number < 2**31 else None


OUT_OF_RANGE = "NUMERIC_VALUE_OUT_OF_RANGE"
WIDE_DIGITS = 76


def fit(exact: Datum, kind: pa.DataType) -> Outcome:
    """Values of any precision, rounded half up to `kind`, and where they do not fit it."""
    whole, scale = exact.type.precision - exact.type.scale, exact.type.scale
    if scale > kind.scale:
        roomy = pa.decimal256(min(whole + scale + 1, WIDE_DIGITS), scale)
        exact = pc.round(pc.cast(exact, roomy), ndigits=kind.scale, round_mode="half_towards_infinity")
        whole += 1
    if whole <= kind.precision - kind.scale:
        return pc.cast(exact, kind, safe=False), {}
    bound = pa.scalar(Decimal(10) ** (kind.precision - kind.scale), pa.decimal256(WIDE_DIGITS - scale, 0))
    outside = pc.greater_equal(
        pc.abs(pc.cast(exact, pa.decimal256(WIDE_DIGITS, scale))), pc.cast(bound, pa.decimal256(WIDE_DIGITS, scale))
    )
    within = pc.if_else(pc.fill_null(outside, False), pa.scalar(None, exact.type), exact)
    return pc.cast(within, kind, safe=False), {OUT_OF_RANGE: outside}

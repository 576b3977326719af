"""Days and the proleptic Gregorian calendar, for every day number of 32 bits.

Arrow's calendar holds years in 16 bits; Spark's does not. So dates are moved by whole cycles of 400 years, in
which both the calendar and the weekdays repeat, next to 1970, and years are moved back after.
"""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.terms import Datum

CYCLE_DAYS = 146_097
CYCLE_YEARS = 400
_OFFSET_CYCLES = 15_000
"""Enough cycles to make every 32-bit day number positive."""

_LONG = pa.int64()
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

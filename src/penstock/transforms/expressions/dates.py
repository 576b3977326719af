"""The calendar of Spark's dates.

Arrow's calendar holds years in 16 bits; Spark's does not. So dates are moved by whole cycles of 400 years, in which
both the calendar and the weekdays repeat, next to 1970, and years are moved back after.
"""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.terms import Datum

DAY_MICROSECONDS = 86_400_000_000
_CYCLE_DAYS = 146_097
_CYCLE_YEARS = 400
_OFFSET_CYCLES = 15_000
"""Enough cycles to make every 32-bit day number positive."""

_EPOCH = date(1970, 1, 1).toordinal()


def near_1970(dates: Datum) -> tuple[Datum, Datum]:
    """The dates moved to between 1970 and 2369, and by how many cycles."""
    days = pc.add(pc.cast(pc.cast(dates, pa.int32()), pa.int64()), pa.scalar(_OFFSET_CYCLES * _CYCLE_DAYS, pa.int64()))
    cycles = pc.divide(days, pa.scalar(_CYCLE_DAYS, pa.int64()))
    rest = pc.subtract(days, pc.multiply(cycles, pa.scalar(_CYCLE_DAYS, pa.int64())))
    near = pc.cast(pc.cast(rest, pa.int32()), pa.date32())
    return near, pc.subtract(cycles, pa.scalar(_OFFSET_CYCLES, pa.int64()))


def years(dates: Datum) -> Datum:
    """The year of each date, as BIGINT."""
    near, cycles = near_1970(dates)
    return pc.add(pc.year(near), pc.multiply(cycles, pa.scalar(_CYCLE_YEARS, pa.int64())))


def floor_divide(longs: Datum, divisor: int) -> Datum:
    """Rounded down, where Arrow rounds towards zero."""
    quotient = pc.divide(longs, divisor)
    rest = pc.subtract(longs, pc.multiply(quotient, divisor))
    return pc.subtract(quotient, pc.cast(pc.less(rest, 0), pa.int64()))


def day_and_clock(times: Datum) -> tuple[Datum, Datum]:
    """The day of a time, and the microseconds since that day began."""
    micros = pc.cast(times, pa.int64())
    days = floor_divide(micros, DAY_MICROSECONDS)
    clock = pc.subtract(micros, pc.multiply(days, pa.scalar(DAY_MICROSECONDS, pa.int64())))
    return pc.cast(pc.cast(days, pa.int32()), pa.date32()), clock


def days_of(year: int, month: int, day: int) -> int | None:
    """The day number of a date; None where the calendar, or 32 bits, do not have it."""
    cycles, rest = divmod(year - 2000, _CYCLE_YEARS)
    try:
        number = date(2000 + rest, month, day).toordinal() - _EPOCH + cycles * _CYCLE_DAYS
    except ValueError:
        return None
    return number if -(2**31) <= number < 2**31 else None

"""Dates and times computed: days, months and intervals added, seconds since 1970."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.casts import floor_divide, near_1970, years
from penstock.transforms.expressions.conversion import convert
from penstock.transforms.expressions.terms import (
    INTEGERS,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Datum,
    NoFormError,
    Outcome,
    Term,
    attempt,
    call,
    literal,
)

_DATE, _INT, _LONG = pa.date32(), pa.int32(), pa.int64()
_DAY_MICROSECONDS = 86_400_000_000
_SPANS = {
    "WEEK": 7 * _DAY_MICROSECONDS,
    "DAY": _DAY_MICROSECONDS,
    "HOUR": 3_600_000_000,
    "MINUTE": 60_000_000,
    "SECOND": 1_000_000,
}
_MONTHS = {"YEAR": 12, "MONTH": 1}
_MOST_DAYS = 100_000_000


def add_days(moment: Term, count: Term, *, sign: int = 1) -> Term:
    """`date_add` and `date_sub`, which do not look whether a day number still fits."""
    if count.type not in (*INTEGERS[:3], pa.null()):
        raise NoFormError("a number of days that is not an INT is left to Spark")
    function = pc.add if sign > 0 else pc.subtract
    return call(
        _DATE,
        lambda days, more: pc.cast(function(pc.cast(days, _INT), pc.cast(more, _INT)), _DATE),
        to_date(moment),
        convert(count, _INT),
    )


def days_between(end: Term, start: Term) -> Term:
    """`datediff(end, start)`."""
    return call(_INT, lambda a, b: pc.subtract(pc.cast(a, _INT), pc.cast(b, _INT)), to_date(end), to_date(start))


def add_interval(moment: Term, amount: str, unit: str, *, sign: int = 1) -> Term:
    """`moment + INTERVAL amount unit`."""
    unit = unit.upper().removesuffix("S")
    if not re.fullmatch(r"-?\d{1,9}", amount) or unit not in {*_SPANS, *_MONTHS}:
        raise NoFormError(f"the interval {amount} {unit} is left to Spark")
    if moment.type not in (_DATE, TIMESTAMP):
        raise NoFormError("an interval added to another type than DATE or TIMESTAMP is left to Spark")
    number = sign * int(amount)
    if unit in _MONTHS:
        return _add_months(moment, number * _MONTHS[unit])
    if moment.type == _DATE and unit in ("WEEK", "DAY"):
        return add_days(moment, literal(number * (7 if unit == "WEEK" else 1), _INT))
    if abs(number) * _SPANS[unit] >= 2**63:
        raise NoFormError(f"the interval {amount} {unit} is left to Spark")
    span = number * _SPANS[unit]
    return attempt(TIMESTAMP, lambda times: _shift(times, span), convert(moment, TIMESTAMP))


def add_months(moment: Term, count: Term) -> Term:
    """`add_months(moment, count)` of a constant count."""
    if count.value is None or count.is_null or count.type != _INT:
        raise NoFormError("add_months of a number that is not an INT constant is left to Spark")
    return _add_months(to_date(moment), count.value.as_py())


def last_day(moment: Term) -> Term:
    """The last day of the month."""
    return attempt(_DATE, lambda days: _by_month(days, 0, last=True), to_date(moment))


def from_epoch(value: Term, per_second: int) -> Term:
    """`timestamp_seconds`, `timestamp_millis` and `timestamp_micros` of integers."""
    if value.type not in INTEGERS:
        raise NoFormError("a time made from another type than an integer is left to Spark")
    factor = 1_000_000 // per_second
    most = (2**63 - 1) // factor

    def run(datum: Datum) -> Outcome:
        outside = pc.or_(pc.greater(datum, most), pc.less(datum, -most))
        inside = pc.if_else(pc.fill_null(outside, False), pa.scalar(0, _LONG), datum)
        return _times(pc.multiply(inside, pa.scalar(factor, _LONG))), {"ARITHMETIC_OVERFLOW": outside}

    if factor == 1:
        return call(TIMESTAMP, lambda datum: _times(pc.cast(datum, _LONG)), value)
    if value.type != _LONG:
        return call(TIMESTAMP, lambda datum: run(pc.cast(datum, _LONG))[0], value)
    return attempt(TIMESTAMP, run, value)


def to_epoch(value: Term, per_second: int) -> Term:
    """`unix_seconds`, `unix_millis` and `unix_micros`, rounded down."""
    if value.type != TIMESTAMP:
        raise NoFormError("the seconds of another type than TIMESTAMP are left to Spark")
    divisor = 1_000_000 // per_second
    return call(_LONG, lambda times: floor_divide(pc.cast(times, _LONG), divisor), value)


def unix_date(value: Term) -> Term:
    """Days since 1970."""
    if value.type != _DATE:
        raise NoFormError("unix_date of another type than DATE is left to Spark")
    return call(_INT, lambda days: pc.cast(days, _INT), value)


def from_unix_date(value: Term) -> Term:
    """The date of days since 1970."""
    if value.type not in INTEGERS[:3]:
        raise NoFormError("a date made from another type than INT is left to Spark")
    return call(_DATE, lambda days: pc.cast(pc.cast(days, _INT), _DATE), value)


def _add_months(moment: Term, months: int) -> Term:
    if moment.type == _DATE:
        return attempt(_DATE, lambda days: _by_month(days, months), moment)

    def run(times: Datum) -> Outcome:
        micros = pc.cast(times, _LONG)
        days = floor_divide(micros, _DAY_MICROSECONDS)
        clock = pc.subtract(micros, pc.multiply(days, _DAY_MICROSECONDS))
        moved, _ = _by_month(pc.cast(pc.cast(days, _INT), _DATE), months)
        return _shift_days(pc.cast(moved, _INT), clock)

    return attempt(TIMESTAMP, run, moment)


def _by_month(dates: Datum, months: int, *, last: bool = False) -> Outcome:
    """The same day some months on, or the last one where that month is shorter."""
    numbers = pc.fill_null(pc.cast(dates, _INT), 0).to_numpy(zero_copy_only=False).astype("datetime64[D]")
    first = numbers.astype("datetime64[M]")
    target = first + np.timedelta64(months, "M")
    end = (target + np.timedelta64(1, "M")).astype("datetime64[D]") - np.timedelta64(1, "D")
    moved = end if last else np.minimum(target.astype("datetime64[D]") + (numbers - first.astype("datetime64[D]")), end)
    days = moved.astype(np.int64)
    outside = (days < -(2**31)) | (days >= 2**31)
    missing = pc.is_null(dates).to_numpy(zero_copy_only=False)
    result = pa.array(np.where(outside, 0, days).astype(np.int32), _INT, mask=missing)
    return pc.cast(result, _DATE), {"ARITHMETIC_OVERFLOW": pa.array(outside & ~missing)}


def _shift(times: Datum, span: int) -> Outcome:
    micros = pc.cast(times, _LONG)
    low, high = -(2**63) - min(span, 0), 2**63 - 1 - max(span, 0)
    outside = pc.or_(pc.less(micros, pa.scalar(low, _LONG)), pc.greater(micros, pa.scalar(high, _LONG)))
    return _times(pc.add(micros, pa.scalar(span, _LONG))), {"ARITHMETIC_OVERFLOW": outside}


def _shift_days(days: Datum, clock: Datum) -> Outcome:
    outside = pc.greater(pc.abs(days), _MOST_DAYS)
    inside = pc.if_else(pc.fill_null(outside, False), pa.scalar(0, _INT), days)
    micros = pc.add(pc.multiply(pc.cast(inside, _LONG), pa.scalar(_DAY_MICROSECONDS, _LONG)), clock)
    return _times(micros), {"ARITHMETIC_OVERFLOW": outside}


def _times(micros: Datum) -> Datum:
    return pc.cast(pc.cast(micros, TIMESTAMP_NTZ), TIMESTAMP)


# Parts of dates and times in UTC, and times cut off, over the whole range of Spark's types.

_CLOCK: Mapping[str, Callable[..., Datum]] = {"hour": pc.hour, "minute": pc.minute, "second": pc.second}
_CALENDAR: Mapping[str, Callable[..., Datum]] = {
    "month": pc.month,
    "quarter": pc.quarter,
    "day": pc.day,
    "dayofyear": pc.day_of_year,
    "dayofweek": partial(pc.day_of_week, count_from_zero=False, week_start=7),
    "weekday": pc.day_of_week,
    "weekofyear": pc.iso_week,
}
PARTS = ("year", *_CALENDAR, *_CLOCK)
_UNITS = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "year"),
    **dict.fromkeys(("MONTH", "MON", "MM"), "month"),
    **dict.fromkeys(("DAY", "DD"), "day"),
    **{name.upper(): name for name in ("quarter", "week", "hour", "minute", "second", "millisecond")},
}


def to_date(term: Term) -> Term:
    """The UTC day of a time."""
    if term.type not in (pa.date32(), TIMESTAMP, TIMESTAMP_NTZ):
        raise NoFormError("a date made from another type than TIMESTAMP is left to Spark")
    return convert(term, pa.date32())


def part(name: str, term: Term) -> Term:
    """A part of a date or time, as INT."""
    if name in _CLOCK:
        if term.type not in (TIMESTAMP, TIMESTAMP_NTZ):
            raise NoFormError(f"{name} of another type than TIMESTAMP is left to Spark")
        function = _CLOCK[name]
        return call(pa.int32(), lambda datum: _int(function(_naive(datum))), term)
    days = to_date(term)
    if name == "year":
        return call(pa.int32(), lambda datum: _int(years(datum)), days)
    return call(pa.int32(), lambda datum: _int(_CALENDAR[name](near_1970(datum)[0])), days)


def truncate(unit: str, term: Term) -> Term:
    """`date_trunc(unit, term)`."""
    if unit.upper() not in _UNITS:
        raise NoFormError(f"date_trunc by {unit} is left to Spark")
    if term.type not in (pa.date32(), TIMESTAMP):
        raise NoFormError("date_trunc of another type than DATE or TIMESTAMP is left to Spark")
    name = _UNITS[unit.upper()]
    function = _floor_months if name in ("year", "quarter", "month") else _floor_span
    return call(TIMESTAMP, lambda datum: function(datum, name), convert(term, TIMESTAMP))


def truncate_date(unit: str, term: Term) -> Term:
    """`trunc(term, unit)`: the first day of a week or something longer."""
    name = _UNITS[unit]
    return call(pa.date32(), lambda dates: _floor_dates(dates, name), term)


def _floor_months(times: Datum, unit: str) -> Datum:
    return pc.cast(_floor_dates(pc.cast(times, pa.date32()), unit), TIMESTAMP)


def _floor_dates(dates: Datum, unit: str) -> Datum:
    near, _ = near_1970(dates)
    past = pc.subtract(pc.cast(near, pa.int32()), pc.cast(pc.floor_temporal(near, unit=unit), pa.int32()))
    return pc.cast(pc.subtract(pc.cast(dates, pa.int32()), past), pa.date32())


def _floor_span(times: Datum, unit: str) -> Datum:
    return pc.cast(pc.floor_temporal(_naive(times), unit=unit), TIMESTAMP)


def _naive(times: Datum) -> Datum:
    """The same instants without a zone, so that no time zone database is looked up."""
    return pc.cast(times, TIMESTAMP_NTZ)


def _int(datum: Datum) -> Datum:
    return pc.cast(datum, pa.int32())

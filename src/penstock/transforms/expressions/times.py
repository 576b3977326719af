"""Dates and times, over the whole range of Spark's types: days, months and intervals added, their parts in UTC, times
cut off, seconds since 1970."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions import texts
from penstock.transforms.expressions.casts import convert
from penstock.transforms.expressions.dates import DAY_MICROSECONDS, day_and_clock, floor_divide, near_1970, years
from penstock.transforms.expressions.terms import (
    INTEGERS,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Datum,
    Functions,
    NoFormError,
    Outcome,
    Term,
    attempt,
    call,
    constant_int,
    constant_text,
    literal,
    require_type,
)

functions = Functions()

_DATE, _INT, _LONG = pa.date32(), pa.int32(), pa.int64()
_SPANS = {
    "WEEK": 7 * DAY_MICROSECONDS,
    "DAY": DAY_MICROSECONDS,
    "HOUR": 3_600_000_000,
    "MINUTE": 60_000_000,
    "SECOND": 1_000_000,
}
_MONTHS = {"YEAR": 12, "MONTH": 1}
_MOST_DAYS = 100_000_000


@functions.named("date_add", "dateadd")
def add_days(moment: Term, count: Term, *, sign: int = 1) -> Term:
    """Days added, or taken away. As in Spark, nothing checks that the day number still fits."""
    if count.type not in (*INTEGERS[:3], pa.null()):
        raise NoFormError("a number of days that is not an INT is left to Spark")
    function = pc.add if sign > 0 else pc.subtract
    return call(
        _DATE,
        lambda days, more: pc.cast(function(pc.cast(days, _INT), pc.cast(more, _INT)), _DATE),
        to_date(moment),
        convert(count, _INT),
    )


functions.named("date_sub")(partial(add_days, sign=-1))


@functions.named("datediff", "date_diff")
def _days_between(end: Term, start: Term) -> Term:
    return call(_INT, lambda a, b: pc.subtract(pc.cast(a, _INT), pc.cast(b, _INT)), to_date(end), to_date(start))


def add_interval(moment: Term, amount: str, unit: str, *, sign: int = 1) -> Term:
    """`moment + INTERVAL amount unit`."""
    unit = unit.upper().removesuffix("S")
    if not re.fullmatch(r"-?\d{1,9}", amount) or unit not in {*_SPANS, *_MONTHS}:
        raise NoFormError(f"the interval {amount} {unit} is left to Spark")
    require_type(moment, "an interval added to a value", _DATE, TIMESTAMP)
    number = sign * int(amount)
    if unit in _MONTHS:
        return _add_months(moment, number * _MONTHS[unit])
    if moment.type == _DATE and unit in ("WEEK", "DAY"):
        return add_days(moment, literal(number * (7 if unit == "WEEK" else 1), _INT))
    if abs(number) * _SPANS[unit] >= 2**63:
        raise NoFormError(f"the interval {amount} {unit} is left to Spark")
    span = number * _SPANS[unit]
    return attempt(TIMESTAMP, lambda times: _shift(times, span), convert(moment, TIMESTAMP))


@functions.named("add_months")
def _add_constant_months(moment: Term, count: Term) -> Term:
    return _add_months(to_date(moment), constant_int(count, "add_months"))


@functions.named("last_day")
def _last_day(moment: Term) -> Term:
    return attempt(_DATE, lambda days: _by_month(days, 0, last=True), to_date(moment))


def _from_epoch(per_second: int, value: Term) -> Term:
    require_type(value, "a time made from a value", *INTEGERS)
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


def _to_epoch(per_second: int, value: Term) -> Term:
    """Rounded down."""
    divisor = 1_000_000 // per_second
    times = require_type(value, "the seconds of a value", TIMESTAMP)
    return call(_LONG, lambda datum: floor_divide(pc.cast(datum, _LONG), divisor), times)


for _unit, _per_second in (("seconds", 1), ("millis", 1_000), ("micros", 1_000_000)):
    functions.named(f"timestamp_{_unit}")(partial(_from_epoch, _per_second))
    functions.named(f"unix_{_unit}")(partial(_to_epoch, _per_second))


@functions.named("unix_timestamp")
def _unix_timestamp(term: Term) -> Term:
    """Unlike `unix_seconds` rounded towards 1970."""
    times = convert(term, TIMESTAMP) if term.type == _DATE else require_type(term, "unix_timestamp", TIMESTAMP)
    return call(_LONG, lambda datum: pc.divide(pc.cast(datum, _LONG), 1_000_000), times)


@functions.named("unix_date")
def _unix_date(value: Term) -> Term:
    return call(_INT, _int, require_type(value, "unix_date", _DATE))


@functions.named("date_from_unix_date")
def _date_from_unix_date(value: Term) -> Term:
    days = require_type(value, "a date made from a value", *INTEGERS[:3])
    return call(_DATE, lambda datum: pc.cast(_int(datum), _DATE), days)


@functions.named("to_timestamp")
def _to_timestamp(term: Term) -> Term:
    return convert(term, TIMESTAMP)


@functions.named("to_date")
def _text_to_date(term: Term) -> Term:
    return convert(term, _DATE) if term.type == pa.string() else to_date(term)


@functions.named("date_format")
def _date_format(term: Term, pattern: Term) -> Term:
    moment = convert(require_type(term, "date_format", _DATE, TIMESTAMP), TIMESTAMP)
    return call(pa.string(), texts.formatter(constant_text(pattern, "date_format")), moment)


def _add_months(moment: Term, months: int) -> Term:
    if moment.type == _DATE:
        return attempt(_DATE, lambda days: _by_month(days, months), moment)

    def run(times: Datum) -> Outcome:
        days, clock = day_and_clock(times)
        moved, _ = _by_month(days, months)
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
    micros = pc.add(pc.multiply(pc.cast(inside, _LONG), pa.scalar(DAY_MICROSECONDS, _LONG)), clock)
    return _times(micros), {"ARITHMETIC_OVERFLOW": outside}


def _times(micros: Datum) -> Datum:
    return pc.cast(pc.cast(micros, TIMESTAMP_NTZ), TIMESTAMP)


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
_UNITS = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "year"),
    **dict.fromkeys(("MONTH", "MON", "MM"), "month"),
    **dict.fromkeys(("DAY", "DD"), "day"),
    **{name.upper(): name for name in ("quarter", "week", "hour", "minute", "second", "millisecond")},
}


def to_date(term: Term) -> Term:
    """The UTC day of a time."""
    return convert(require_type(term, "a date made from a value", _DATE, TIMESTAMP, TIMESTAMP_NTZ), _DATE)


def _clock_part(name: str, term: Term) -> Term:
    times = require_type(term, name, TIMESTAMP, TIMESTAMP_NTZ)
    return call(_INT, lambda datum: _int(_CLOCK[name](_naive(datum))), times)


def _calendar_part(name: str, term: Term) -> Term:
    return call(_INT, lambda datum: _int(_CALENDAR[name](near_1970(datum)[0])), to_date(term))


for _name in _CLOCK:
    functions.named(_name)(partial(_clock_part, _name))
for _name in _CALENDAR:
    functions.named(_name)(partial(_calendar_part, _name))
functions.named("dayofmonth")(functions["day"])


@functions.named("year")
def _year(term: Term) -> Term:
    return call(_INT, lambda datum: _int(years(datum)), to_date(term))


def truncate(unit: str, term: Term) -> Term:
    """`date_trunc(unit, term)`."""
    if unit.upper() not in _UNITS:
        raise NoFormError(f"date_trunc by {unit} is left to Spark")
    require_type(term, "date_trunc", _DATE, TIMESTAMP)
    name = _UNITS[unit.upper()]
    function = _floor_months if name in ("year", "quarter", "month") else _floor_span
    return call(TIMESTAMP, lambda datum: function(datum, name), convert(term, TIMESTAMP))


@functions.named("trunc")
def _truncate_date(term: Term, unit: Term) -> Term:
    """The first day of a week or something longer."""
    name = constant_text(unit, "trunc").upper()
    if _UNITS.get(name) not in ("year", "quarter", "month", "week"):
        raise NoFormError(f"trunc by {name} is left to Spark")
    return call(_DATE, lambda dates: _floor_dates(dates, _UNITS[name]), to_date(term))


def _floor_months(times: Datum, unit: str) -> Datum:
    return pc.cast(_floor_dates(pc.cast(times, _DATE), unit), TIMESTAMP)


def _floor_dates(dates: Datum, unit: str) -> Datum:
    near, _ = near_1970(dates)
    past = pc.subtract(pc.cast(near, _INT), pc.cast(pc.floor_temporal(near, unit=unit), _INT))
    return pc.cast(pc.subtract(pc.cast(dates, _INT), past), _DATE)


def _floor_span(times: Datum, unit: str) -> Datum:
    return pc.cast(pc.floor_temporal(_naive(times), unit=unit), TIMESTAMP)


def _naive(times: Datum) -> Datum:
    """The same instants without a zone, so that no time zone database is looked up."""
    return pc.cast(times, TIMESTAMP_NTZ)


def _int(datum: Datum) -> Datum:
    return pc.cast(datum, _INT)

"""Parts of dates and times in UTC, and times cut off, over the whole range of Spark's types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.conversion import convert
from penstock.transforms.expressions.cycles import near_1970, years
from penstock.transforms.expressions.terms import TIMESTAMP, TIMESTAMP_NTZ, Datum, NoFormError, Term, call

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

"""Values to text, as `CAST(... AS STRING)` and `date_format` write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.casts import floor_divide, near_1970, years
from penstock.transforms.expressions.terms import Datum, NoFormError

_DAY_MICROSECONDS = 86_400_000_000
_LONG = pa.int64()
_LAST_PLAIN_YEAR = 9999
_TOKEN = re.compile(r"(([A-Za-z])\2*)|'([^']+)'|([^A-Za-z'\[\]{}#]+)")


def decimal_text(datum: Datum) -> Datum:
    """All the digits, and never an exponent."""
    texts = pc.cast(datum, pa.string())
    with_exponent = pc.fill_null(pc.match_substring(texts, pattern="E"), False)
    if not pc.any(with_exponent, min_count=0).as_py():
        return texts
    plain = [format(value, "f") for value in datum.filter(with_exponent).to_pylist()]
    return pc.replace_with_mask(texts, with_exponent, pa.array(plain, pa.string()))


def date_text(dates: Datum) -> Datum:
    """`2024-02-29`; years of more than four digits have a sign."""
    near, _ = near_1970(dates)
    return pc.binary_join_element_wise(_year_text(dates), _two(pc.month(near)), _two(pc.day(near)), "-")


def timestamp_text(times: Datum) -> Datum:
    """`2024-02-29 12:34:56.5`: as many digits behind the point as are needed."""
    days, clock = _day_and_clock(times)
    clock_text = pc.binary_join_element_wise(*(_two(_unit(clock, name)) for name in ("HH", "mm", "ss")), ":")
    fraction = pc.utf8_rtrim(pc.utf8_rtrim(_join(".", _fraction(clock)), characters="0"), characters=".")
    return _join(date_text(days), " ", clock_text, fraction)


def formatter(pattern: str) -> Callable[[Datum], Datum]:
    """`date_format` of a TIMESTAMP by a pattern of fixed fields."""
    parts = [found.groups() for found in _TOKEN.finditer(pattern)]
    if "".join(found.group() for found in _TOKEN.finditer(pattern)) != pattern or not parts:
        raise NoFormError(f"the pattern '{pattern}' is left to Spark")
    for field, _, _, _ in parts:
        if field and field not in _FIELDS:
            raise NoFormError(f"{field} in a pattern of date_format is left to Spark")

    def write(times: Datum) -> Datum:
        days, clock = _day_and_clock(times)
        near, _ = near_1970(days)
        pieces = []
        for field, _, quoted, plain in parts:
            if field == "yyyy":
                pieces.append(_year_text(days))
            elif field:
                pieces.append(_FIELDS[field](near, clock))
            else:
                pieces.append(pa.scalar(quoted or plain))
        return _join(*pieces)

    return write


_FIELDS: dict[str, Callable[[Datum, Datum], Datum]] = {
    "yyyy": lambda near, clock: near,
    "MM": lambda near, clock: _two(pc.month(near)),
    "dd": lambda near, clock: _two(pc.day(near)),
    "HH": lambda near, clock: _two(_unit(clock, "HH")),
    "mm": lambda near, clock: _two(_unit(clock, "mm")),
    "ss": lambda near, clock: _two(_unit(clock, "ss")),
    "SSSSSS": lambda near, clock: _fraction(clock),
    "SSS": lambda near, clock: pc.utf8_slice_codeunits(_fraction(clock), start=0, stop=3),
}
_SPANS = {"HH": (3_600_000_000, 24), "mm": (60_000_000, 60), "ss": (1_000_000, 60)}


@cache
def _two_digits() -> pa.Array:
    """Made when first needed: an array from a list makes pyarrow import pandas."""
    return pa.array([f"{number:02}" for number in range(100)])


def _two(numbers: Datum) -> Datum:
    return _two_digits().take(numbers)


def _unit(clock: Datum, name: str) -> Datum:
    """Hours, minutes or seconds of a time of day in microseconds."""
    span, count = _SPANS[name]
    units = pc.divide(clock, pa.scalar(span, _LONG))
    return pc.subtract(units, pc.multiply(pc.divide(units, pa.scalar(count, _LONG)), pa.scalar(count, _LONG)))


def _fraction(clock: Datum) -> Datum:
    """Six digits of microseconds."""
    second = pa.scalar(_SPANS["ss"][0], _LONG)
    rest = pc.subtract(clock, pc.multiply(pc.divide(clock, second), second))
    return pc.utf8_lpad(pc.cast(rest, pa.string()), width=6, padding="0")


def _day_and_clock(times: Datum) -> tuple[Datum, Datum]:
    """The day of a time, and the microseconds since that day began."""
    micros = pc.cast(times, _LONG)
    days = floor_divide(micros, _DAY_MICROSECONDS)
    clock = pc.subtract(micros, pc.multiply(days, pa.scalar(_DAY_MICROSECONDS, _LONG)))
    return pc.cast(pc.cast(days, pa.int32()), pa.date32()), clock


def _year_text(dates: Datum) -> Datum:
    numbers = years(dates)
    digits = pc.utf8_lpad(pc.cast(pc.abs(numbers), pa.string()), width=4, padding="0")
    sign = pc.if_else(pc.greater(numbers, _LAST_PLAIN_YEAR), "+", pc.if_else(pc.less(numbers, 0), "-", ""))
    return _join(sign, digits)


def _join(*texts: Datum) -> Datum:
    return pc.binary_join_element_wise(*texts, "")

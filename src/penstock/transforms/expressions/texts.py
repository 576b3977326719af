"""Text to values, as `CAST(text AS ...)` reads it, and values to text, as `CAST(... AS STRING)` and `date_format` do.

What is written plainly is read by Arrow, all else row by row. Blanks around a value are left out: those up to U+0020,
and for some types U+007F too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.dates import day_and_clock, days_of, near_1970, years
from penstock.transforms.expressions.terms import Datum, NoFormError, Outcome

INVALID = "CAST_INVALID_INPUT"
OUT_OF_RANGE = "NUMERIC_VALUE_OUT_OF_RANGE"
_BLANKS = "".join(map(chr, range(0x21)))
_BLANKS_OF_BYTES = _BLANKS + "\x7f"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_DOUBLE = re.compile(rf"[+-]?{_NUMBER}[fFdD]?", re.ASCII)
_HEX_DOUBLE = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?")
_DECIMAL = re.compile(rf"[+-]?{_NUMBER}")
_DATE = re.compile(r"([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_SPECIAL = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), float("inf")),
    **dict.fromkeys(("-inf", "-infinity"), float("-inf")),
    "nan": float("nan"),
}
_MOST_DIGITS = 38
_MOST_EXPONENT = 2**31 - 1


def read_integers(texts: Datum, kind: pa.DataType) -> Outcome:
    """A number without a fraction."""
    limit = 1 << (kind.bit_width - 1)
    sure = len(str(limit)) - 1

    def read(text: str) -> int | None:
        stripped = text.strip(_BLANKS_OF_BYTES)
        if not _INTEGER.fullmatch(stripped) or len(stripped.lstrip("+-0")) > sure + 1:
            return None
        return number if -limit <= (number := int(stripped)) < limit else None

    return _read(texts, kind, rf"^-?[0-9]{{1,{sure}}}$", read)


def read_doubles(texts: Datum, kind: pa.DataType) -> Outcome:
    """A number as Java reads one, and the names of those that are none."""

    def read(text: str) -> float | None:
        stripped = text.strip(_BLANKS)
        if _DOUBLE.fullmatch(stripped):
            return float(stripped.rstrip("fFdD"))
        if _HEX_DOUBLE.fullmatch(stripped):
            return _from_hex(stripped)
        return _SPECIAL.get(stripped.lower())

    return _read(texts, kind, r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$", read)


def read_decimals(texts: Datum, kind: pa.DataType) -> Outcome:
    """A number, rounded half up to the digits of `kind`."""
    whole = kind.precision - kind.scale
    unit = Decimal(1).scaleb(-kind.scale)
    too_large: set[str] = set()

    def read(text: str) -> Decimal | None:
        stripped = text.strip(_BLANKS)
        if not _DECIMAL.fullmatch(stripped):
            return None
        exponent = re.search(r"[eE]([+-]?\d+)$", stripped)
        if exponent and abs(int(exponent[1])) > _MOST_EXPONENT:
            return None
        with localcontext() as context:
            context.prec, context.Emax, context.Emin = 5_000, 10**10, -(10**10)
            value = Decimal(stripped)
            # A zero has one digit, which may be far in front of the point.
            if value.adjusted() + 1 > _MOST_DIGITS:
                too_large.add(text)
                return None
            value = value.quantize(unit, ROUND_HALF_UP)
            if value and value.adjusted() + 1 > whole:
                too_large.add(text)
                return None
        return value

    fraction = rf"(\.[0-9]{{1,{kind.scale}}})?" if kind.scale else ""
    if not whole:
        result, failures = _read(texts, kind, r"^\.[0-9]{1,2}$" if kind.scale > 1 else r"^never$", read)
    else:
        result, failures = _read(texts, kind, rf"^-?[0-9]{{1,{whole}}}{fraction}$", read)
    if not failures or not too_large:
        return result, failures
    large = pc.is_in(texts, value_set=pa.array(sorted(too_large)))
    malformed = pc.and_not(failures[INVALID], large)
    return result, {INVALID: malformed, OUT_OF_RANGE: pc.and_(large, pc.is_valid(texts))}


def read_booleans(texts: Datum, kind: pa.DataType) -> Outcome:
    """The words and letters for true and false."""
    words = pc.ascii_lower(pc.ascii_trim(texts, characters=_BLANKS_OF_BYTES))
    yes = pc.is_in(words, value_set=pa.array(["t", "true", "y", "yes", "1"]))
    no = pc.is_in(words, value_set=pa.array(["f", "false", "n", "no", "0"]))
    known = pc.or_(yes, no)
    result = pc.if_else(known, yes, pa.scalar(None, kind))
    return result, {INVALID: pc.and_(pc.invert(known), pc.is_valid(texts))}


def read_dates(texts: Datum, kind: pa.DataType) -> Outcome:
    """`yyyy`, `yyyy-m` or `yyyy-m-d`, the last one with anything after a blank or a `T`."""

    def read(text: str) -> int | None:
        found = _DATE.fullmatch(text.strip(_BLANKS_OF_BYTES))
        if not found:
            return None
        sign, year, month, day = found.groups()
        return days_of(int(sign + year), int(month or 1), int(day or 1))

    try:
        return _read(texts, kind, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", read)
    except pa.ArrowInvalid:
        return _read(texts, kind, r"^never$", read)


def _read(texts: Datum, kind: pa.DataType, plain: str, read: Callable[[str], object]) -> Outcome:
    """Arrow reads what matches `plain`, `read` the others: None for what cannot be read."""
    matches = pc.match_substring_regex(texts, pattern=plain)
    if pc.all(matches, min_count=0).as_py():
        return pc.cast(texts, kind), {}
    values = pc.cast(pc.if_else(matches, texts, pa.scalar(None, pa.string())), kind)
    odd = pc.fill_null(pc.invert(matches), False)
    known: dict[str, object] = {}
    found = []
    for text in texts.filter(odd).to_pylist():
        if text not in known:
            known[text] = read(text)
        found.append(known[text])
    patched = pa.array(found, pa.int32()).cast(kind) if kind == pa.date32() else pa.array(found, kind)
    values = pc.replace_with_mask(values, odd, patched)
    return values, {INVALID: pc.and_(odd, pc.is_null(values))}


def _from_hex(text: str) -> float:
    try:
        return float.fromhex(text.rstrip("fFdD") if "p" in text.lower() else text)
    except OverflowError:
        return float("-inf" if text.startswith("-") else "inf")


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
    """`2024-02-29 12:34:56.5`: as many digits after the point as are needed."""
    days, clock = day_and_clock(times)
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
        days, clock = day_and_clock(times)
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


def _year_text(dates: Datum) -> Datum:
    numbers = years(dates)
    digits = pc.utf8_lpad(pc.cast(pc.abs(numbers), pa.string()), width=4, padding="0")
    sign = pc.if_else(pc.greater(numbers, _LAST_PLAIN_YEAR), "+", pc.if_else(pc.less(numbers, 0), "-", ""))
    return _join(sign, digits)


def _join(*texts: Datum) -> Datum:
    return pc.binary_join_element_wise(*texts, "")

"""Types as Spark's ANSI mode sees them: common types, implicit and explicit conversions.

Only conversions that cannot fail and lose nothing that Spark would keep are made; `NoFormError` otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.terms import TIMESTAMP, TIMESTAMP_NTZ, NoFormError, Term, call, is_plain, literal, sql_name

_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_MAX_DIGITS = 38
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIMESTAMP = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[ T](\d{2}:\d{2}:\d{2})(?:\.(\d{1,6}))?Z?)?")


def common_type(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """The type that Spark converts all of these to, in a comparison or as branches of one result."""
    widest = kinds[0]
    for kind in kinds[1:]:
        widest = _wider(widest, kind)
    if not is_plain(widest):
        raise NoFormError(f"values of type {sql_name(widest)} are left to Spark")
    return widest


def convert(term: Term, kind: pa.DataType) -> Term:
    """`CAST(term AS kind)`, where it cannot fail and is exact."""
    source = term.type
    if source == kind:
        return term
    if term.is_null:
        return literal(None, kind)
    if term.value is not None and (known := _convert_constant(term.value, kind)) is not None:
        return known
    if source == pa.bool_() and pa.types.is_floating(kind):
        return convert(convert(term, pa.int8()), kind)
    if not _is_exact(source, kind):
        raise NoFormError(
            f"a cast from {sql_name(source)} to {sql_name(kind)} may fail or is written by Spark's own rules"
        )
    # Unchecked where it is a rounding of numbers, which Java and C do alike; checked where Spark checks too.
    rounds = pa.types.is_floating(kind)
    return call(kind, lambda datum: pc.cast(datum, kind, safe=not rounds), term)


def parse_date(text: str) -> date:
    """A date written YYYY-MM-DD, the one of Spark's spellings that is read here."""
    if not _DATE.fullmatch(text):
        raise NoFormError(f"the date '{text}' is not written as YYYY-MM-DD")
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise NoFormError(f"the date '{text}' is not in the calendar") from error


def parse_timestamp(text: str) -> datetime:
    """A UTC time written YYYY-MM-DD[ HH:MM:SS[.ffffff]], of Spark's spellings the one that is read here."""
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise NoFormError(f"the time '{text}' is not written as YYYY-MM-DD HH:MM:SS")
    day, clock, fraction = found.groups()
    try:
        whole = datetime.fromisoformat(f"{day} {clock or '00:00:00'}")
    except ValueError as error:
        raise NoFormError(f"the time '{text}' is not in the calendar") from error
    return whole.replace(microsecond=int((fraction or "").ljust(6, "0")), tzinfo=UTC)


def _wider(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if left == right or right == pa.null():
        return left
    if left == pa.null():
        return right
    if left in _INTEGERS and right in _INTEGERS:
        return max(left, right, key=_INTEGERS.index)
    if _is_number(left) and _is_number(right):
        if pa.types.is_floating(left) or pa.types.is_floating(right):
            return pa.float64()
        return _wider_decimal(left, right)
    if {left, right} <= {pa.date32(), TIMESTAMP, TIMESTAMP_NTZ}:
        return TIMESTAMP if TIMESTAMP in (left, right) else TIMESTAMP_NTZ
    raise NoFormError(f"{sql_name(left)} and {sql_name(right)} meet only by a conversion that may fail")


def _wider_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    (left_whole, left_scale), (right_whole, right_scale) = _digits(left), _digits(right)
    scale = max(left_scale, right_scale)
    precision = max(left_whole, right_whole) + scale
    if precision > _MAX_DIGITS:
        raise NoFormError(f"{sql_name(left)} and {sql_name(right)} have no common type of {_MAX_DIGITS} digits")
    return pa.decimal128(precision, scale)


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """Digits before and after the point."""
    if kind in _INTEGER_DIGITS:
        return _INTEGER_DIGITS[kind], 0
    return kind.precision - kind.scale, kind.scale


def _is_number(kind: pa.DataType) -> bool:
    return kind in _INTEGERS or pa.types.is_floating(kind) or pa.types.is_decimal128(kind)


def _is_exact(source: pa.DataType, kind: pa.DataType) -> bool:
    if source in _INTEGERS:
        if kind in _INTEGERS:
            return _INTEGERS.index(source) < _INTEGERS.index(kind)
        if pa.types.is_decimal128(kind):
            # Arrow wants 19 digits for a BIGINT, which is what it has; Spark's own common types give it 20.
            return bool(kind.precision - kind.scale >= min(_INTEGER_DIGITS[source], 19))
        return kind in (pa.float32(), pa.float64(), pa.string())
    if pa.types.is_decimal128(source) and pa.types.is_decimal128(kind):
        (whole, scale), (new_whole, new_scale) = _digits(source), _digits(kind)
        return new_whole >= whole and new_scale >= scale
    if source == pa.bool_():
        return kind in _INTEGERS or kind == pa.string()
    if source == pa.string():
        return bool(kind == pa.binary())
    if pa.types.is_floating(source):
        return bool(pa.types.is_floating(kind))
    moments = {pa.date32(), TIMESTAMP, TIMESTAMP_NTZ}
    return source in moments and kind in moments


def _convert_constant(value: pa.Scalar, kind: pa.DataType) -> Term | None:
    """Conversions that are exact for this one value, though not for every value of its type."""
    plain = value.as_py()
    if isinstance(plain, Decimal) and kind == pa.float64():
        return literal(float(plain), kind)
    if isinstance(plain, Decimal) and kind == pa.float32():
        single = pa.scalar(float(plain), kind).as_py()
        return literal(single, kind) if Decimal(single) == plain else None
    if isinstance(plain, int) and not isinstance(plain, bool) and kind in _INTEGERS:
        limit = 1 << (kind.bit_width - 1)
        return literal(plain, kind) if -limit <= plain < limit else None
    if isinstance(plain, str) and kind == pa.date32():
        return literal(parse_date(plain), kind)
    if isinstance(plain, str) and kind == TIMESTAMP:
        return literal(parse_timestamp(plain), kind)
    return None

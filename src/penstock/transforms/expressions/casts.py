"""CAST and implicit conversions: which have an Arrow form, and those between numbers, booleans and times."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions import texts
from penstock.transforms.expressions.dates import floor_divide
from penstock.transforms.expressions.terms import (
    INTEGER_DIGITS,
    INTEGERS,
    MOMENTS,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Datum,
    NoFormError,
    Outcome,
    Term,
    attempt,
    call,
    digits,
    is_number,
    literal,
    sql_name,
)

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIMESTAMP = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[ T](\d{2}:\d{2}:\d{2})(?:\.(\d{1,6}))?Z?)?")
_MICROSECONDS = 1_000_000
_LONG = pa.int64()


def convert(term: Term, kind: pa.DataType, *, null_on_error: bool = False) -> Term:
    """`CAST(term AS kind)`, or `try_cast` with `null_on_error`."""
    source = term.type
    if source == kind:
        return term
    if term.is_null:
        return literal(None, kind)
    if term.value is not None and (known := _convert_constant(term.value, kind)) is not None:
        return known
    if source == pa.bool_() and is_number(kind) and kind not in INTEGERS:
        return convert(convert(term, pa.int8()), kind, null_on_error=null_on_error)
    if _is_exact(source, kind):
        # Unchecked where it is a rounding of numbers, which Java and C do alike; checked where Spark checks too.
        rounds = pa.types.is_floating(kind)
        return call(kind, lambda datum: pc.cast(datum, kind, safe=not rounds), term)
    if total := _total(source, kind):
        return call(kind, total, term)
    if partial := _partial(source, kind):
        return attempt(kind, lambda datum: partial(datum, kind), term, null_on_error=null_on_error)
    raise NoFormError(f"a cast from {sql_name(source)} to {sql_name(kind)} is left to Spark")


def parse_date(text: str) -> date:
    """A date written YYYY-MM-DD, the one of Spark's spellings that a constant may have here."""
    if not _DATE.fullmatch(text):
        raise NoFormError(f"the date '{text}' is not written as YYYY-MM-DD")
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise NoFormError(f"the date '{text}' is not in the calendar") from error


def parse_timestamp(text: str) -> datetime:
    """A UTC time written YYYY-MM-DD[ HH:MM:SS[.ffffff]], the one of Spark's spellings that a constant may have."""
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise NoFormError(f"the time '{text}' is not written as YYYY-MM-DD HH:MM:SS")
    day, clock, fraction = found.groups()
    try:
        whole = datetime.fromisoformat(f"{day} {clock or '00:00:00'}")
    except ValueError as error:
        raise NoFormError(f"the time '{text}' is not in the calendar") from error
    return whole.replace(microsecond=int((fraction or "").ljust(6, "0")), tzinfo=UTC)


def _is_exact(source: pa.DataType, kind: pa.DataType) -> bool:
    """Whether Arrow's own cast does it, for every value."""
    if source in INTEGERS:
        if kind in INTEGERS:
            return INTEGERS.index(source) < INTEGERS.index(kind)
        if pa.types.is_decimal128(kind):
            # Arrow wants 19 digits for a BIGINT, which is what it has; Spark's own common types give it 20.
            return bool(kind.precision - kind.scale >= min(INTEGER_DIGITS[source], 19))
        return kind in (pa.float32(), pa.float64(), pa.string())
    if pa.types.is_decimal128(source) and pa.types.is_decimal128(kind):
        (whole, scale), (new_whole, new_scale) = digits(source), digits(kind)
        return new_whole >= whole and new_scale >= scale
    if source == pa.bool_():
        return kind in INTEGERS or kind == pa.string()
    if source == pa.string():
        return bool(kind == pa.binary())
    if pa.types.is_floating(source):
        return bool(pa.types.is_floating(kind))
    return source in MOMENTS and kind in MOMENTS


def _total(source: pa.DataType, kind: pa.DataType) -> Callable[[Datum], Datum] | None:
    """The conversion that cannot fail, where there is one."""
    if kind == pa.string():
        if pa.types.is_decimal128(source):
            return texts.decimal_text
        return {pa.date32(): texts.date_text, TIMESTAMP: texts.timestamp_text}.get(source)
    if kind == pa.bool_() and is_number(source):
        return _is_not_zero
    if pa.types.is_decimal128(source) and pa.types.is_floating(kind):
        return lambda datum: pc.cast(texts.decimal_text(datum), kind)
    if source in INTEGERS and kind == TIMESTAMP:
        return _seconds_to_timestamp
    if source == TIMESTAMP and kind == pa.int64():
        return _timestamp_to_seconds
    return None


def _partial(source: pa.DataType, kind: pa.DataType) -> Callable[[Datum, pa.DataType], Outcome] | None:
    """The conversion that fails for some values, where there is one."""
    if kind in INTEGERS:
        if source in INTEGERS:
            return _integer_to_integer
        if pa.types.is_floating(source):
            return _float_to_integer
        if pa.types.is_decimal128(source):
            return _decimal_to_integer
        return texts.read_integers if source == pa.string() else None
    if pa.types.is_decimal128(kind):
        if source in INTEGERS or pa.types.is_decimal128(source):
            return _number_to_decimal
        return texts.read_decimals if source == pa.string() else None
    if source == pa.string():
        readers = {pa.float64(): texts.read_doubles, pa.bool_(): texts.read_booleans, pa.date32(): texts.read_dates}
        return readers.get(kind)
    return None


def _convert_constant(value: pa.Scalar, kind: pa.DataType) -> Term | None:
    """Conversions that are exact for this one value, though not for every value of its type."""
    plain = value.as_py()
    if isinstance(plain, Decimal) and kind == pa.float64():
        return literal(float(plain), kind)
    if isinstance(plain, Decimal) and kind == pa.float32():
        single = pa.scalar(float(plain), kind).as_py()
        return literal(single, kind) if Decimal(single) == plain else None
    if isinstance(plain, int) and not isinstance(plain, bool) and kind in INTEGERS:
        limit = 1 << (kind.bit_width - 1)
        return literal(plain, kind) if -limit <= plain < limit else None
    if isinstance(plain, int) and not isinstance(plain, bool) and pa.types.is_decimal128(kind):
        fits = abs(plain) < 10 ** (kind.precision - kind.scale)
        return literal(Decimal(plain), kind) if fits else None
    if isinstance(plain, str) and kind == pa.date32():
        return literal(parse_date(plain), kind)
    if isinstance(plain, str) and kind == TIMESTAMP:
        return literal(parse_timestamp(plain), kind)
    return None


def _integer_to_integer(datum: Datum, kind: pa.DataType) -> Outcome:
    """A wider integer to a narrower one."""
    low, high = (pa.scalar(bound, datum.type) for bound in _bounds(kind))
    outside = pc.or_(pc.less(datum, low), pc.greater(datum, high))
    return pc.cast(datum, kind, safe=False), {"CAST_OVERFLOW": outside}


def _float_to_integer(datum: Datum, kind: pa.DataType) -> Outcome:
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
    return pc.cast(result, kind, safe=False), {"CAST_OVERFLOW": pc.invert(inside)}


def _decimal_to_integer(datum: Datum, kind: pa.DataType) -> Outcome:
    """Towards zero."""
    low, high = (pa.scalar(Decimal(bound), pa.decimal256(39, 0)) for bound in _bounds(kind))
    whole = pc.cast(pc.trunc(pc.cast(datum, pa.decimal256(39, datum.type.scale))), pa.decimal256(39, 0), safe=False)
    outside = pc.or_(pc.less(whole, low), pc.greater(whole, high))
    within = pc.if_else(outside, pa.scalar(None, whole.type), whole)
    return pc.cast(within, kind), {"CAST_OVERFLOW": outside}


def _number_to_decimal(datum: Datum, kind: pa.DataType) -> Outcome:
    """An integer or a decimal with other digits, rounded half up."""
    if pa.types.is_integer(datum.type):
        datum = pc.cast(datum, pa.decimal128(19, 0))
    return fit(datum, kind)


def _is_not_zero(datum: Datum) -> Datum:
    """A number as BOOLEAN."""
    zero = Decimal(0) if pa.types.is_decimal(datum.type) else 0
    return pc.not_equal(datum, pa.scalar(zero, datum.type))


def _seconds_to_timestamp(datum: Datum) -> Datum:
    """Seconds since 1970 as a time; those beyond the range of times become its ends."""
    seconds = pc.cast(datum, _LONG)
    most = (2**63 - 1) // _MICROSECONDS
    clamped = pc.min_element_wise(pc.max_element_wise(seconds, -most, skip_nulls=False), most, skip_nulls=False)
    micros = pc.multiply(clamped, _MICROSECONDS)
    micros = pc.if_else(pc.greater(seconds, most), pa.scalar(2**63 - 1, _LONG), micros)
    micros = pc.if_else(pc.less(seconds, -most), pa.scalar(-(2**63), _LONG), micros)
    return pc.cast(pc.cast(micros, TIMESTAMP_NTZ), TIMESTAMP)


def _timestamp_to_seconds(datum: Datum) -> Datum:
    """Whole seconds since 1970, rounded down."""
    return floor_divide(pc.cast(datum, _LONG), _MICROSECONDS)


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    limit = 1 << (kind.bit_width - 1)
    return -limit, limit - 1


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
    return pc.cast(within, kind, safe=False), {texts.OUT_OF_RANGE: outside}

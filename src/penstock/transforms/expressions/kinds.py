"""Types as Spark's ANSI mode sees them: the common type of several values, and the digits of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.transforms.expressions.terms import TIMESTAMP, TIMESTAMP_NTZ, NoFormError, is_plain, sql_name

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
MOMENTS = (pa.date32(), TIMESTAMP, TIMESTAMP_NTZ)
MAX_DIGITS = 38


def common_type(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """The type that Spark converts all of these to, in a comparison or as branches of one result."""
    widest = kinds[0]
    for kind in kinds[1:]:
        widest = _wider(widest, kind)
    if not is_plain(widest):
        raise NoFormError(f"values of type {sql_name(widest)} are left to Spark")
    return widest


def digits(kind: pa.DataType) -> tuple[int, int]:
    """Digits before and after the point."""
    if kind in INTEGER_DIGITS:
        return INTEGER_DIGITS[kind], 0
    return kind.precision - kind.scale, kind.scale


def is_number(kind: pa.DataType) -> bool:
    """Whether it is a type of numbers."""
    return kind in INTEGERS or pa.types.is_floating(kind) or pa.types.is_decimal128(kind)


def _wider(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if left == right or right == pa.null():
        return left
    if left == pa.null():
        return right
    if left in INTEGERS and right in INTEGERS:
        return max(left, right, key=INTEGERS.index)
    if is_number(left) and is_number(right):
        if pa.types.is_floating(left) or pa.types.is_floating(right):
            return pa.float64()
        return _wider_decimal(left, right)
    if {left, right} <= set(MOMENTS):
        return TIMESTAMP if TIMESTAMP in (left, right) else TIMESTAMP_NTZ
    raise NoFormError(f"{sql_name(left)} and {sql_name(right)} meet only by a conversion that may fail")


def _wider_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    (left_whole, left_scale), (right_whole, right_scale) = digits(left), digits(right)
    scale = max(left_scale, right_scale)
    precision = max(left_whole, right_whole) + scale
    if precision > MAX_DIGITS:
        raise NoFormError(f"{sql_name(left)} and {sql_name(right)} have no common type of {MAX_DIGITS} digits")
    return pa.decimal128(precision, scale)

"""Columns as they come off the wire, made what the schema says: ranges, UTF-8, decimals, times.

Every step takes a whole column and raises `BlockError` where any value in it is impossible. Rows that a null parent
hides are null in what enters, whatever reader it came from.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decoders.isolation import BlockError
from penstock.decoders.refusal import INVALID_UTF8, MALFORMED_AVRO, OUT_OF_RANGE

Step = Callable[[pa.Array], pa.Array]

_DECIMAL_BYTES = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS = [
    int((moment - _EPOCH).total_seconds()) * 1_000_000
    for moment in (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
]
_DAYS = [(day - _EPOCH.date()).days for day in (date.min, date.max)]


def text(path: str) -> Step:
    """Bytes that are UTF-8."""

    def step(column: pa.Array) -> pa.Array:
        try:
            return column.cast(pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            raise BlockError(INVALID_UTF8, f"{path}: not UTF-8") from None

    return step


def truth(path: str) -> Step:
    """Booleans: as they are, or the bytes 0 and 1."""
    both = pa.array([b"\x00", b"\x01"], pa.binary())

    def step(column: pa.Array) -> pa.Array:
        if pa.types.is_boolean(column.type):
            return column
        if not pc.all(pc.is_in(column.drop_null(), both), min_count=0).as_py():
            raise BlockError(MALFORMED_AVRO, f"{path}: a boolean that is neither 0 nor 1")
        return pc.equal(column, both[1])

    return step


def number(kind: pa.DataType, path: str) -> Step:
    """Longs as `kind`; where that is a float, as near as it can."""

    def step(column: pa.Array) -> pa.Array:
        try:
            return column.cast(kind, safe=pa.types.is_integer(kind))
        except pa.ArrowInvalid:
            raise BlockError(MALFORMED_AVRO, f"{path}: a number that does not fit {kind}") from None

    return step


def scaled(factor: int, path: str) -> Step:
    """Longs, multiplied."""

    def step(column: pa.Array) -> pa.Array:
        try:
            return pc.multiply_checked(column.cast(pa.int64()), factor)
        except pa.ArrowInvalid:
            raise BlockError(OUT_OF_RANGE, f"{path}: too large for a column of 64 bits") from None

    return step


def moments(kind: pa.DataType, path: str) -> Step:
    """Microseconds or days as times or dates, of the years 1 to 9999 as in every other format."""
    first, last = _DAYS if pa.types.is_date(kind) else (_MICROS[0], _MICROS[1] + 999_999)

    def step(column: pa.Array) -> pa.Array:
        found = pc.min_max(column)
        if column.null_count < len(column) and not (first <= found["min"].as_py() and found["max"].as_py() <= last):
            raise BlockError(OUT_OF_RANGE, f"{path}: before the year 1 or after the year 9999")
        return (column.cast(pa.int32()) if pa.types.is_date(kind) else column).cast(kind)

    return step


def symbols(found: tuple[str | None, ...], path: str, enum: str) -> Step:
    """Numbers as symbols. `None` stands for a symbol that the reader does not know and has no default for."""
    names = pa.array(found, pa.string())
    lost = pa.array([at for at, symbol in enumerate(found) if symbol is None], pa.int64())

    def step(column: pa.Array) -> pa.Array:
        in_range = pc.and_(pc.greater_equal(column, 0), pc.less(column, len(found)))
        if not pc.all(in_range, min_count=0).as_py():
            raise BlockError(MALFORMED_AVRO, f"{path}: no symbol of {enum}")
        if len(lost) and pc.any(pc.is_in(column, lost), min_count=0).as_py():
            raise BlockError("SCHEMA_INCOMPATIBLE", f"{path}: a symbol that the reader's {enum} does not have")
        return names.take(column)

    return step


def fixed(size: int) -> Step:
    """Bytes of one size: as they are, or put together again from the numbers that the native reader took them for."""

    def step(column: pa.Array) -> pa.Array:
        if not pa.types.is_struct(column.type):
            return column
        count = len(column)
        parts = [_bytes_of(column.field(at), count) for at in range(column.type.num_fields)]
        data = pa.py_buffer(np.hstack(parts))
        offsets = pa.py_buffer(np.arange(0, (count + 1) * size, size, dtype=np.int32)[: count + 1])
        return pa.BinaryArray.from_buffers(pa.binary(), count, [_validity(column), offsets, data])

    return step


def decimals(kind: pa.Decimal128Type, written_scale: int, path: str) -> Step:
    """Big-endian two's complement as decimals of the writer's scale, brought to the reader's."""
    largest = pa.decimal128(38, written_scale)
    digits = min(38, kind.precision - kind.scale + written_scale)

    def step(column: pa.Array) -> pa.Array:
        column = column.cast(pa.binary())
        words = _words(column, path)
        low, high = words[:, 0], words[:, 1].view(np.int64)
        limit = 10**digits
        top, bottom = limit >> 64, limit & (2**64 - 1)
        below = (high < top) | ((high == top) & (low < np.uint64(bottom)))
        top, bottom = (-limit) >> 64, (-limit) & (2**64 - 1)
        above = (high > top) | ((high == top) & (low > np.uint64(bottom)))
        if not (below & above).all():
            raise BlockError(OUT_OF_RANGE, f"{path}: more digits than {kind} holds")
        found = pa.Array.from_buffers(largest, len(column), [_validity(column), pa.py_buffer(words)])
        return found.cast(kind)

    return step


def _words(column: pa.BinaryArray, path: str) -> npt.NDArray[np.uint64]:
    """The numbers as 16 bytes each, little endian, as Arrow keeps them. Zero where the column is null."""
    count = len(column)
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + count + 1].astype(np.int64)
    buffer = column.buffers()[2]
    data = np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else np.zeros(1, np.uint8)
    sizes = np.diff(offsets)
    widest = int(min(sizes.max(initial=0), _DECIMAL_BYTES))
    places = offsets[1:, None] - 1 - np.arange(widest)
    inside = np.arange(widest) < sizes[:, None]
    digits = data[np.where(inside, places, 0)]
    first = np.where(sizes > 0, data[np.where(sizes > 0, offsets[:-1], 0)], 0)
    sign = np.where(first >= 0x80, np.uint8(0xFF), np.uint8(0))
    found = np.repeat(sign[:, None], _DECIMAL_BYTES, axis=1)
    found[:, :widest] = np.where(inside, digits, sign[:, None])
    for row in np.flatnonzero(sizes > _DECIMAL_BYTES):
        number = int.from_bytes(data[offsets[row] : offsets[row + 1]].tobytes(), signed=True)
        if not -(2**127) <= number < 2**127:
            raise BlockError(OUT_OF_RANGE, f"{path}: more than 38 digits")
        found[row] = np.frombuffer(number.to_bytes(_DECIMAL_BYTES, "little", signed=True), np.uint8)
    return np.ascontiguousarray(found).view(np.uint64)


def _bytes_of(column: pa.Array, count: int) -> npt.NDArray[np.uint8]:
    width = column.type.byte_width
    data = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width : (column.offset + count) * width]
    return data.reshape(count, width)


def _validity(column: pa.Array) -> pa.Buffer | None:
    return column.is_valid().buffers()[1] if column.null_count else None

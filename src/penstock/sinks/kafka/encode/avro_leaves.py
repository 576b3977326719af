"""Plain values as Avro writes them: how each column type becomes each Avro type, and which values cannot.

Only what keeps every value exactly is allowed: a wider number, never a narrower one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.sinks.kafka.encode.shapes import Rule, cast_to, is_bytes, is_text

_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_SMALL = (pa.int8(), pa.int16())
_NUMBERS: Mapping[str, tuple[pa.DataType, tuple[pa.DataType, ...]]] = {
    "boolean": (pa.bool_(), (pa.bool_(),)),
    "int": (pa.int32(), (*_SMALL, pa.int32())),
    "long": (pa.int64(), (*_SMALL, pa.int32(), pa.int64())),
    "float": (pa.float32(), (*_SMALL, pa.float32())),
    "double": (pa.float64(), (*_SMALL, pa.int32(), pa.float32(), pa.float64())),
}
_UNITS_A_MICROSECOND = {"millis": 0.001, "micros": 1, "nanos": 1000}
_NANOS_LIMIT = 2**63 // 1000
_DECIMAL_BYTES = 16


@dataclass(frozen=True)
class Leaf:
    """How a plain value is written: `wire` is an Avro type without logical type that has the same bytes."""

    wire: Any
    convert: Callable[[pa.Array], pa.Array] | None = None
    rules: tuple[Rule, ...] = ()


def leaf(kind: pa.DataType, avro: Mapping[str, Any], unique: Callable[[], str], *, bytes_as_text: bool) -> Leaf | None:
    """How values of an Arrow type become an Avro type; none where they do not.

    `bytes_as_text`: Avro writes both alike, and the fast encoder knows text only.
    """
    name, logical = avro["type"], avro.get("logicalType")
    if types.is_decimal(kind):
        return _decimal(kind, avro, unique, bytes_as_text) if logical == "decimal" else None
    if types.is_timestamp(kind):
        return _moment(kind, logical) if name == "long" else None
    if types.is_date32(kind):
        return Leaf("int", partial(cast_to, kind=pa.int32())) if (name, logical) == ("int", "date") else None
    if is_text(kind):
        return _text(kind, avro, unique)
    if is_bytes(kind):
        return _bytes(avro, unique, bytes_as_text) if logical != "decimal" else None
    target, sources = _NUMBERS.get(name, (None, ()))
    if kind not in sources or _is_time(logical):
        return None
    return Leaf(name, partial(cast_to, kind=target) if kind != target else None)


def _is_time(logical: str | None) -> bool:
    return logical is not None and (logical == "date" or logical.startswith(("time", "local-time")))


def _moment(kind: pa.DataType, logical: str | None) -> Leaf | None:
    start, _, unit = (logical or "").rpartition("-")
    if start != ("timestamp" if kind.tz else "local-timestamp") or unit not in _UNITS_A_MICROSECOND:
        return None
    rules = {
        "millis": (Rule(_has_micros, "has microseconds, and the schema keeps milliseconds"),),
        "micros": (),
        "nanos": (Rule(_beyond_nanos, "is outside what counts as nanoseconds in a long"),),
    }
    return Leaf("long", partial(_ticks, unit=unit), rules[unit])


def _micros(values: pa.Array) -> pa.Array:
    return values.cast(pa.timestamp("us", tz=values.type.tz)).cast(pa.int64())


def _ticks(values: pa.Array, unit: str) -> pa.Array:
    micros = _micros(values)
    if unit == "nanos":
        return pc.multiply(micros, 1000)
    return pc.divide(micros, 1000) if unit == "millis" else micros


def _has_micros(values: pa.Array) -> pa.Array:
    micros = _micros(values)
    return pc.not_equal(pc.multiply(pc.divide(micros, 1000), 1000), micros)


def _beyond_nanos(values: pa.Array) -> pa.Array:
    micros = _micros(values)
    return pc.or_(pc.greater(micros, _NANOS_LIMIT - 1), pc.less(micros, -_NANOS_LIMIT))


def _text(kind: pa.DataType, avro: Mapping[str, Any], unique: Callable[[], str]) -> Leaf | None:
    convert = None if types.is_string(kind) else partial(cast_to, kind=pa.string())
    match avro["type"]:
        case "string" if avro.get("logicalType") == "uuid":
            return Leaf("string", convert, (Rule(_no_uuid, "is no UUID"),))
        case "string":
            return Leaf("string", convert)
        case "enum":
            symbols = tuple(avro["symbols"])
            rule = Rule(partial(_none_of, symbols=symbols), f"is none of {', '.join(symbols[:10])}")
            return Leaf({"type": "enum", "name": unique(), "symbols": list(symbols)}, convert, (rule,))
    return None


def _no_uuid(values: pa.Array) -> pa.Array:
    return pc.invert(pc.match_substring_regex(values, _UUID))


def _none_of(values: pa.Array, symbols: tuple[str, ...]) -> pa.Array:
    return pc.and_(values.is_valid(), pc.invert(pc.is_in(values.cast(pa.string()), pa.array(symbols, pa.string()))))


def _bytes(avro: Mapping[str, Any], unique: Callable[[], str], as_text: bool) -> Leaf | None:
    match avro["type"]:
        case "bytes":
            return Leaf("string", _shown_as_text) if as_text else Leaf("bytes", partial(cast_to, kind=pa.binary()))
        case "fixed":
            size = int(avro["size"])
            rule = Rule(partial(_not_of_size, size=size), f"is not {size} bytes long")
            wire = {"type": "fixed", "name": unique(), "size": size}
            return Leaf(wire, partial(cast_to, kind=pa.binary()), (rule,))
    return None


def _not_of_size(values: pa.Array, size: int) -> pa.Array:
    return pc.not_equal(pc.binary_length(values.cast(pa.binary())), size)


def _shown_as_text(values: pa.Array) -> pa.Array:
    """The same bytes under the type for text, unchecked and uncopied: only for an encoder that copies them."""
    values = values.cast(pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), values.buffers(), values.null_count, values.offset)


def _decimal(kind: pa.DataType, avro: Mapping[str, Any], unique: Callable[[], str], as_text: bool) -> Leaf | None:
    precision, scale = int(avro["precision"]), int(avro.get("scale", 0))
    if scale < kind.scale or precision - scale < kind.precision - kind.scale or precision > 38:
        return None
    target = pa.decimal128(precision, scale)
    if avro["type"] == "fixed":
        size = int(avro["size"])
        wire = {"type": "fixed", "name": unique(), "size": size}
        return Leaf(wire, partial(_fixed_decimals, kind=target, size=size))
    convert = partial(_decimals, kind=target, as_text=as_text)
    return Leaf("string" if as_text else "bytes", convert)


def _big_endian(values: pa.Array, kind: pa.DataType) -> np.ndarray:
    """The unscaled numbers, 16 bytes each, two's complement; anything for a null."""
    numbers = values.cast(kind)
    buffer = np.frombuffer(numbers.buffers()[1] or b"", np.uint8)
    start = numbers.offset * _DECIMAL_BYTES
    return buffer[start : start + len(numbers) * _DECIMAL_BYTES].reshape(-1, _DECIMAL_BYTES)[:, ::-1]


def _decimals(values: pa.Array, kind: pa.DataType, as_text: bool) -> pa.Array:
    """As few bytes as hold each number: a leading byte that only repeats the sign is left out."""
    numbers = _big_endian(values, kind)
    sign = np.where(numbers[:, :1] & 0x80, 0xFF, 0x00).astype(np.uint8)
    repeats = (numbers[:, :-1] == sign) & ((numbers[:, 1:] ^ sign) & 0x80 == 0)
    keep = np.ones(numbers.shape, dtype=bool)
    keep[:, :-1] = ~np.logical_and.accumulate(repeats, axis=1)
    return _laid_out(numbers[keep], keep.sum(axis=1), values, pa.string() if as_text else pa.binary())


def _fixed_decimals(values: pa.Array, kind: pa.DataType, size: int) -> pa.Array:
    numbers = _big_endian(values, kind)
    if size > _DECIMAL_BYTES:
        sign = np.where(numbers[:, :1] & 0x80, 0xFF, 0x00).astype(np.uint8)
        numbers = np.hstack([np.repeat(sign, size - _DECIMAL_BYTES, axis=1), numbers])
    numbers = numbers[:, numbers.shape[1] - size :]
    return _laid_out(numbers.ravel(), np.full(len(values), size), values, pa.binary())


def _laid_out(data: np.ndarray, lengths: np.ndarray, like: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values of these lengths, one behind the other in `data`; null where `like` is."""
    offsets = np.zeros(len(like) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    there = pa.array(~_is_null(like)).buffers()[1]
    return pa.Array.from_buffers(kind, len(like), [there, pa.py_buffer(offsets), pa.py_buffer(data.tobytes())])


def _is_null(values: pa.Array) -> np.ndarray:
    return np.asarray(values.is_null().to_numpy(zero_copy_only=False))

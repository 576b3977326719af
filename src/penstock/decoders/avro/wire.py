"""A writer's schema with everything taken off that the bytes do not show, for readers that know little.

On the wire an enum and an int are longs, a map is an array of pairs, bytes and strings are the same, fixed bytes may be
floating-point numbers, and a type that takes no bytes is not there. Written so, the native reader, which knows few
types, reads nearly all of them; names become `f0`, `f1`, ... and cannot trouble it. What the wire schema leaves open
(ranges, symbols, UTF-8) is checked on the columns.

Also here: what a schema can cost. Rows and bytes alone then bound the memory of a block, before it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decoders.avro.schema import (
    NULL,
    Array,
    Enum,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Union,
    UnsupportedSchemaError,
    describe,
)
from penstock.decoders.batch import BlockError
from penstock.decoders.framing import offsets_of
from penstock.decoders.refusal import INVALID_UTF8, MALFORMED_AVRO, OUT_OF_RANGE, SCHEMA_INCOMPATIBLE

_LENGTH_WIDTH = 20  # An offset, and what the native reader sets aside for a string.
_OBJECT_WIDTH = 100  # What the slow reader takes in addition, for a value as a Python object.
_MAX_NATIVE_BYTES = 64


class NotNativeError(Exception):
    """The native reader cannot read this type; the message names it."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A type on the wire.

    `schema` is its Avro schema, `arrow` what the slow reader makes of it, `least` its fewest bytes, `width` what one
    row of it may take in memory, and `ratio` the most memory that one byte may claim, by the items of arrays.
    """

    schema: Any
    arrow: pa.DataType
    least: int
    width: int
    ratio: int = 0


def takes_bytes(node: Node) -> bool:
    """Whether values of this type are on the wire at all."""
    match node:
        case Primitive():
            return node.kind != "null"
        case Fixed():
            return node.size > 0
        case Record():
            return any(takes_bytes(field.type) for field in node.fields)
        case _:
            return True


def wire_of(node: Node, *, native: bool) -> Wire:
    """The wire type of a node that takes bytes. Raises `NotNativeError` and `UnsupportedSchemaError`."""
    return _Builder(native).build(node)


class _Builder:
    def __init__(self, native: bool) -> None:
        self._native = native
        self._names = 0

    def build(self, node: Node) -> Wire:
        wire = self._build(node)
        return wire if self._native else replace(wire, width=wire.width + _OBJECT_WIDTH)

    def _build(self, node: Node) -> Wire:
        match node:
            case Primitive(kind="boolean"):
                # The slow reader would take any byte for true.
                return Wire("boolean", pa.bool_(), 1, 1) if self._native else self._fixed(Fixed("", (), 1))
            case Primitive(kind="int" | "long") | Enum():
                return Wire("long", pa.int64(), 1, 8)
            case Primitive(kind="float"):
                return Wire("float", pa.float32(), 4, 4)
            case Primitive(kind="double"):
                return Wire("double", pa.float64(), 8, 8)
            case Primitive():
                # The native reader does not look into strings, so any bytes may be read as one.
                return Wire("string" if self._native else "bytes", pa.binary(), 1, _LENGTH_WIDTH)
            case Fixed():
                return self._fixed(node)
            case Array() if not takes_bytes(node.items):
                raise UnsupportedSchemaError(f"{describe(node)}: no bytes for an item, so nothing bounds their number")
            case Array():
                return self._array(self.build(node.items))
            case Map():
                value = [self.build(node.values)] if takes_bytes(node.values) else []
                return self._array(self._record([self.build(Primitive("bytes")), *value]))
            case Record():
                return self._record([self.build(field.type) for field in node.fields if takes_bytes(field.type)])
            case Union():
                return self._union(node)

    def _fixed(self, node: Fixed) -> Wire:
        if not self._native:
            schema = {"type": "fixed", "name": self._name(), "size": node.size}
            return Wire(schema, pa.binary(), node.size, node.size + 4)
        if node.size % 4 or node.size > _MAX_NATIVE_BYTES:
            raise NotNativeError(f"{describe(node)}, and only 4, 8, 12, ... up to {_MAX_NATIVE_BYTES} are native")
        parts = [Wire("double", pa.float64(), 8, 8)] * (node.size // 8)
        return self._record(parts + [Wire("float", pa.float32(), 4, 4)] * (node.size % 8 // 4))

    def _array(self, item: Wire) -> Wire:
        ratio = max(item.ratio, -(-item.width // item.least))
        return Wire({"type": "array", "items": item.schema}, pa.list_(item.arrow), 1, 4 + item.width, ratio)

    def _record(self, parts: list[Wire]) -> Wire:
        fields = [{"name": f"f{at}", "type": part.schema} for at, part in enumerate(parts)]
        return Wire(
            {"type": "record", "name": self._name(), "fields": fields},
            pa.struct([(f"f{at}", part.arrow) for at, part in enumerate(parts)]),
            sum(part.least for part in parts),
            1 + sum(part.width for part in parts),
            max((part.ratio for part in parts), default=0),
        )

    def _union(self, node: Union) -> Wire:
        for branch in node.values:
            if not takes_bytes(branch):
                raise UnsupportedSchemaError(f"{describe(node)}: {describe(branch)} takes no bytes")
        if is_optional(node):
            [value] = node.values
            part = self.build(value)
            schema = ["null" if branch == NULL else part.schema for branch in node.branches]
            return Wire(schema, part.arrow, 1, part.width, part.ratio)
        # A record around each branch, because what differs in the schema may be the same on the wire.
        schema, kinds, width, ratio = [], [], 1, 0
        for at, branch in enumerate(node.branches):
            if branch == NULL:
                schema.append("null")
                continue
            part = self.build(branch)
            schema.append({"type": "record", "name": self._name(), "fields": [{"name": f"f{at}", "type": part.schema}]})
            kinds.append((f"f{at}", part.arrow))
            width, ratio = width + 1 + part.width, max(ratio, part.ratio)
        return Wire(schema, pa.struct(kinds), 1, width, ratio)

    def _name(self) -> str:
        self._names += 1
        return f"n{self._names}"


def is_optional(node: Node) -> bool:
    """Whether it is a union of null and one type, which is that type with nulls."""
    return isinstance(node, Union) and node.nullable and len(node.branches) == 2


# Columns as they come off the wire, made what the schema says: ranges, UTF-8, decimals, times.
#
# Every step takes a whole column and raises `BlockError` where any value in it is impossible. Rows that a null parent
# hides are null in what enters, whatever reader it came from.

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
            raise BlockError(SCHEMA_INCOMPATIBLE, f"{path}: a symbol that the reader's {enum} does not have")
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
    offsets = offsets_of(column).astype(np.int64)
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

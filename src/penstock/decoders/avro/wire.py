"""A writer's schema with everything taken off that the bytes do not show, for readers that know little.

On the wire an enum and an int are longs, a map is an array of pairs, bytes and strings are the same, fixed bytes may be
floating-point numbers, and a type that takes no bytes is not there. Written so, the native reader, which knows few
types, reads nearly all of them; names become `f0`, `f1`, ... and cannot trouble it. What the wire schema leaves open
(ranges, symbols, UTF-8) is checked on the columns.

Also here: what a schema can cost. Rows and bytes alone then bound the memory of a block, before it is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.decoders.avro.nodes import NULL, Array, Enum, Fixed, Map, Node, Primitive, Record, Union, describe
from penstock.decoders.avro.schema import UnsupportedSchemaError

_LENGTH_WIDTH = 20  # An offset, and what the native reader sets aside for a string.
_OBJECT_WIDTH = 100  # What the slow reader takes besides, for a value as a Python object.
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

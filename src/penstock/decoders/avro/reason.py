"""Why an Avro value cannot be read: one value, byte by byte, against its writer's schema.

Slow, and asked only about values that the fast readers refuse or must not see. It takes no memory for what it reads,
and stops at the first fault and at `limit`.
"""

from __future__ import annotations

from penstock.decoders.avro.nodes import Array, Enum, Fixed, Map, Node, Primitive, Record, Union
from penstock.decoders.avro.wire import takes_bytes, wire_of
from penstock.decoders.refusal import (
    INVALID_UTF8,
    MALFORMED_AVRO,
    TOO_MANY_ITEMS,
    TRAILING_DATA,
    TRUNCATED,
    RefusedError,
)

_SIZES = {"float": 4, "double": 8}
_INT = 2**31


class AvroReason:
    """Judges values of one writer's schema."""

    def __init__(self, writer: Node, limit: int) -> None:
        self._writer = writer
        self._limit = limit

    def check(self, value: bytes) -> None:
        """Return where the value can be read, and raises `RefusedError` where not."""
        walk = _Walk(value, self._limit)
        walk.node(self._writer)
        left = len(value) - walk.at
        if left:
            raise RefusedError(TRAILING_DATA, f"{left} more bytes after the value, which ends at byte {walk.at}")


class _Walk:
    def __init__(self, value: bytes, limit: int) -> None:
        self._value = value
        self._left = limit
        self._limit = limit
        self.at = 0

    def node(self, node: Node) -> None:
        match node:
            case Primitive(kind="null"):
                pass
            case Primitive(kind="boolean"):
                self._boolean()
            case Primitive(kind="int"):
                if not -_INT <= self._long() < _INT:
                    raise self._malformed("an int of more than 32 bits")
            case Primitive(kind="long"):
                self._long()
            case Primitive(kind="float" | "double"):
                self._skip(_SIZES[node.kind])
            case Primitive():
                self._text(utf8=node.kind == "string")
            case Fixed():
                self._skip(node.size)
            case Enum():
                self._index("enum", len(node.symbols))
            case Union():
                self.node(node.branches[self._index("union", len(node.branches))])
            case Record():
                for field in node.fields:
                    try:
                        self.node(field.type)
                    except RefusedError as refused:
                        raise refused.inside(field.name) from None
            case Array() | Map():
                self._items(node)

    def _items(self, node: Array | Map) -> None:
        item = node.items if isinstance(node, Array) else node.values
        wire = wire_of(item, native=False) if takes_bytes(item) else None
        least, width = (wire.least, wire.width) if wire else (0, 0)
        if isinstance(node, Map):
            least, width = least + 1, width + 20
        read = 0
        while count := self._long():
            if count < 0:
                count = -count
                self._long()
            if count * max(least, 1) > len(self._value):
                raise RefusedError(TOO_MANY_ITEMS, f"a block of {count} items in {len(self._value)} bytes")
            self._left -= count * width
            if self._left < 0:
                raise RefusedError(TOO_MANY_ITEMS, f"more items than fit {self._limit} bytes of memory")
            for _ in range(count):
                try:
                    if isinstance(node, Map):
                        self._text(utf8=True)
                    self.node(item)
                except RefusedError as refused:
                    raise refused.inside(f"[{read}]") from None
                read += 1

    def _long(self) -> int:
        value = shift = 0
        while True:
            if self.at >= len(self._value):
                raise self._truncated(1)
            byte = self._value[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                value &= 2**64 - 1
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift >= 64:
                raise self._malformed("a number of more than 10 bytes")

    def _boolean(self) -> None:
        at = self.at
        self._skip(1)
        if self._value[at] > 1:
            raise self._malformed("a boolean that is neither 0 nor 1")

    def _index(self, kind: str, count: int) -> int:
        index = self._long()
        if not 0 <= index < count:
            raise self._malformed(f"index {index}, and the {kind} has {count}")
        return index

    def _text(self, utf8: bool) -> None:
        size = self._long()
        if size < 0:
            raise self._malformed(f"a length of {size}")
        at = self.at
        self._skip(size)
        if utf8:
            try:
                self._value[at : self.at].decode()
            except UnicodeDecodeError as exc:
                byte = self._value[at + exc.start]
                raise RefusedError(INVALID_UTF8, f"byte 0x{byte:02x} at position {at + exc.start}") from None

    def _skip(self, size: int) -> None:
        if size > len(self._value) - self.at:
            raise self._truncated(size)
        self.at += size

    def _truncated(self, size: int) -> RefusedError:
        left = len(self._value) - self.at
        return RefusedError(TRUNCATED, f"{size} bytes more are wanted at byte {self.at}, and {left} are left")

    def _malformed(self, problem: str) -> RefusedError:
        return RefusedError(MALFORMED_AVRO, f"{problem}, before byte {self.at}")

"""The bytes of one message, walked without taking memory for them: why they are bad, and how much they would become.

Two bytes can be an item of a repeated field with a hundred columns, so a small message may become a large one. The
walk counts the cells, items times columns, and stops at a limit; and it says what is wrong where, which Google's
library does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

from penstock.decoders.framing import without_first
from penstock.decoders.protobuf.types import GROUP_END, GROUP_START, I32, I64, LEN, MESSAGES, SCALARS, VARINT
from penstock.decoders.refusal import (
    INVALID_UTF8,
    MALFORMED_PROTOBUF,
    TOO_DEEP,
    TOO_MANY_ITEMS,
    TRUNCATED,
    WRONG_MESSAGE_INDEX,
    Reason,
    RefusedError,
)

MAX_DEPTH = 100
"""Levels of messages and groups inside the message: what Google's library reads."""
MAX_CELLS = 2 * 1024 * 1024
NOT_UTF8 = "the bytes of the string are not UTF-8"

_F = FieldDescriptor


def check_wire(encoded: bytes, descriptor: Descriptor, max_cells: int = MAX_CELLS) -> None:
    """Walk a message. Raises `RefusedError` at the first thing that is wrong with it."""
    _Walk(encoded, max_cells).message(0, len(encoded), descriptor, 0, None)


def wire_type(field: FieldDescriptor) -> int:
    """How a single value of the field is written."""
    if field.type in SCALARS:
        return SCALARS[field.type].wire
    return GROUP_START if field.type == _F.TYPE_GROUP else LEN


@lru_cache(maxsize=1024)
def _cells(descriptor: Descriptor) -> int:
    """About how many cells one more message of this type takes: itself and its fields, those inside counted too."""
    return _count(descriptor, ())


def _count(descriptor: Descriptor, above: tuple[str, ...]) -> int:
    if descriptor.full_name in above:
        return 1
    inside = (*above, descriptor.full_name)
    fields = descriptor.fields
    return 1 + sum(_count(f.message_type, inside) if f.message_type and not f.is_repeated else 1 for f in fields)


class _Walk:
    def __init__(self, encoded: bytes, max_cells: int) -> None:
        self._bytes = encoded
        self._left = max_cells
        self._max_cells = max_cells

    def message(self, at: int, end: int, descriptor: Descriptor | None, depth: int, group: int | None) -> int:
        """Walk a message, or the group of that number; the position after it. Without a descriptor all is unknown."""
        if depth > MAX_DEPTH:
            raise RefusedError(TOO_DEEP, f"over {MAX_DEPTH} levels of messages or groups")
        known = descriptor.fields_by_number if descriptor else {}
        while at < end:
            tag, at = self._varint(at, end, 5)
            number, wire = tag >> 3, tag & 7
            if number == 0 or tag >> 32:
                raise RefusedError(MALFORMED_PROTOBUF, f"no field has the number {number}")
            field = known.get(number)
            if wire == GROUP_END:
                if number != group:
                    raise RefusedError(MALFORMED_PROTOBUF, f"a group {number} ends that did not begin")
                return at
            try:
                at = self._field(at, end, number, wire, field, depth)
            except RefusedError as refusal:
                raise refusal.inside(field.name if field else f"({number})") from None
        if group is not None:
            raise RefusedError(TRUNCATED, "the group does not end")
        return at

    def _field(self, at: int, end: int, number: int, wire: int, field: FieldDescriptor | None, depth: int) -> int:
        fits = field is not None and wire_type(field) == wire
        if field is not None and fits and field.is_repeated:
            self._take(_cells(field.message_type) if field.message_type else 1)
        if wire == VARINT:
            return self._varint(at, end, 10)[1]
        if wire in (I64, I32):
            return self._skip(at, end, 8 if wire == I64 else 4)
        if wire == GROUP_START:
            return self.message(at, end, field.message_type if field and fits else None, depth + 1, number)
        if wire != LEN:
            raise RefusedError(MALFORMED_PROTOBUF, f"there is no wire type {wire}")
        size, at = self._varint(at, end, 10)
        stop = self._skip(at, end, size)
        if field is not None and fits and field.type in MESSAGES:
            self.message(at, stop, field.message_type, depth + 1, None)
        elif field is not None and fits and field.type == _F.TYPE_STRING:
            self._check_text(at, stop)
        elif field is not None and not fits and field.is_repeated and field.type not in MESSAGES:
            self._packed(at, stop, wire_type(field))
        return stop

    def _packed(self, at: int, end: int, wire: int) -> None:
        if wire != VARINT:
            width = 8 if wire == I64 else 4
            if (end - at) % width:
                raise RefusedError(MALFORMED_PROTOBUF, f"{end - at} bytes of packed items of {width} bytes each")
            self._take((end - at) // width)
            return
        while at < end:
            self._take(1)
            at = self._varint(at, end, 10)[1]

    def _take(self, cells: int) -> None:
        self._left -= cells
        if self._left < 0:
            raise RefusedError(TOO_MANY_ITEMS, f"the items of the message would fill over {self._max_cells} cells")

    def _skip(self, at: int, end: int, size: int) -> int:
        if size > end - at:
            raise RefusedError(TRUNCATED, f"{size} bytes should follow, and {end - at} do")
        return at + size

    def _check_text(self, at: int, end: int) -> None:
        try:
            self._bytes[at:end].decode()
        except UnicodeDecodeError:
            raise RefusedError(INVALID_UTF8, NOT_UTF8) from None

    def _varint(self, at: int, end: int, most: int) -> tuple[int, int]:
        value = 0
        for place in range(most):
            if at + place >= end:
                raise RefusedError(TRUNCATED, "the bytes end inside a number")
            byte = self._bytes[at + place]
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value, at + place + 1
        raise RefusedError(MALFORMED_PROTOBUF, f"a number of more than {most} bytes")


# The message indexes after a schema id: which message of the schema the bytes are.
#
# A schema file may define several messages, and messages inside messages; the path to one is written as a count and
# that many positions, all zigzag varints. The first message, `[0]`, is by far the most common and is written as a lone
# 0.

Indexes = tuple[int, ...]

_FIRST = b"\0"
_MAX_LEVELS = 32
_MAX_BYTES = 10
_FEW_PREFIXES = 16


def by_message(
    bodies: pa.BinaryArray, rows: pa.UInt64Array, reasons: dict[int, Reason]
) -> Iterator[tuple[Indexes, pa.BinaryArray, pa.UInt64Array]]:
    """The messages without their indexes, by these; in their order within each. What has none gets its reason.

    Indexes are the same where they have the same bytes, and no others begin with those bytes. So one message stands
    for all that begin as it does, and only the first few kinds are looked for.
    """
    prefix = _FIRST
    for _ in range(_FEW_PREFIXES):
        same = pc.starts_with(bodies, prefix)
        if pc.any(same, min_count=0).as_py():
            everything = pc.all(same).as_py()
            found = bodies if everything else bodies.filter(same)
            yield read_indexes(prefix)[0], without_first(found, len(prefix)), rows if everything else rows.filter(same)
            if everything:
                return
            others = pc.invert(same)
            bodies, rows = bodies.filter(others), rows.filter(others)
        next_prefix = _next_prefix(bodies)
        if next_prefix is None:
            break
        prefix = next_prefix
    for at, (body, row) in enumerate(zip(bodies, rows, strict=True)):
        try:
            indexes, size = read_indexes(body.as_py())
        except RefusedError as refusal:
            reasons[row.as_py()] = refusal.reason
        else:
            yield indexes, without_first(bodies.slice(at, 1), size), rows.slice(at, 1)


def read_indexes(body: bytes) -> tuple[Indexes, int]:
    """The indexes at the beginning of the bytes, and how many bytes they take. Raises `RefusedError`."""
    count, at = _zigzag(body, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= _MAX_LEVELS:
        raise RefusedError(WRONG_MESSAGE_INDEX, f"{count} levels of message indexes")
    found: list[int] = []
    for _ in range(count):
        index, at = _zigzag(body, at)
        found.append(index)
    return tuple(found), at


def messages_at(file: FileDescriptor, indexes: Indexes) -> list[Descriptor]:
    """What the indexes may mean in a file.

    Producers differ in whether the entries of maps, which the compiler makes messages of, are counted. So a message
    inside one with maps may be at two places.
    """
    top = list(file.message_types_by_name.values())
    found = (_at(top, indexes, entries) for entries in (True, False))
    return list({message.full_name: message for message in found if message is not None}.values())


def _at(messages: Sequence[Descriptor], indexes: Indexes, entries: bool) -> Descriptor | None:
    found: Descriptor | None = None
    for index in indexes:
        counted = [message for message in messages if entries or not message.GetOptions().map_entry]
        if not 0 <= index < len(counted):
            return None
        found = counted[index]
        messages = found.nested_types
    return found


def _next_prefix(bodies: pa.BinaryArray) -> bytes | None:
    """The bytes of the indexes of the first message that has some."""
    for at in range(min(len(bodies), _FEW_PREFIXES)):
        body = bodies[at].as_py()
        try:
            return bytes(body[: read_indexes(body)[1]])
        except RefusedError:
            continue
    return None


def _zigzag(body: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_MAX_BYTES):
        if at + place >= len(body):
            raise RefusedError(TRUNCATED, "the bytes end inside the message indexes")
        byte = body[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise RefusedError(WRONG_MESSAGE_INDEX, f"a message index of more than {_MAX_BYTES} bytes")

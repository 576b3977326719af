"""The message indexes behind a schema id: which message of the schema the bytes are.

A schema file may define several messages, and messages inside messages; the path to one is written as a count and
that many positions, all zigzag varints. The first message, `[0]`, is by far the most common and is written as a lone 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor, FileDescriptor

from penstock.decoders.refusal import TRUNCATED, WRONG_MESSAGE_INDEX, Reason, RefusedError

Indexes = tuple[int, ...]

_FIRST = b"\0"
_MAX_LEVELS = 32
_MAX_BYTES = 10
_FEW_PREFIXES = 16


def by_message(
    bodies: pa.BinaryArray, rows: pa.UInt64Array, reasons: dict[int, Reason]
) -> Iterator[tuple[Indexes, pa.BinaryArray, pa.UInt64Array]]:
    """The messages behind their indexes, by these; in their order within each. What has none gets its reason.

    Indexes are the same where they have the same bytes, and no others begin with those bytes. So one message tells
    about all that begin as it does, and only the first few kinds are asked for.
    """
    prefix = _FIRST
    for _ in range(_FEW_PREFIXES):
        same = pc.starts_with(bodies, prefix)
        if pc.any(same, min_count=0).as_py():
            everything = pc.all(same).as_py()
            found = bodies if everything else bodies.filter(same)
            yield read_indexes(prefix)[0], _without_first(found, len(prefix)), rows if everything else rows.filter(same)
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
            yield indexes, _without_first(bodies.slice(at, 1), size), rows.slice(at, 1)


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


def _without_first(bodies: pa.BinaryArray, count: int) -> pa.BinaryArray:
    return pc.binary_replace_slice(bodies, 0, count, b"")


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

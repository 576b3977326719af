"""The Confluent framing: a zero byte, a schema id in four bytes, big endian, and the message.

Enters: values as they are in Kafka. Leaves: the ids as one array and the messages without their headers, found by
column operations alone. What is no frame gets its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decoders.refusal import SHORT_MESSAGE, WRONG_MAGIC, Reason

HEADER_BYTES = 5
_MAGIC = 0


@dataclass(frozen=True, slots=True)
class Framed:
    """Messages, the schema id of each and the row of the batch that each came from."""

    ids: npt.NDArray[np.int64]
    bodies: pa.BinaryArray
    rows: pa.UInt64Array

    def by_id(self) -> Iterator[tuple[int, pa.BinaryArray, pa.UInt64Array]]:
        """The messages of each id, in their order; the ids in the order in which they first come."""
        found, first = np.unique(self.ids, return_index=True)
        if len(found) == 1:
            yield int(found[0]), self.bodies, self.rows
            return
        for id in found[np.argsort(first)]:
            mine = pa.array(self.ids == id)
            yield int(id), self.bodies.filter(mine), self.rows.filter(mine)


def unframe(values: pa.BinaryArray, rows: pa.UInt64Array, reasons: dict[int, Reason]) -> Framed:
    """Take the headers off; `values` has no nulls, and `rows` says where each is in the batch."""
    sizes = np.diff(_offsets(values))
    whole = sizes >= HEADER_BYTES
    if not whole.all():
        for at in np.flatnonzero(~whole):
            bytes_ = "1 byte" if sizes[at] == 1 else f"{sizes[at]} bytes"
            reasons[rows[int(at)].as_py()] = Reason(
                SHORT_MESSAGE, f"{bytes_}, and the header of a schema id alone takes {HEADER_BYTES}"
            )
        values, rows = values.filter(pa.array(whole)), rows.filter(pa.array(whole))
    headers = _headers(values)
    magic = headers[:, 0] == _MAGIC
    if not magic.all():
        for at in np.flatnonzero(~magic):
            reasons[rows[int(at)].as_py()] = Reason(
                WRONG_MAGIC, f"the first byte is 0x{headers[at, 0]:02x}, and a schema id begins with 0x00"
            )
        kept = pa.array(magic)
        values, rows, headers = values.filter(kept), rows.filter(kept), headers[magic]
    ids = headers[:, 1:].astype(np.int64) @ np.array([1 << 24, 1 << 16, 1 << 8, 1], np.int64)
    return Framed(ids, without_first(values, HEADER_BYTES), rows)


def without_first(values: pa.BinaryArray, count: int) -> pa.BinaryArray:
    """Each value without its first `count` bytes, which it has. (Arrow's own binary_slice fails on sliced arrays.)"""
    return pc.binary_replace_slice(values, 0, count, b"")


def _headers(values: pa.BinaryArray) -> npt.NDArray[np.uint8]:
    """The first bytes of each value, a row each."""
    found: npt.NDArray[np.uint8] = _data(values)[_offsets(values)[:-1, None] + np.arange(HEADER_BYTES)]
    return found


def _offsets(values: pa.BinaryArray) -> npt.NDArray[np.int32]:
    buffer = values.buffers()[1]
    if buffer is None or not len(values):
        return np.zeros(1, np.int32)
    return np.frombuffer(buffer, np.int32)[values.offset : values.offset + len(values) + 1]


def _data(values: pa.BinaryArray) -> npt.NDArray[np.uint8]:
    buffer = values.buffers()[2]
    return np.frombuffer(buffer, np.uint8) if buffer is not None else np.empty(0, np.uint8)

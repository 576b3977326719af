"""Many messages at once: Google's library judges the block, the fast reader reads it.

The judge reads all messages of a block in one call, as the items of one message, and says whether their bytes are
right: the fast reader alone takes some that are not, and may panic over others. What comes out is finished by
`protobuf_columns`, and the rows that it suspects are read by the careful reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Read

from penstock.decoders.assembly import Pieces
from penstock.decoders.protobuf.columns import Finisher
from penstock.decoders.protobuf.flat import fast_reader, no_fast_form
from penstock.decoders.protobuf.single import SingleReader
from penstock.decoders.protobuf.types import Narrowed, message_of
from penstock.decoders.protobuf.wire import MAX_CELLS, check_wire
from penstock.decoders.refusal import Reason, RefusedError
from penstock.registry.protobuf import load, read_descriptors

_FEW_ROWS = 8
_PART_ROWS = 16_384
_PART_CELLS = 4 * MAX_CELLS
_ITEMS = b"\x0a"


@lru_cache(maxsize=64)
def block_reader(descriptors: bytes, message: str, narrowed: Narrowed = frozenset()) -> BlockReader:
    """The reader of a message, made once a process."""
    return BlockReader(descriptors, message, narrowed)


class BlockReader:
    """Reads blocks of messages into the columns of the schema."""

    def __init__(self, descriptors: bytes, message: str, narrowed: Narrowed) -> None:
        self.message = message_of(descriptors, message, narrowed)
        self.no_fast_form = no_fast_form(self.message)
        self._fast = None if self.no_fast_form else fast_reader(self.message)
        self._one, self._many = _classes(descriptors, message)
        self._single = SingleReader(self.message, self._one)

    def read(self, values: pa.BinaryArray, rows: pa.UInt64Array, pieces: Pieces, reasons: dict[int, Reason]) -> None:
        """Put the columns of the good messages into `pieces` and why the others are bad into `reasons`."""
        values, rows = self._without_heavy(values, rows, reasons)
        for start, end in self._parts(values):
            some, theirs = values.slice(start, end - start), rows.slice(start, end - start)
            if not _parses(self._many, _as_items(some)):
                # To parse them one by one is cheap beside finding the bad ones in ever smaller blocks.
                kept = pa.array([_parses(self._one, value) for value in some.to_pylist()], pa.bool_())
                bad = pc.invert(kept)
                self._read_singly(some.filter(bad), theirs.filter(bad), pieces, reasons)
                some, theirs = some.filter(kept), theirs.filter(kept)
            self._read_judged(some, theirs, pieces, reasons)

    def _read_judged(
        self, values: pa.BinaryArray, rows: pa.UInt64Array, pieces: Pieces, reasons: dict[int, Reason]
    ) -> None:
        if self._fast is None:
            self._read_singly(values, rows, pieces, reasons)
            return
        try:
            read = self._fast.array_to_record_batch(values)
        except BaseException as exc:
            # A panic of the fast reader is no Exception. What the judge let through has to be read by somebody.
            if not isinstance(exc, ValueError) and type(exc).__name__ != "PanicException":
                raise
            if len(values) <= _FEW_ROWS:
                self._read_singly(values, rows, pieces, reasons)
                return
            half = len(values) // 2
            self._read_judged(values.slice(0, half), rows.slice(0, half), pieces, reasons)
            self._read_judged(values.slice(half), rows.slice(half), pieces, reasons)
            return
        finisher = Finisher()
        columns = finisher.columns(self.message, read)
        suspects = finisher.suspects
        if len(suspects):
            doubtful = np.zeros(len(values), bool)
            doubtful[suspects] = True
            self._read_singly(values.filter(pa.array(doubtful)), rows.filter(pa.array(doubtful)), pieces, reasons)
            sure = pa.array(~doubtful)
            columns, rows = [column.filter(sure) for column in columns], rows.filter(sure)
        pieces.add(columns, rows)

    def _read_singly(
        self, values: pa.BinaryArray, rows: pa.UInt64Array, pieces: Pieces, reasons: dict[int, Reason]
    ) -> None:
        found: list[tuple[Any, ...]] = []
        good: list[int] = []
        for value, row in zip(values.to_pylist(), rows.to_pylist(), strict=True):
            try:
                found.append(self._single.read(value))
                good.append(row)
            except RefusedError as refusal:
                reasons[row] = refusal.reason
        if good:
            columns = zip(self.message.fields, zip(*found, strict=True), strict=True)
            pieces.add([pa.array(column, field.type) for field, column in columns], pa.array(good, pa.uint64()))

    def _without_heavy(
        self, values: pa.BinaryArray, rows: pa.UInt64Array, reasons: dict[int, Reason]
    ) -> tuple[pa.BinaryArray, pa.UInt64Array]:
        """Without the messages that would take too much memory, before any is taken."""
        refused: list[int] = []
        for at in np.flatnonzero(self._most_cells(values) > MAX_CELLS).tolist():
            try:
                check_wire(values[at].as_py(), self.message.descriptor)
            except RefusedError as refusal:
                reasons[rows[at].as_py()] = refusal.reason
                refused.append(at)
        if not refused:
            return values, rows
        kept = pa.array(~np.isin(np.arange(len(values)), refused))
        return values.filter(kept), rows.filter(kept)

    def _parts(self, values: pa.BinaryArray) -> Iterator[tuple[int, int]]:
        """Where to cut the values so that no part takes too much memory at once."""
        most = np.cumsum(np.maximum(self._most_cells(values), _PART_CELLS // _PART_ROWS))
        cuts = [0, *(np.flatnonzero(np.diff(most // _PART_CELLS)) + 1).tolist(), len(values)]
        return pairwise(cuts)

    def _most_cells(self, values: pa.BinaryArray) -> npt.NDArray[np.int64]:
        """More cells than this a message cannot have: an item takes two bytes, a packed one takes one."""
        sizes = np.asarray(pc.binary_length(values)).astype(np.int64)
        return sizes * max(1, (self.message.leaves + 1) // 2)


def _parses(read_as: type[Read], encoded: bytes | memoryview) -> bool:
    try:
        read_as.FromString(encoded)  # type: ignore[arg-type]
    except DecodeError:
        return False
    return True


def _as_items(values: pa.BinaryArray) -> memoryview:
    """The messages as one: each with the tag of an item and its length in front."""
    sizes, which = np.unique(np.asarray(pc.binary_length(values)), return_inverse=True)
    heads = pa.array([_ITEMS + _varint(int(size)) for size in sizes], pa.binary()).take(pa.array(which))
    joined = pc.binary_join_element_wise(heads, values, b"")
    return memoryview(joined.buffers()[2]) if len(values) else memoryview(b"")


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _classes(descriptors: bytes, message: str) -> tuple[type[Read], type[Read]]:
    """What reads one message, and what reads many of them."""
    files = list(read_descriptors(descriptors).file)
    many = FileDescriptorProto(name="penstock/many.proto", package="penstock.many", syntax="proto3")
    many.dependency.extend(file.name for file in files)
    items = many.message_type.add(name="Many").field.add(name="items", number=1, type_name=f".{message}")
    items.type, items.label = FieldDescriptorProto.TYPE_MESSAGE, FieldDescriptorProto.LABEL_REPEATED
    pool = load([*files, many])
    found = (pool.FindMessageTypeByName(name) for name in (message, "penstock.many.Many"))
    one, several = (message_factory.GetMessageClass(descriptor) for descriptor in found)
    return one, several

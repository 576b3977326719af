"""Many messages at once: Google's library judges the block, the fast reader reads it, and its columns are finished
here.

The judge reads all messages of a block in one call, as the items of one message, and says whether their bytes are
right: the fast reader alone takes some that are not, and may panic over others.

The fast reader has its own ideas about well-known types, enums and maps, and takes the last of two where Protobuf
merges them. So it is given other descriptors for the same bytes: an enum is its number, a map is a list of its entries,
a well-known type is a message like any other. What is read as a whole (JSON, a message without fields) is a list of the
pieces in which it came, which are the merged message when put together. It also keeps both of two members of a oneof
and both of two entries of a map with one key, and knows no required fields, no closed enums and no limits of a
Timestamp. Rows in which any of this matters are named as suspects, and the careful reader reads those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import ptars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Read

from penstock.decoders.batch import BlockError, Format
from penstock.decoders.protobuf.single import FIRST_SECOND, LAST_NANO, LAST_SECOND, json_text, read_message
from penstock.decoders.protobuf.types import Field, Message, Narrowed, Shape, Value, message_of, range_of
from penstock.decoders.protobuf.wire import MAX_CELLS, check_wire
from penstock.decoders.refusal import MALFORMED_PROTOBUF, RefusedError
from penstock.registry.protobuf import load, read_descriptors

_PACKAGE = "penstock.flat"
_WHOLE = (Shape.JSON, Shape.EMPTY)


def no_fast_form(message: Message) -> str | None:
    """Why the fast reader cannot read the message: it does not know groups."""
    for field in message.fields:
        for value in filter(None, (field.key, field.value)):
            if value.field.type == FieldDescriptor.TYPE_GROUP:
                return f"{value.field.full_name} is a group"
            inner = no_fast_form(value.message) if value.message else None
            if inner:
                return inner
    return None


def fast_reader(message: Message) -> Any:
    """The fast reader, a `ptars` handler, of a message that has a fast form."""
    file = FileDescriptorProto(name="penstock/flat.proto", package=_PACKAGE, syntax="proto3")
    name = _add_message(file, message)
    found = load([file]).FindMessageTypeByName(f"{_PACKAGE}.{name}")
    return ptars.HandlerPool([found.file]).get_for_message(found)


def _add_message(file: FileDescriptorProto, message: Message) -> str:
    flat = DescriptorProto()
    for field in message.fields:
        if field.key:
            entry = DescriptorProto()
            _add_field(file, entry, 1, field.key, False, False)
            _add_field(file, entry, 2, field.value, False, False)
            added = flat.field.add(name=f"f{field.number}", number=field.number)
            added.label = FieldDescriptorProto.LABEL_REPEATED
            added.type = FieldDescriptorProto.TYPE_MESSAGE
            added.type_name = f".{_PACKAGE}.{_named(file, entry)}"
        else:
            _add_field(file, flat, field.number, field.value, field.repeated, _has_null(field))
    return _named(file, flat)


def _named(file: FileDescriptorProto, message: DescriptorProto) -> str:
    message.name = f"M{len(file.message_type)}"
    file.message_type.append(message)
    return message.name


def _add_field(
    file: FileDescriptorProto, flat: DescriptorProto, number: int, value: Value, repeated: bool, presence: bool
) -> None:
    added = flat.field.add(name=f"f{number}", number=number)
    if value.shape in _WHOLE:
        repeated, added.type = True, FieldDescriptorProto.TYPE_BYTES
    elif value.message:
        added.type = FieldDescriptorProto.TYPE_MESSAGE
        added.type_name = f".{_PACKAGE}.{_add_message(file, value.message)}"
    elif value.shape is Shape.ENUM:
        added.type = FieldDescriptorProto.TYPE_INT32
    else:
        added.type = value.field.type  # type: ignore[assignment]
    added.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    if presence and not repeated:
        added.proto3_optional = True
        added.oneof_index = len(flat.oneof_decl)
        flat.oneof_decl.add(name=f"_f{number}")


def _has_null(field: Field) -> bool:
    return field.presence and field.value.message is None and field.value.shape not in _WHOLE


Rows = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]
"""From positions in an array to the rows of the block that they are part of."""


def _same(positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return positions


class Finisher:
    """Finishes the columns of one block and gathers the rows that need a second look."""

    def __init__(self) -> None:
        self._suspects: list[npt.NDArray[np.int64]] = []

    @property
    def suspects(self) -> npt.NDArray[np.int64]:
        """The rows in which the columns may be wrong, in their order."""
        return np.unique(np.concatenate(self._suspects)) if self._suspects else np.empty(0, np.int64)

    def columns(self, message: Message, read: pa.RecordBatch) -> list[pa.Array]:
        """The columns of the message, out of what the fast reader gave."""
        return self._fields(message, [read.column(f"f{field.number}") for field in message.fields], None, _same)

    def _fields(
        self, message: Message, arrays: Sequence[pa.Array], there: pa.BooleanArray | None, rows: Rows
    ) -> list[pa.Array]:
        """`there` says where the message itself is; None for everywhere."""
        for members in message.oneofs:
            given = sum(np.asarray(_is_given(arrays[at]), np.int8) for at in members)
            self.suspect(given > 1, rows)
        for field, array in zip(message.fields, arrays, strict=True):
            if field.required and (array.null_count or pt.is_list(array.type)):
                missing = pc.invert(_is_given(array))
                self.suspect(missing if there is None else pc.and_(missing, there), rows)
        return [self._field(field, array, rows) for field, array in zip(message.fields, arrays, strict=True)]

    def _field(self, field: Field, array: pa.Array, rows: Rows) -> pa.Array:
        if field.key:
            return self._map(field, field.key, array, rows)
        if field.repeated:
            items = self._value(field.value, array.values, True, _inside(array, rows))
            return pa.ListArray.from_arrays(array.offsets, items, type=field.type)
        found = self._value(field.value, array, False, rows)
        if field.default is not None and found.null_count:
            return pc.fill_null(found, pa.scalar(field.default, field.type))
        return found

    def _map(self, field: Field, key: Value, array: pa.ListArray, rows: Rows) -> pa.MapArray:
        entries, inside = array.values, _inside(array, rows)
        sizes = np.diff(np.asarray(array.offsets))
        if sizes.max(initial=0) > 1:
            codes = entries.field(0).dictionary_encode()
            owners = np.repeat(np.arange(len(sizes)), sizes)
            pairs = np.sort(owners * len(codes.dictionary) + np.asarray(codes.indices))
            again = pairs[1:][pairs[1:] == pairs[:-1]]
            if len(again):
                self._suspects.append(rows(again // len(codes.dictionary)))
        keys = self._value(key, entries.field(0), True, inside)
        items = self._value(field.value, entries.field(1), True, inside)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=field.type)

    def _value(self, value: Value, array: pa.Array, always: bool, rows: Rows) -> pa.Array:
        """`always`: an item of a list or map is there even where its bytes are not."""
        match value.shape:
            case Shape.SCALAR:
                return self._scalar(value, array, rows)
            case Shape.ENUM:
                return self._enum(value, array, rows)
            case Shape.JSON:
                return self._json(value, array, always, rows)
            case Shape.EMPTY:
                known = pa.repeat(pa.scalar(True), len(array))
                return known if always else pc.if_else(_is_given(array), known, None)
        assert value.message is not None
        there = None if always or not array.null_count else array.is_valid()
        parts = [array.field(at) for at in range(len(value.message.fields))]
        if value.shape is Shape.TIMESTAMP:
            return self._timestamp(parts, there, rows)
        parts = self._fields(value.message, parts, there, rows)
        if value.shape is Shape.WRAPPER:
            return parts[0] if there is None else pc.if_else(there, parts[0], pa.scalar(None, value.type))
        mask = None if there is None else pc.invert(there)
        return pa.StructArray.from_arrays(parts, fields=list(value.type), mask=mask)

    def _scalar(self, value: Value, array: pa.Array, rows: Rows) -> pa.Array:
        if value.reads:
            first, last = range_of(value.reads)
            numbers = np.asarray(array.fill_null(0))
            self.suspect((numbers < first) | (numbers > last), rows)
            return array.cast(value.type, safe=False)
        return array if array.type == value.type else array.cast(value.type)

    def _enum(self, value: Value, array: pa.Int32Array, rows: Rows) -> pa.StringArray:
        assert value.field.enum_type is not None
        places = pc.index_in(array, pa.array(value.names.keys(), pa.int32()))
        names = pa.array(value.names.values(), pa.string()).take(places)
        if names.null_count == array.null_count:
            return names
        unknown = pc.and_(names.is_null(), array.is_valid())
        if value.field.enum_type.is_closed:
            self.suspect(unknown, rows)
        return pc.if_else(unknown, array.cast(pa.string()), names)

    def _json(self, value: Value, array: pa.Array, always: bool, rows: Rows) -> pa.StringArray:
        assert value.field.message_type is not None
        texts: list[str | None] = []
        for at, item in enumerate(array.to_pylist()):
            encoded = item if isinstance(item, bytes) else b"".join(item)
            try:
                absent = item == [] and not always
                texts.append(None if absent else json_text(value.field.message_type.full_name, encoded))
            except (RefusedError, DecodeError):
                texts.append(None)
                self._suspects.append(rows(np.array([at])))
        return pa.array(texts, pa.string())

    def _timestamp(self, parts: list[pa.Array], there: pa.BooleanArray | None, rows: Rows) -> pa.TimestampArray:
        seconds, nanos = (np.asarray(part).astype(np.int64) for part in parts)
        early_or_late = (seconds < FIRST_SECOND) | (seconds > LAST_SECOND)
        self.suspect(early_or_late | (nanos < 0) | (nanos > LAST_NANO), rows)
        with np.errstate(over="ignore"):
            microseconds = seconds * 1_000_000 + nanos // 1000
        mask = None if there is None else np.asarray(pc.invert(there))
        return pa.array(microseconds, pa.int64(), mask=mask).view(pa.timestamp("us", tz="UTC"))

    def suspect(self, doubtful: pa.BooleanArray | npt.NDArray[np.bool_], rows: Rows = _same) -> None:
        """Have the careful reader read the rows that are true in `doubtful`."""
        found = np.flatnonzero(np.asarray(doubtful))
        if len(found):
            self._suspects.append(rows(found))


def _inside(array: pa.ListArray, rows: Rows) -> Rows:
    """For the items of lists: `rows` of the lists that hold them."""
    offsets = np.asarray(array.offsets)
    return lambda positions: rows(np.searchsorted(offsets, positions, "right") - 1)


def _is_given(array: pa.Array) -> pa.BooleanArray:
    """Where a field came at all; what is read as a whole comes as a list of pieces."""
    return pc.greater(pc.list_value_length(array), 0) if pt.is_list(array.type) else array.is_valid()


_ITEMS = b"\x0a"


@lru_cache(maxsize=64)
def protobuf_format(descriptors: bytes, message: str, narrowed: Narrowed = frozenset()) -> ProtobufFormat:
    """The readers of a message, made once a process."""
    return ProtobufFormat(descriptors, message, narrowed)


class ProtobufFormat(Format):
    """Reads messages into the columns of the schema."""

    def __init__(self, descriptors: bytes, message: str, narrowed: Narrowed) -> None:
        self.message = message_of(descriptors, message, narrowed)
        self.schema = self.message.schema
        self.no_fast_form = no_fast_form(self.message)
        self.is_fast = self.no_fast_form is None
        self.block_bytes = min(Format.block_bytes, 4 * MAX_CELLS // self.message.most_cells)
        self._fast: Any = fast_reader(self.message) if self.is_fast else None
        self._one, self._many = _classes(descriptors, message)

    def read_single(self, value: bytes) -> tuple[Any, ...]:
        """The values of the columns. Raises `RefusedError`."""
        return read_message(self.message, self._one, value)

    def read_block(self, values: pa.BinaryArray) -> tuple[list[pa.Array], npt.NDArray[np.int64]]:
        """The columns, and the messages for which they may be wrong. Raises `BlockError`."""
        bad = self._too_heavy(values)
        values = _without(values, bad)
        if not _parses(self._many, _as_items(values)):
            # Parsing them one by one is cheaper than finding the bad ones in ever smaller blocks.
            broken = np.array([not _parses(self._one, value) for value in values.to_pylist()])
            values, bad = _without(values, broken), bad | broken
        try:
            read = self._fast.array_to_record_batch(values)
        except BaseException as exc:
            # A panic of the fast reader is not an Exception. The careful reader then reads these messages.
            if not isinstance(exc, ValueError) and type(exc).__name__ != "PanicException":
                raise
            raise BlockError(MALFORMED_PROTOBUF, "the fast reader does not take the message") from None
        finisher = Finisher()
        finisher.suspect(bad)
        return finisher.columns(self.message, read), finisher.suspects

    def _too_heavy(self, values: pa.BinaryArray) -> npt.NDArray[np.bool_]:
        """Which messages would take too much memory."""
        sizes = np.asarray(pc.binary_length(values)).astype(np.int64)
        heavy = sizes * self.message.most_cells > MAX_CELLS
        for at in np.flatnonzero(heavy).tolist():
            try:
                check_wire(values[at].as_py(), self.message.descriptor)
                heavy[at] = False
            except RefusedError:
                continue
        return heavy


def _without(values: pa.BinaryArray, bad: npt.NDArray[np.bool_]) -> pa.BinaryArray:
    """The messages with empty ones in place of the bad ones, which keeps the others in their places."""
    return pc.if_else(bad, b"", values) if bad.any() else values


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

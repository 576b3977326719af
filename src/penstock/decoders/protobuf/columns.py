"""The columns that the fast reader gives, brought to the schema's types, with the rows it may have been wrong about.

The fast reader keeps both of two members of a oneof, and both of two entries of a map with one key; it knows no
required fields, no closed enums and no limits of a Timestamp. Rows in which any of this matters are named as
suspects, and the careful reader reads those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from google.protobuf.message import DecodeError

from penstock.decoders.protobuf.types import Field, Message, Shape, Value
from penstock.decoders.protobuf.values import FIRST_SECOND, LAST_NANO, LAST_SECOND, RANGES, json_text
from penstock.decoders.refusal import RefusedError

Rows = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]
"""From positions in an array to the rows of the block that they are part of."""


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
            self._suspect(given > 1, rows)
        for field, array in zip(message.fields, arrays, strict=True):
            if field.required and (array.null_count or pt.is_list(array.type)):
                missing = pc.invert(_is_given(array))
                self._suspect(missing if there is None else pc.and_(missing, there), rows)
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
            first, last = RANGES[value.reads]
            numbers = np.asarray(array.fill_null(0))
            self._suspect((numbers < first) | (numbers > last), rows)
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
            self._suspect(unknown, rows)
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
        self._suspect(early_or_late | (nanos < 0) | (nanos > LAST_NANO), rows)
        with np.errstate(over="ignore"):
            microseconds = seconds * 1_000_000 + nanos // 1000
        mask = None if there is None else np.asarray(pc.invert(there))
        return pa.array(microseconds, pa.int64(), mask=mask).view(pa.timestamp("us", tz="UTC"))

    def _suspect(self, doubtful: pa.BooleanArray | npt.NDArray[np.bool_], rows: Rows) -> None:
        found = np.flatnonzero(np.asarray(doubtful))
        if len(found):
            self._suspects.append(rows(found))


def _same(positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return positions


def _inside(array: pa.ListArray, rows: Rows) -> Rows:
    """For the items of lists: `rows` of the lists that hold them."""
    offsets = np.asarray(array.offsets)
    return lambda positions: rows(np.searchsorted(offsets, positions, "right") - 1)


def _is_given(array: pa.Array) -> pa.BooleanArray:
    """Where a field came at all; what is read as a whole comes as a list of pieces."""
    return pc.greater(pc.list_value_length(array), 0) if pt.is_list(array.type) else array.is_valid()

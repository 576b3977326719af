"""Rows to Protobuf, whole record batches at a time: the bytes of the message, without any framing.

A null is a field that is not set, and a null list or map is an empty one: Protobuf cannot tell them apart. What it
has no null for (an item of a list, a value of a map, a field without presence) must not be null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import ptars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from penstock.registry.protobuf import find_message
from penstock.sinks.kafka.encode.protobuf_files import compiled, message_index, message_of
from penstock.sinks.kafka.encode.shapes import (
    Misfit,
    Rule,
    Shape,
    UnfitError,
    cast_to,
    encodable,
    is_bytes,
    is_listed,
    is_text,
    misfits,
)
from penstock.sinks.kafka.row_json import texts

_CONFIG = ptars.PtarsConfig(timestamp_unit="us", enum_repr="string")
_SMALL = (pa.int8(), pa.int16())
_SIGNED = (*_SMALL, pa.int32())
_NUMBERS: Mapping[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.bool_(): (pa.bool_(),),
    pa.int32(): _SIGNED,
    pa.int64(): (*_SIGNED, pa.int64()),
    pa.uint32(): _SIGNED,
    pa.uint64(): (*_SIGNED, pa.int64()),
    pa.float32(): (*_SMALL, pa.float32()),
    pa.float64(): (*_SIGNED, pa.float32(), pa.float64()),
}
# 0001-01-01 to 9999-12-31, which is what google.protobuf.Timestamp can say.
_FIRST_MICROSECOND, _LAST_MICROSECOND = -62_135_596_800_000_000, 253_402_300_799_999_999


@dataclass(frozen=True)
class ProtobufRows:
    """Writes rows as one message of a schema."""

    shape: Shape
    descriptors: bytes
    message: str
    index: bytes
    """The message's place in its file, as the framing has it."""
    slow: str | None = None

    @classmethod
    def of(cls, columns: pa.Schema, text: str, references: Mapping[str, str], name: str | None) -> ProtobufRows:
        """Writes `columns` as a message, the first where no name is given. Raises `UnfitError`."""
        descriptors = compiled(text, references)
        message = message_of(descriptors, name)
        target = _handler(descriptors, message.full_name).schema()
        shape = _struct(pa.struct(columns), target, message, "")
        return cls(shape, descriptors, message.full_name, message_index(message))

    def misfits(self, rows: pa.RecordBatch) -> Iterator[Misfit]:
        """The rows that the message cannot hold."""
        return misfits(rows.to_struct_array(), self.shape)

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """The bytes of each row; `misfits` must be out."""
        return _handler(self.descriptors, self.message).record_batch_to_array(encodable(rows, self.shape))


@lru_cache(maxsize=64)
def _handler(descriptors: bytes, message: str) -> Any:
    found = find_message(descriptors, message)
    return ptars.HandlerPool([found.file], _CONFIG).get_for_message(found)


def _struct(kind: pa.StructType, target: Any, message: Descriptor, path: str) -> Shape:
    """`target` is what the encoder takes for the message: a value of another type it would leave out silently."""
    wanted = {field.name: field for field in target}
    unknown = [field.name for field in kind if field.name not in wanted]
    if unknown:
        raise UnfitError(f"{path or 'the row'}: the message {message.full_name} has no field {', '.join(unknown)}")
    missing = [name for name, field in message.fields_by_name.items() if field.is_required and name not in kind.names]
    if missing:
        raise UnfitError(f"{path or 'the row'}: the message {message.full_name} requires {', '.join(missing)}")
    shapes = []
    for field in kind:
        inner = f"{path}.{field.name}" if path else field.name
        shapes.append((field.name, _value(field.type, wanted[field.name], message.fields_by_name[field.name], inner)))
    return Shape(path, True, fields=tuple(shapes))


def _value(kind: pa.DataType, target: pa.Field, field: FieldDescriptor, path: str) -> Shape:
    if is_listed(kind) and types.is_list(target.type):
        return Shape(path, False, item=_value(kind.value_type, target.type.value_field, field, f"{path}[]"))
    if types.is_map(kind) and types.is_map(target.type) and is_text(kind.key_type) and is_text(target.type.key_type):
        values = _message(field).fields_by_name["value"]
        return Shape(path, False, item=_value(kind.item_type, target.type.item_field, values, f"{path}[]"))
    if types.is_struct(kind) and types.is_struct(target.type):
        shape = _struct(kind, target.type, _message(field), path)
        return Shape(path, not target.nullable, fields=shape.fields)
    plain = None if types.is_nested(kind) else _plain(kind, target.type, field)
    if plain is None:
        raise UnfitError(f"{path}: the column is {kind}, the message has {_told(field)}")
    convert, rules = plain
    return Shape(path, not target.nullable, convert, rules)


def _message(field: FieldDescriptor) -> Descriptor:
    assert field.message_type is not None
    return field.message_type


def _plain(kind: pa.DataType, target: pa.DataType, field: FieldDescriptor) -> tuple[Any, tuple[Rule, ...]] | None:
    if field.enum_type is not None:
        symbols = tuple(value.name for value in field.enum_type.values)
        rule = Rule(partial(_none_of, symbols=symbols), f"is none of {', '.join(symbols[:10])}")
        return (partial(cast_to, kind=pa.string()), (rule,)) if is_text(kind) else None
    if is_text(target):
        written = types.is_decimal(kind) or types.is_date32(kind) or (types.is_timestamp(kind) and not kind.tz)
        if is_text(kind):
            return (None if kind == target else partial(cast_to, kind=target)), ()
        return (texts, ()) if written else None
    if types.is_timestamp(target):
        moment = types.is_timestamp(kind) and bool(kind.tz)
        rule = Rule(_beyond_years, "is outside the years 1 to 9999")
        return (partial(cast_to, kind=target), (rule,)) if moment else None
    if is_bytes(target):
        return (partial(cast_to, kind=target), ()) if is_bytes(kind) else None
    if kind not in _NUMBERS.get(target, ()):
        return None
    rules = (Rule(_negative, "is negative"),) if types.is_unsigned_integer(target) else ()
    return (partial(cast_to, kind=target) if kind != target else None), rules


def _none_of(values: pa.Array, symbols: tuple[str, ...]) -> pa.Array:
    return pc.and_(values.is_valid(), pc.invert(pc.is_in(values.cast(pa.string()), pa.array(symbols, pa.string()))))


def _negative(values: pa.Array) -> pa.Array:
    return pc.less(values, 0)


def _beyond_years(values: pa.Array) -> pa.Array:
    micros = values.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    return pc.or_(pc.less(micros, _FIRST_MICROSECOND), pc.greater(micros, _LAST_MICROSECOND))


def _told(field: FieldDescriptor) -> str:
    """A field's type in few words."""
    if field.message_type is not None:
        return str(field.message_type.full_name)
    if field.enum_type is not None:
        return str(field.enum_type.full_name)
    return _TYPE_NAMES[field.type]


_TYPE_NAMES = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in vars(FieldDescriptor)
    if name.startswith("TYPE_")
}

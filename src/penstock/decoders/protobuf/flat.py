"""The same messages in descriptors made for the fast reader, in which nothing has a meaning of its own.

The fast reader has its own ideas about well-known types, enums and maps, and it takes the last of two where Protobuf
merges them. Here they are told in other words with the same bytes: an enum is its number, a map is a list of its
entries, a well-known type is a message like any other. What is read as a whole (JSON, a message without fields) is a
list of the pieces in which it came: put together they are the merged message. The columns are finished by
`protobuf_columns`.
"""

from __future__ import annotations

from typing import Any

import ptars
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from penstock.decoders.protobuf.types import Field, Message, Shape, Value
from penstock.registry.protobuf import load

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

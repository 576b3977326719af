"""Rows to Protobuf, whole record batches at a time: the bytes of the message, without any framing; and a schema for
them.

A null is a field that is not set, and a null list or map is an empty one: Protobuf cannot tell them apart. What it has
no null for (an item of a list, a value of a map, a field without presence) must not be null.

Where nobody gave a schema, one is made of the columns: proto3, every plain column `optional`, so that a null is not a
zero. TIMESTAMP is `google.protobuf.Timestamp`; DECIMAL, DATE and TIMESTAMP_NTZ are text, as in JSON. A field's number
never changes: numbers are those of the version before, by name; a new field gets a new one, and that of a removed one
is reserved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count
from typing import Any

import ptars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from penstock.errors import DefinitionError, MissingError
from penstock.registry import ReferencedSchema, RegisteredSchema
from penstock.registry.protobuf import find_message, message_names, protobuf_reader
from penstock.sinks.arrow_types import is_bytes, is_listed, is_text
from penstock.sinks.kafka.encode.avro import FIELD_NAME
from penstock.sinks.kafka.encode.shapes import (
    Misfit,
    Rule,
    Shape,
    UnfitError,
    cast_to,
    encodable,
    misfits,
    one_of,
)
from penstock.sinks.row_json import texts

_TIMESTAMP = "google.protobuf.Timestamp"
_IMPORT = f'import "{_TIMESTAMP.replace(".", "/").lower()}.proto";'
_PLAIN = {
    pa.bool_(): "bool",
    pa.int8(): "int32",
    pa.int16(): "int32",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "string",
}


def protobuf_schema(columns: pa.Schema, name: str, before: DescriptorProto | None = None) -> str:
    """The text of a file with one message for these columns. `name` may have a package before its last dot."""
    package, _, own = name.rpartition(".")
    body = list(_message_text(columns, own, before, ""))
    head = ['syntax = "proto3";']
    head += [f"package {package};"] if package else []
    head += [_IMPORT] if any(_TIMESTAMP in line for line in body) else []
    return "\n".join([*head, "", *body]) + "\n"


def _message_text(fields: Iterable[pa.Field], name: str, before: DescriptorProto | None, indent: str) -> Iterator[str]:
    columns = list(fields)
    numbers, gone = _numbers([field.name for field in columns], before)
    taken = {field.name for field in columns}
    yield f"{indent}message {name} {{"
    inner = f"{indent}  "
    for field in columns:
        if not FIELD_NAME.fullmatch(field.name):
            raise UnfitError(
                f'no field in Protobuf can be called "{field.name}": letters, digits and _ only, no digit first; '
                "rename it"
            )
        struct = _struct_in(field.type)
        nested = _free_name(field.name, taken) if struct is not None else ""
        if struct is not None:
            yield from _message_text(struct, nested, _nested(before, field.name), inner)
        yield f"{inner}{_declared(field, nested)} {field.name} = {numbers[field.name]};"
    if gone:
        yield f"{inner}reserved {', '.join(gone)};"
    yield f"{indent}}}"


def _numbers(names: Iterable[str], before: DescriptorProto | None) -> tuple[dict[str, int], list[str]]:
    """A number for each name, and those that must not be used again."""
    known = {field.name: field.number for field in before.field} if before is not None else {}
    kept = [(range_.start, range_.end) for range_ in before.reserved_range] if before is not None else []
    unused = count(max([0, *known.values(), *(end - 1 for _, end in kept)]) + 1)
    numbers = {name: known[name] if name in known else next(unused) for name in names}
    kept += [(number, number + 1) for name, number in known.items() if name not in numbers]
    reserved = [str(start) if end == start + 1 else f"{start} to {end - 1}" for start, end in sorted(kept)]
    return numbers, reserved


def _nested(before: DescriptorProto | None, field: str) -> DescriptorProto | None:
    """The message that a field had in the version before, if it was one of its own."""
    if before is None:
        return None
    messages = {nested.name: nested for nested in before.nested_type}
    for known in before.field:
        if known.name == field and known.type == FieldDescriptorProto.TYPE_MESSAGE:
            found = messages.get(known.type_name.rpartition(".")[2])
            return _own(found, messages) if found is not None else None
    return None


def _own(found: DescriptorProto, siblings: dict[str, DescriptorProto]) -> DescriptorProto | None:
    """A message; of a map's entry, the message that its values are."""
    if not found.options.map_entry:
        return found
    value = next(field for field in found.field if field.name == "value")
    return siblings.get(value.type_name.rpartition(".")[2])


def _free_name(field: str, taken: set[str]) -> str:
    """A name for the message of a field: fields and messages share their names."""
    name = "".join(part[:1].upper() + part[1:] for part in field.split("_") if part) or "Message"
    if name[0].isdigit():
        name = f"M{name}"
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _struct_in(kind: pa.DataType) -> pa.StructType | None:
    if is_listed(kind):
        kind = kind.value_type
    elif types.is_map(kind):
        kind = kind.item_type
    return kind if types.is_struct(kind) else None


def _declared(field: pa.Field, nested: str) -> str:
    kind = field.type
    if is_listed(kind):
        return f"repeated {_type(kind.value_type, nested, field.name)}"
    if types.is_map(kind):
        if not is_text(kind.key_type):
            raise UnfitError(f"{field.name}: a map is written with strings as keys, not {kind.key_type}")
        return f"map<string, {_type(kind.item_type, nested, field.name)}>"
    made = _type(kind, nested, field.name)
    return made if made in (nested, _TIMESTAMP) else f"optional {made}"


def _type(kind: pa.DataType, nested: str, name: str) -> str:
    if types.is_struct(kind):
        return nested
    if types.is_timestamp(kind) and kind.unit == "us":
        return _TIMESTAMP if kind.tz else "string"
    if types.is_decimal(kind) or is_text(kind):
        return "string"
    if is_bytes(kind):
        return "bytes"
    if kind in _PLAIN:
        return _PLAIN[kind]
    if is_listed(kind) or types.is_map(kind):
        raise UnfitError(f"{name}: Protobuf has no lists or maps right inside of lists or maps; put a struct between")
    raise UnfitError(f"{name}: there is no Protobuf type for {kind}")


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
        raise UnfitError(f"{path}: the column is {kind}, the message has {_described_field(field)}")
    convert, rules = plain
    return Shape(path, not target.nullable, convert, rules)


def _message(field: FieldDescriptor) -> Descriptor:
    assert field.message_type is not None
    return field.message_type


def _plain(kind: pa.DataType, target: pa.DataType, field: FieldDescriptor) -> tuple[Any, tuple[Rule, ...]] | None:
    if field.enum_type is not None:
        rule = one_of([value.name for value in field.enum_type.values])
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


def _negative(values: pa.Array) -> pa.Array:
    return pc.less(values, 0)


def _beyond_years(values: pa.Array) -> pa.Array:
    micros = values.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    return pc.or_(pc.less(micros, _FIRST_MICROSECOND), pc.greater(micros, _LAST_MICROSECOND))


def _described_field(field: FieldDescriptor) -> str:
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


# A Protobuf schema, as text or as a registry may hold it, with all that it imports.


def compiled(text: str, references: Mapping[str, str]) -> bytes:
    """A schema and its references (by name) as a serialized `FileDescriptorSet`, the schema itself last.

    Raises `UnfitError` with what protoc says where it is not valid.
    """
    given = tuple(ReferencedSchema(name, each) for name, each in references.items())
    try:
        descriptors = protobuf_reader(RegisteredSchema(0, "PROTOBUF", text, given))
    except (MissingError, DefinitionError) as error:
        raise UnfitError(f"the Protobuf schema is not valid: {error.summary.partition(': ')[2]}") from None
    for file in FileDescriptorSet.FromString(descriptors).file:
        if file.syntax == "proto3":
            _refuse_alike(file.message_type)
    return descriptors


def root_of(descriptors: bytes) -> FileDescriptorProto:
    """The schema itself, without what it imports."""
    return FileDescriptorSet.FromString(descriptors).file[-1]


def describe(descriptors: bytes) -> str:
    """The messages of a schema in one line, for people."""
    return " ".join(_described(message) for message in root_of(descriptors).message_type)


def message_of(descriptors: bytes, name: str | None) -> Descriptor:
    """The message of that full name, or the first of the schema."""
    root = root_of(descriptors)
    names = list(message_names(root.package, root.message_type))
    wanted = name or (names[0] if names else "")
    if wanted not in names:
        raise UnfitError(f"the Protobuf schema has no message {wanted}; it has {', '.join(names[:20]) or 'none'}")
    return find_message(descriptors, wanted)


def message_before(descriptors: bytes, name: str) -> DescriptorProto | None:
    """The message that a version before has at the top under this name, whose numbers a new version keeps."""
    messages = root_of(descriptors).message_type
    return next((message for message in messages if message.name == name.rpartition(".")[2]), None)


def message_index(message: Descriptor) -> bytes:
    """Where the message is in its file, as the framing has it: zigzag numbers, a single zero for the first."""
    path: list[int] = []
    at = message
    while at.containing_type is not None:
        path.insert(0, [nested.name for nested in at.containing_type.nested_types].index(at.name))
        at = at.containing_type
    path.insert(0, list(at.file.message_types_by_name).index(at.name))
    return b"\0" if path == [0] else b"".join(map(_zigzag, [len(path), *path]))


def _refuse_alike(messages: Iterable[DescriptorProto]) -> None:
    """Names that differ in capitals and _ only: protoc warns of them, the encoder takes none of the whole file."""
    for message in messages:
        alike: dict[str, str] = {}
        for field in message.field:
            other = alike.setdefault(field.name.replace("_", "").lower(), field.name)
            if other != field.name:
                raise UnfitError(f"{message.name}: Protobuf takes {other} and {field.name} for one name; rename one")
        _refuse_alike(message.nested_type)


def _described(message: DescriptorProto) -> str:
    fields = (f"{_type_of(field)} {field.name} = {field.number};" for field in message.field)
    nested = (_described(inner) for inner in message.nested_type if not inner.options.map_entry)
    return f"message {message.name} {{ {' '.join((*nested, *fields))} }}"


def _type_of(field: FieldDescriptorProto) -> str:
    name = field.type_name.removeprefix(".") or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"repeated {name}" if field.label == FieldDescriptorProto.LABEL_REPEATED else name


def _zigzag(number: int) -> bytes:
    """A number that is not negative, as a zigzag varint."""
    left, made = number << 1, bytearray()
    while left > 0x7F:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*made, left])

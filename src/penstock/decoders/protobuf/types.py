"""Descriptors to columns: what each field of a message is, and the Arrow type that it becomes.

| Protobuf | column |
|---|---|
| int32, sint32, sfixed32 | INT |
| int64, sint64, sfixed64, uint32, fixed32 | BIGINT |
| uint64, fixed64 | DECIMAL(20, 0) |
| float, double, bool, string, bytes | FLOAT, DOUBLE, BOOLEAN, STRING, BINARY |
| enum | STRING, its name; a number without a name as its digits |
| message | STRUCT; also Any, Duration, FieldMask and google.type.* |
| a message without fields, as Empty | BOOLEAN, true where it is present |
| repeated, map | ARRAY, MAP; empty where there is nothing |
| Timestamp | TIMESTAMP; parts of a microsecond are cut off downward |
| Int32Value and the other wrappers | the wrapped type, null where absent |
| Struct, Value, ListValue | STRING with JSON |

A field without presence has its default where it is absent, any other has null, or the default that a proto2 schema
gives it. A message type that holds itself has no columns and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, auto
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from penstock.errors import DefinitionError
from penstock.model import COORDINATES, TIMESTAMP
from penstock.registry.protobuf import find_message

_F = FieldDescriptor
MESSAGES = (_F.TYPE_MESSAGE, _F.TYPE_GROUP)
MAX_LEAVES = 10_000
_MAX_DEPTH = 30

VARINT, I64, LEN, GROUP_START, GROUP_END, I32 = range(6)
"""The wire types by their numbers."""

Range = tuple[int, int]
_INT32, _INT64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
_UINT32, _UINT64 = (0, 2**32 - 1), (0, 2**64 - 1)


class Scalar(NamedTuple):
    """A type without fields: its column, how it is written, and the whole numbers that it holds."""

    column: pa.DataType
    wire: int
    range: Range | None = None
    zigzag: bool = False


SCALARS: Mapping[int, Scalar] = {
    _F.TYPE_BOOL: Scalar(pa.bool_(), VARINT, (0, 1)),
    _F.TYPE_ENUM: Scalar(pa.string(), VARINT, _INT32),
    _F.TYPE_INT32: Scalar(pa.int32(), VARINT, _INT32),
    _F.TYPE_INT64: Scalar(pa.int64(), VARINT, _INT64),
    _F.TYPE_UINT32: Scalar(pa.int64(), VARINT, _UINT32),
    _F.TYPE_UINT64: Scalar(pa.decimal128(20, 0), VARINT, _UINT64),
    _F.TYPE_SINT32: Scalar(pa.int32(), VARINT, _INT32, zigzag=True),
    _F.TYPE_SINT64: Scalar(pa.int64(), VARINT, _INT64, zigzag=True),
    _F.TYPE_SFIXED32: Scalar(pa.int32(), I32, _INT32),
    _F.TYPE_FIXED32: Scalar(pa.int64(), I32, _UINT32),
    _F.TYPE_SFIXED64: Scalar(pa.int64(), I64, _INT64),
    _F.TYPE_FIXED64: Scalar(pa.decimal128(20, 0), I64, _UINT64),
    _F.TYPE_FLOAT: Scalar(pa.float32(), I32),
    _F.TYPE_DOUBLE: Scalar(pa.float64(), I64),
    _F.TYPE_STRING: Scalar(pa.string(), LEN),
    _F.TYPE_BYTES: Scalar(pa.binary(), LEN),
}
TYPE_NAMES: Mapping[int, str] = {
    number: name.removeprefix("TYPE_").lower() for name, number in vars(_F).items() if name.startswith("TYPE_")
}
_KEYS = frozenset(SCALARS) - {_F.TYPE_FLOAT, _F.TYPE_DOUBLE, _F.TYPE_BYTES, _F.TYPE_ENUM}
_JSON = {f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue")}
_SCALAR_NAMES = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_WRAPPERS = {f"google.protobuf.{name}Value" for name in _SCALAR_NAMES}
_TIMESTAMP = "google.protobuf.Timestamp"


class Shape(Enum):
    """How one value is read."""

    SCALAR = auto()
    ENUM = auto()
    STRUCT = auto()
    EMPTY = auto()
    TIMESTAMP = auto()
    WRAPPER = auto()
    JSON = auto()


@dataclass(frozen=True)
class Value:
    """One value of a field: an item of a repeated one, a key or a value of a map."""

    shape: Shape
    type: pa.DataType
    field: FieldDescriptor
    message: Message | None = None
    reads: int = 0
    """The protobuf type that the reader has where the writer's is wider: the values have to fit it."""

    @cached_property
    def names(self) -> dict[int, str]:
        """The names of an enum by their numbers; the first of several."""
        assert self.field.enum_type is not None
        return {value.number: value.name for value in reversed(self.field.enum_type.values)}


@dataclass(frozen=True)
class Field:
    """One field of a message."""

    name: str
    type: pa.DataType
    number: int
    value: Value
    key: Value | None
    repeated: bool
    presence: bool
    required: bool
    default: Any = None
    """The value of an absent proto2 field that has a default."""


@dataclass(frozen=True)
class Message:
    """The fields of a message in their order, and the oneofs as positions of fields."""

    descriptor: Descriptor
    fields: tuple[Field, ...]
    oneofs: tuple[tuple[int, ...], ...]
    leaves: int

    @property
    def most_cells(self) -> int:
        """More cells a byte than this a message cannot have: an item takes two bytes, a packed one takes one."""
        return max(1, (self.leaves + 1) // 2)

    @property
    def schema(self) -> pa.Schema:
        """The fields as columns."""
        return pa.schema([pa.field(field.name, field.type) for field in self.fields])


Narrowed = frozenset[tuple[str, int]]
"""Full names of fields whose type is the writer's, with the protobuf type that the reader has for them."""


@lru_cache(maxsize=64)
def message_of(descriptors: bytes, message: str, narrowed: Narrowed = frozenset()) -> Message:
    """A message with all that is inside it. Raises `DefinitionError`."""
    found = _Builder(dict(narrowed)).message(find_message(descriptors, message), ())
    if not found.fields:
        raise DefinitionError("PROTOBUF_EMPTY", f"reading message {message}: it has no fields, so there are no columns")
    for field in found.fields:
        if field.name == COORDINATES:
            raise DefinitionError("DECODE_COLUMN", f"column {field.name}: the name is taken")
    return found


class _Builder:
    def __init__(self, narrowed: Mapping[str, int]) -> None:
        self._narrowed = narrowed
        self._leaves = 0

    def message(self, descriptor: Descriptor, above: tuple[str, ...]) -> Message:
        chain = (*above, descriptor.full_name)
        if descriptor.full_name in above:
            inner = " -> ".join(chain[above.index(descriptor.full_name) :])
            raise DefinitionError(
                "PROTOBUF_RECURSIVE",
                f"reading message {chain[0]}: {descriptor.full_name} contains itself, which a table cannot represent",
                context={"through": inner},
                hint="decode a message without it, or keep the raw value with format: raw",
            )
        if len(chain) > _MAX_DEPTH:
            raise DefinitionError("PROTOBUF_TOO_DEEP", f"reading message {chain[0]}: over {_MAX_DEPTH} levels of types")
        before = self._leaves
        fields = tuple(self._field(field, chain) for field in descriptor.fields)
        _refuse_same_names(descriptor, fields)
        numbers = [field.number for field in fields]
        oneofs = [tuple(numbers.index(member.number) for member in oneof.fields) for oneof in descriptor.oneofs]
        several = tuple(members for members in oneofs if len(members) > 1)
        return Message(descriptor, fields, several, max(self._leaves - before, 1))

    def _field(self, field: FieldDescriptor, chain: tuple[str, ...]) -> Field:
        self._leaves += 1
        if self._leaves > MAX_LEAVES:
            raise DefinitionError("PROTOBUF_TOO_WIDE", f"reading message {chain[0]}: over {MAX_LEAVES} fields in all")
        key = None
        if is_map(field):
            parts = _entry_fields(field)
            key, value = self._value(parts[1], chain), self._value(parts[2], chain)
            kind: pa.DataType = pa.map_(key.type, value.type)
        else:
            value = self._value(field, chain)
            kind = pa.list_(pa.field("element", value.type)) if field.is_repeated else value.type
        presence = field.has_presence and not field.is_repeated
        default = field.default_value if presence and field.has_default_value else None
        if default is not None and value.shape is Shape.ENUM:
            default = value.names[default]
        elif default is not None and pa.types.is_decimal(value.type):
            default = Decimal(default)
        return Field(
            field.name, kind, field.number, value, key, field.is_repeated, presence, field.is_required, default
        )

    def _value(self, field: FieldDescriptor, chain: tuple[str, ...]) -> Value:
        reads = self._narrowed.get(field.full_name, 0)
        if field.type not in MESSAGES:
            shape = Shape.ENUM if field.type == _F.TYPE_ENUM else Shape.SCALAR
            return Value(shape, SCALARS[reads or field.type].column, field, reads=reads)
        inner = field.message_type
        assert inner is not None
        if inner.full_name in _JSON:
            return Value(Shape.JSON, pa.string(), field)
        if not inner.fields:
            return Value(Shape.EMPTY, pa.bool_(), field)
        message = self.message(inner, chain)
        if inner.full_name == _TIMESTAMP:
            return Value(Shape.TIMESTAMP, TIMESTAMP, field, message)
        if inner.full_name in _WRAPPERS:
            return Value(Shape.WRAPPER, message.fields[0].type, field, message)
        return Value(Shape.STRUCT, pa.struct(list(message.schema)), field, message)


def is_map(field: FieldDescriptor) -> bool:
    """Whether the field is a map: entries of a message that the compiler made."""
    return field.type == _F.TYPE_MESSAGE and field.message_type.GetOptions().map_entry  # type: ignore[union-attr]


def _entry_fields(field: FieldDescriptor) -> Mapping[int, FieldDescriptor]:
    """The key and the value of a map by their numbers: protoc makes no other entries, and a registry may hold any."""
    assert field.message_type is not None
    parts = field.message_type.fields_by_number
    whole = set(parts) == {1, 2} and field.is_repeated and not any(part.is_repeated for part in parts.values())
    if not whole or parts[1].type not in _KEYS:
        raise DefinitionError(
            "PROTOBUF_DESCRIPTORS", f"reading field {field.full_name}: its map has no possible entries"
        )
    return parts


def range_of(kind: int) -> Range:
    """The whole numbers that a protobuf type holds."""
    found = SCALARS[kind].range
    assert found is not None, "a type of whole numbers"
    return found


def _refuse_same_names(descriptor: Descriptor, fields: tuple[Field, ...]) -> None:
    seen: dict[str, str] = {}
    for field in fields:
        other = seen.setdefault(field.name.lower(), field.name)
        if other != field.name:
            raise DefinitionError(
                "DECODE_COLUMN",
                f"message {descriptor.full_name}: {other} and {field.name} differ only in case, "
                "and a table cannot have both",
            )

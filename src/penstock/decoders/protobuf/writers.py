"""The writer's schema beside the reader's: may its bytes be read as the reader's message, and how.

Protobuf reads any bytes by any schema, and where two schemas give one number to different things it reads nonsense.
So the two are compared, once a schema id: by number, down to the leaves. Whole numbers of one encoding may stand
for each other; where the writer's type holds numbers that the reader's does not, they are read by the writer's, and a
number that does not fit makes its record bad.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet

from penstock.decoders.protobuf.frame import Indexes, messages_at
from penstock.decoders.protobuf.types import MESSAGES, Narrowed
from penstock.decoders.protobuf.values import RANGES, TYPE_NAMES
from penstock.decoders.refusal import SCHEMA_INCOMPATIBLE, SCHEMA_UNSUPPORTED, WRONG_MESSAGE_INDEX, Reason
from penstock.errors import DefinitionError, MissingError
from penstock.registry import RegisteredSchema
from penstock.registry.protobuf import find_message, protobuf_reader, read_descriptors, root_file

_F = FieldDescriptor
_FAMILIES = (
    {_F.TYPE_INT32, _F.TYPE_INT64, _F.TYPE_UINT32, _F.TYPE_UINT64, _F.TYPE_BOOL, _F.TYPE_ENUM},
    {_F.TYPE_SINT32, _F.TYPE_SINT64},
    {_F.TYPE_FIXED32, _F.TYPE_SFIXED32},
    {_F.TYPE_FIXED64, _F.TYPE_SFIXED64},
    {_F.TYPE_STRING, _F.TYPE_BYTES},
)
"""Types whose bytes can be read as each other's."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """By which descriptors the bytes of a writer are read, and whose types in them are not the reader's."""

    descriptors: bytes
    narrowed: Narrowed = frozenset()


@lru_cache(maxsize=1024)
def resolve(reader: bytes, message: str, schema: RegisteredSchema, indexes: Indexes) -> Resolved | Reason:
    """How to read what was written as the message at `indexes` of a schema; or why its records are refused."""
    try:
        writer = protobuf_reader(schema)
        found = messages_at(root_file(writer), indexes)
    except (DefinitionError, MissingError) as exc:
        return Reason(SCHEMA_UNSUPPORTED, exc.summary)
    matching = [candidate for candidate in found if candidate.full_name == message]
    if not matching:
        what = found[0].full_name if found else "no message"
        return Reason(
            WRONG_MESSAGE_INDEX, f"{list(indexes)} is {what} in schema id {schema.id}, and {message} is wanted"
        )
    comparison = _compared(find_message(reader, message), matching[0])
    if comparison.problems:
        return comparison.reason(schema)
    if not comparison.wider:
        return Resolved(reader)
    narrowed = frozenset((name, reads) for name, (_, reads) in comparison.wider.items())
    return Resolved(_with_types(reader, {name: had for name, (had, _) in comparison.wider.items()}), narrowed)


def refusal(reader: bytes, message: str, schema: RegisteredSchema) -> Reason | None:
    """Why records of a message, written by a schema, would be refused; None where they can be read."""
    try:
        written = find_message(protobuf_reader(schema), message)
    except (DefinitionError, MissingError) as exc:
        return Reason(SCHEMA_UNSUPPORTED, exc.summary)
    comparison = _compared(find_message(reader, message), written)
    return comparison.reason(schema) if comparison.problems else None


def _compared(reader: Descriptor, writer: Descriptor) -> _Comparison:
    comparison = _Comparison()
    comparison.messages(reader, writer, "")
    return comparison


class _Comparison:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.wider: dict[str, tuple[int, int]] = {}
        """By the full name of the reader's field: the writer's type, which holds more, and the reader's."""
        self._seen: set[tuple[str, str]] = set()

    def reason(self, schema: RegisteredSchema) -> Reason:
        return Reason(SCHEMA_INCOMPATIBLE, f"schema id {schema.id}: " + "; ".join(self.problems[:3]))

    def messages(self, reader: Descriptor, writer: Descriptor, path: str) -> None:
        pair = (reader.full_name, writer.full_name)
        if pair in self._seen:
            return
        self._seen.add(pair)
        for field in reader.fields:
            other = writer.fields_by_number.get(field.number)
            if other is not None:
                self._fields(field, other, f"{path}.{field.name}" if path else field.name)

    def _fields(self, reader: FieldDescriptor, writer: FieldDescriptor, path: str) -> None:
        if writer.is_repeated and not reader.is_repeated:
            self._refuse(reader, writer, path)
        elif reader.type in MESSAGES and reader.type == writer.type:
            assert reader.message_type is not None and writer.message_type is not None
            self.messages(reader.message_type, writer.message_type, path)
        elif reader.type != writer.type and not _same_bytes(reader.type, writer.type):
            self._refuse(reader, writer, path)
        elif reader.type in RANGES:
            had = _F.TYPE_INT32 if writer.type == _F.TYPE_ENUM else writer.type
            types = (had, reader.type)
            if not _within(*types) and self.wider.setdefault(reader.full_name, types) != types:
                self._refuse(reader, writer, path)

    def _refuse(self, reader: FieldDescriptor, writer: FieldDescriptor, path: str) -> None:
        self.problems.append(f"{path} (number {reader.number}) is {_type(writer)} there, and {_type(reader)} is read")


def _same_bytes(reader: int, writer: int) -> bool:
    if reader == _F.TYPE_ENUM:
        return writer == _F.TYPE_INT32
    if reader == _F.TYPE_BOOL:
        return False
    return any(reader in family and writer in family for family in _FAMILIES)


def _within(had: int, reads: int) -> bool:
    return RANGES[reads][0] <= RANGES[had][0] and RANGES[had][1] <= RANGES[reads][1]


def _type(field: FieldDescriptor) -> str:
    made_of = field.message_type or field.enum_type
    name = f"{TYPE_NAMES[field.type]} {made_of.full_name}" if made_of else TYPE_NAMES[field.type]
    return f"repeated {name}" if field.is_repeated else name


def _with_types(descriptors: bytes, types: dict[str, int]) -> bytes:
    """The reader's descriptors with the types of some fields, by their full names, changed."""
    found: FileDescriptorSet = read_descriptors(descriptors)
    for file in found.file:
        for message in file.message_type:
            _change(message, file.package, types)
    return found.SerializeToString()


def _change(message: DescriptorProto, scope: str, types: dict[str, int]) -> None:
    name = f"{scope}.{message.name}" if scope else message.name
    for field in message.field:
        field.type = types.get(f"{name}.{field.name}", field.type)  # type: ignore[assignment]
    for inner in message.nested_type:
        _change(inner, name, types)

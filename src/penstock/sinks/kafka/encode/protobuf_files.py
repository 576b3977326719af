"""A Protobuf schema, as text or as a registry may hold it, with all that it imports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from penstock.errors import DefinitionError, MissingError
from penstock.registry import ReferencedSchema, RegisteredSchema
from penstock.registry.protobuf import find_message, message_names, protobuf_reader
from penstock.sinks.kafka.encode.shapes import UnfitError


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

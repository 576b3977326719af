"""The Protobuf format: messages of one type to columns, with or without the header of a schema registry.

All records are read by the reader's message. With a registry the schema of each record, by its own id, says whether
the bytes are that message and whether they can be read as it. A message without bytes is a message: all defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet

from penstock.decoders.batch import DEFAULT_MAX_BYTES, Group, RecordDecoder, Screened, Tombstones, decode_batch
from penstock.decoders.framing import CONFLUENT, by_schema, unframe
from penstock.decoders.protobuf.block import protobuf_format
from penstock.decoders.protobuf.types import (
    LEN,
    MESSAGES,
    SCALARS,
    TYPE_NAMES,
    Message,
    Narrowed,
    Shape,
    message_of,
    range_of,
)
from penstock.decoders.protobuf.wire import Indexes, by_message, messages_at
from penstock.decoders.refusal import SCHEMA_INCOMPATIBLE, SCHEMA_UNSUPPORTED, WRONG_MESSAGE_INDEX, Reason
from penstock.errors import DefinitionError, MissingError
from penstock.model import COORDINATES_FIELD, Split
from penstock.registry import RegisteredSchema, RegistrySettings
from penstock.registry.protobuf import find_message, protobuf_reader, read_descriptors, root_file

ProtobufFraming = Literal["confluent", "none"]


@dataclass(frozen=True)
class ProtobufDecoder(RecordDecoder):
    """`descriptors` is a serialized `FileDescriptorSet` with all imports.

    With the framing `confluent` and no registry the ids are ignored, and the message indexes are taken to be
    those of the file in which the message is.
    """

    descriptors: bytes
    message: str
    registry: RegistrySettings | None = None
    subject: str | None = None
    framing: ProtobufFraming = "confluent"
    tombstones: Tombstones = "quarantine"
    max_bytes: int = DEFAULT_MAX_BYTES
    frozen: bool = False

    def __post_init__(self) -> None:
        _ = self._message  # checks the message

    @cached_property
    def schema(self) -> pa.Schema:
        """The fields of the message, and the coordinates."""
        return pa.schema([*self._message.schema, COORDINATES_FIELD])

    def read(self, raw: pa.RecordBatch) -> Split:
        """Split raw records into rows and bad records."""
        return decode_batch(raw, self.schema, self.tombstones, self.max_bytes, self._groups)

    @property
    def knows_refusals(self) -> bool:
        """Always: the writer's schema is resolved as a whole."""
        return True

    def refuses(self, schema: RegisteredSchema) -> Reason | None:
        """Why every record of a writer's schema would be refused, where that is so."""
        return refusal(self.descriptors, self.message, schema)

    def conditions(self) -> list[str]:
        """What in this message is slow to decode."""
        why = protobuf_format(self.descriptors, self.message).no_fast_form
        texts = [field.value.field.full_name for field in self._message.fields if field.value.shape is Shape.JSON]
        reasons = [why] if why else [f"{name} becomes JSON" for name in texts]
        return [f"{self.message} is decoded message by message: {reason}" for reason in reasons]

    @property
    def _message(self) -> Message:
        return message_of(self.descriptors, self.message)

    def _groups(self, screened: Screened) -> Iterator[Group]:
        values, rows, reasons = screened.values, screened.rows, screened.reasons
        if self.framing == "none":
            yield protobuf_format(self.descriptors, self.message), values, rows
            return
        framed = unframe(values, rows, CONFLUENT, reasons)
        for schema, bodies, theirs in by_schema(framed, self.registry, self.subject, self.frozen, reasons):
            for indexes, messages, places in by_message(bodies, theirs, reasons):
                found = self._resolved(schema, indexes)
                if isinstance(found, Reason):
                    reasons.update(dict.fromkeys(places.to_pylist(), found))
                else:
                    yield protobuf_format(found.descriptors, self.message, found.narrowed), messages, places

    def _resolved(self, schema: RegisteredSchema | None, indexes: Indexes) -> Resolved | Reason:
        if schema is not None:
            return resolve(self.descriptors, self.message, schema, indexes)
        found = messages_at(find_message(self.descriptors, self.message).file, indexes)
        if any(message.full_name == self.message for message in found):
            return Resolved(self.descriptors)
        return Reason(WRONG_MESSAGE_INDEX, f"{list(indexes)} is not {self.message} in the descriptors")


# Schema resolution: whether bytes of the writer's schema can be read as the reader's message, and how.
#
# Protobuf reads any bytes by any schema, and where two schemas give one number to different things it reads nonsense.
# So the two are compared, once a schema id: by number, down to the leaves. Whole numbers of one encoding may be read
# as each other; where the writer's type holds numbers that the reader's does not, they are read by the writer's, and a
# number that does not fit makes its record bad.

_F = FieldDescriptor


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
        elif reader.type in SCALARS and SCALARS[reader.type].range is not None:
            had = _F.TYPE_INT32 if writer.type == _F.TYPE_ENUM else writer.type
            types = (had, reader.type)
            if not _within(*types) and self.wider.setdefault(reader.full_name, types) != types:
                self._refuse(reader, writer, path)

    def _refuse(self, reader: FieldDescriptor, writer: FieldDescriptor, path: str) -> None:
        self.problems.append(f"{path} (number {reader.number}) is {_type(writer)} there, and {_type(reader)} is read")


def _same_bytes(reader: int, writer: int) -> bool:
    """Whether the bytes of one type can be read as another's."""
    if reader == _F.TYPE_ENUM:
        return writer == _F.TYPE_INT32
    if reader == _F.TYPE_BOOL or reader not in SCALARS or writer not in SCALARS:
        return False
    one, other = SCALARS[reader], SCALARS[writer]
    # A float or a double is like no other type; strings and bytes are like each other.
    are_numbers = one.range is not None and other.range is not None
    return (one.wire, one.zigzag) == (other.wire, other.zigzag) and (are_numbers or one.wire == LEN)


def _within(had: int, reads: int) -> bool:
    (first, last), (least, most) = range_of(had), range_of(reads)
    return least <= first and last <= most


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

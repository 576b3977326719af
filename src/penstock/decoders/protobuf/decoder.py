"""The Protobuf format: messages of one type to columns, with or without the header of a schema registry.

All records are read by the reader's message. With a registry the schema of each record, by its own id, says whether
the bytes are that message and whether they can be read as it. A message without bytes is a message: all defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import pyarrow as pa

from penstock.decoders.framing import unframe, writer_schema
from penstock.decoders.isolation import Pieces
from penstock.decoders.protobuf.block import BlockReader, block_reader
from penstock.decoders.protobuf.frame import Indexes, by_message, messages_at
from penstock.decoders.protobuf.types import Message, Shape, message_of
from penstock.decoders.protobuf.writers import Resolved, refusal, resolve
from penstock.decoders.refusal import WRONG_MESSAGE_INDEX, Reason
from penstock.decoders.screen import DEFAULT_MAX_BYTES, ScreenedValues, Tombstones, hold_back
from penstock.model import COORDINATES_FIELD, Split
from penstock.registry import RegisteredSchema, RegistrySettings
from penstock.registry.protobuf import find_message

ProtobufFraming = Literal["confluent", "none"]

_said: set[str] = set()


@dataclass(frozen=True)
class ProtobufDecoder:
    """Implements `contracts.Decoder`. `descriptors` is a serialized `FileDescriptorSet` with all imports.

    With the framing `confluent` and no registry the ids are not looked at, and the message indexes are taken to be
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

    def __reduce__(self) -> tuple[object, ...]:
        options = (self.framing, self.tombstones, self.max_bytes, self.frozen)
        return ProtobufDecoder, (self.descriptors, self.message, self.registry, self.subject, *options)

    @cached_property
    def schema(self) -> pa.Schema:
        """The fields of the message, and the coordinates."""
        return pa.schema([*self._message.schema, COORDINATES_FIELD])

    def decode(self, raw: pa.RecordBatch) -> Split:
        """Split raw records into rows and bad records."""
        held = hold_back(raw.column("value"), self.tombstones, self.max_bytes)
        pieces = Pieces(self._message.schema)
        for reader, bodies, rows in self._groups(held):
            reader.read(bodies, rows, pieces, held.reasons)
        pieces.add_nulls(held.passed_tombstones)
        return pieces.split(raw, self.schema, held.reasons)

    def refuses(self, schema: RegisteredSchema) -> Reason | None:
        """Why every record of a writer's schema would be refused, where that is so."""
        return refusal(self.descriptors, self.message, schema)

    def notices(self) -> list[str]:
        """What costs speed in this message, once a process."""
        found = [f"{self.message} is decoded message by message: {why}" for why in self._slow_parts()]
        new = [notice for notice in found if notice not in _said]
        _said.update(new)
        return new

    @property
    def _message(self) -> Message:
        return message_of(self.descriptors, self.message)

    def _groups(self, held: ScreenedValues) -> Iterator[tuple[BlockReader, pa.BinaryArray, pa.UInt64Array]]:
        """The messages without their headers, by the schema that they were written with."""
        if self.framing == "none":
            yield block_reader(self.descriptors, self.message), held.values, held.rows
            return
        for schema_id, bodies, rows in unframe(held.values, held.rows, held.reasons).by_id():
            schema = writer_schema(self.registry, schema_id, self.subject, self.frozen) if self.registry else None
            if isinstance(schema, Reason):
                held.reasons.update(dict.fromkeys(rows.to_pylist(), schema))
                continue
            for indexes, some, theirs in by_message(bodies, rows, held.reasons):
                found = self._resolved(schema, indexes)
                if isinstance(found, Reason):
                    held.reasons.update(dict.fromkeys(theirs.to_pylist(), found))
                else:
                    yield block_reader(found.descriptors, self.message, found.narrowed), some, theirs

    def _resolved(self, schema: RegisteredSchema | None, indexes: Indexes) -> Resolved | Reason:
        if schema is not None:
            return resolve(self.descriptors, self.message, schema, indexes)
        found = messages_at(find_message(self.descriptors, self.message).file, indexes)
        if any(message.full_name == self.message for message in found):
            return Resolved(self.descriptors)
        return Reason(WRONG_MESSAGE_INDEX, f"{list(indexes)} is not {self.message} in the descriptors")

    def _slow_parts(self) -> list[str]:
        why = block_reader(self.descriptors, self.message).no_fast_form
        if why:
            return [why]
        texts = [field for field in self._message.fields if field.value.shape is Shape.JSON]
        return [f"{field.value.field.full_name} becomes JSON" for field in texts]

"""What a registry holds, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SchemaKind = Literal["AVRO", "PROTOBUF", "JSON"]


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """What a schema says about another one that it uses: the name it has there, and where it is registered."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class ReferencedSchema:
    """A schema that another one uses, under the name by which it is used."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """One schema as it was registered: a Protobuf one is text or a base64 descriptor, whichever the producer sent.

    `references` has everything it uses, directly or not, each once, and each after what it uses itself. Subject and
    version are there only when it was asked for by them: one id may belong to several.
    """

    id: int
    kind: SchemaKind
    text: str
    references: tuple[ReferencedSchema, ...] = ()
    subject: str | None = None
    version: int | None = None

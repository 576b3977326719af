"""Avro schemas as trees of frozen nodes, in which a name that is used twice is the same node twice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Primitive:
    """A type without a name; `logical` is empty where there is none, or none that is known."""

    kind: str
    logical: str = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True)
class Fixed:
    """So many bytes."""

    name: str
    aliases: tuple[str, ...]
    size: int
    logical: str = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True)
class Enum:
    """One of some symbols; a reader that has a default takes it for a symbol that it does not know."""

    name: str
    aliases: tuple[str, ...]
    symbols: tuple[str, ...]
    default: str | None


@dataclass(frozen=True)
class Array:
    """Any number of items."""

    items: Node


@dataclass(frozen=True)
class Map:
    """Values by strings."""

    values: Node


@dataclass(frozen=True)
class Union:
    """One of several types, each of which may be there once."""

    branches: tuple[Node, ...]

    @property
    def nullable(self) -> bool:
        """Whether one of the types is null."""
        return NULL in self.branches

    @property
    def values(self) -> tuple[Node, ...]:
        """The types that are not null."""
        return tuple(branch for branch in self.branches if branch != NULL)


@dataclass(frozen=True)
class Field:
    """A field of a record. `default` is JSON, and is looked at only where `has_default`."""

    name: str
    aliases: tuple[str, ...]
    type: Node
    has_default: bool
    default: str


@dataclass(frozen=True)
class Record:
    """Fields in the order in which they are written."""

    name: str
    aliases: tuple[str, ...]
    fields: tuple[Field, ...]


Node = Primitive | Fixed | Enum | Array | Map | Union | Record

NULL = Primitive("null")


def describe(node: Node) -> str:
    """A node in a few words, for messages."""
    match node:
        case Primitive():
            logical = f"{node.logical}({node.precision}, {node.scale})" if node.logical == "decimal" else node.logical
            return f"{node.kind} ({logical})" if logical else node.kind
        case Fixed():
            return f"fixed {node.name} of {node.size} bytes"
        case Enum():
            return f"enum {node.name}"
        case Array():
            return f"array of {describe(node.items)}"
        case Map():
            return f"map of {describe(node.values)}"
        case Union():
            return f"union of {', '.join(map(describe, node.branches))}"
        case Record():
            return f"record {node.name}"

"""Values without parts, promoted from a writer's type to a reader's: which column steps do it, or that none can."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.decoders.avro import wire
from penstock.decoders.avro.nodes import Enum, Fixed, Node, Primitive, Record, describe

_PROMOTIONS = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
}
_UNITS = {"millis": 1_000_000, "micros": 1_000, "nanos": 1}


class IncompatibleError(Exception):
    """The writer's schema cannot be read as the reader's; the message names the field and both types."""


def value_steps(writer: Node, reader: Node, kind: pa.DataType, path: str) -> Sequence[wire.Step]:
    """The steps from a writer's wire column to the reader's type, `kind`. Raises `IncompatibleError`."""
    match writer, reader:
        case Enum(), Enum() if is_named(writer, reader):
            known = tuple(symbol if symbol in reader.symbols else reader.default for symbol in writer.symbols)
            return [wire.symbols(known, path, f"enum {reader.name}")]
        case Fixed(), Fixed() if writer.size == reader.size and is_named(writer, reader):
            return [wire.fixed(writer.size), *_binary_steps(writer, reader, kind, path)]
        case Primitive(kind="bytes" | "string"), Primitive(kind="bytes" | "string"):
            return _binary_steps(writer, reader, kind, path)
        case Primitive(), Primitive() if reader.kind in _PROMOTIONS.get(writer.kind, (writer.kind,)):
            return _number_steps(writer, reader, kind, path)
    raise mismatch(path, writer, reader)


def _binary_steps(
    writer: Primitive | Fixed, reader: Primitive | Fixed, kind: pa.DataType, path: str
) -> list[wire.Step]:
    if reader.logical == "decimal":
        if writer.logical != "decimal":
            return [wire.decimals(kind, reader.scale, path)]
        if writer.scale > reader.scale:
            raise mismatch(path, writer, reader)
        return [wire.decimals(kind, writer.scale, path)]
    if pa.types.is_string(kind):
        return [wire.text(path)]
    return [lambda column: column.cast(pa.binary())]


def _number_steps(writer: Primitive, reader: Primitive, kind: pa.DataType, path: str) -> list[wire.Step]:
    family, unit = _family(writer)
    wanted_family, wanted = _family(reader)
    if not writer.logical or not reader.logical:
        unit = wanted
    elif family != wanted_family:
        raise mismatch(path, writer, reader)
    if pa.types.is_timestamp(kind):
        wanted = "micros"
    steps: list[wire.Step] = []
    if writer.kind == "int":
        steps.append(wire.number(pa.int32(), path))
    if unit != wanted:
        factor, rest = divmod(_UNITS[unit], _UNITS[wanted])
        if rest:
            raise mismatch(path, writer, reader)
        steps.append(wire.scaled(factor, path))
    if pa.types.is_temporal(kind):
        return [*steps, wire.number(pa.int64(), path), wire.moments(kind, path)]
    if writer.kind in ("int", "long"):
        return [*steps, wire.number(kind, path)]
    return [wire.truth(path)] if writer.kind == "boolean" else [lambda column: column.cast(kind)]


def _family(node: Primitive) -> tuple[str, str]:
    """A logical type and its unit: `timestamp` and `millis`; a date has none."""
    family, _, unit = node.logical.rpartition("-")
    return (family, unit) if unit in _UNITS else (node.logical, "")


def is_named(writer: Fixed | Enum | Record, reader: Fixed | Enum | Record) -> bool:
    """Whether they have one name, without the namespace, or the reader has the writer's as an alias."""
    return writer.name.rpartition(".")[2] == reader.name.rpartition(".")[2] or writer.name in reader.aliases


def mismatch(path: str, writer: Node, reader: Node) -> IncompatibleError:
    """The error that names both types."""
    return IncompatibleError(f"{at_path(path)}the writer has {describe(writer)}, the reader {describe(reader)}")


def at_path(path: str) -> str:
    """The beginning of a message."""
    return f"{path}: " if path else ""

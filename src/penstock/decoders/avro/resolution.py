"""A writer's columns made the reader's, by Avro's rules, as column operations compiled once for a pair of schemas.

Enters: a column in the wire form of the writer's schema (`wire`). Leaves: a column of the reader's Arrow type.
Fields are found by name or alias, missing ones take the default, numbers and strings are promoted, unions resolved
branch by branch. A pair that can never match raises `IncompatibleError` when compiled; a pair that some values do not
match (a null, a branch, a symbol) raises `BlockError` when such a value comes.

Records match whatever their names are; enums, fixed types and the records of a union need the same name, without its
namespace, or an alias. Logical types of one family are converted (milliseconds to microseconds), of two families never
match, and where only one side has one, the value is the reader's to interpret.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decoders.avro import wire
from penstock.decoders.avro.schema import (
    NULL,
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Union,
    describe,
)
from penstock.decoders.avro.types import arrow_type, default_value, union_values
from penstock.decoders.avro.wire import is_optional, takes_bytes
from penstock.decoders.batch import BlockError
from penstock.decoders.refusal import SCHEMA_INCOMPATIBLE

Live: TypeAlias = "pa.BooleanArray | None"
"""The rows that no null parent hides; `None` for all."""


Resolve = Callable[[pa.Array, Live], pa.Array]
"""Makes a writer's column the reader's. Raises `BlockError` where a value of a live row does not match."""


def resolve(writer: Node, reader: Node, path: str = "") -> Resolve:
    """Compile a pair of schemas. Raises `IncompatibleError`."""
    kind = arrow_type(reader, path) or pa.null()
    match writer, reader:
        case Union(), _ if is_optional(writer):
            return _optional(writer, reader, path)
        case Union(), _:
            return _branches(writer, reader, kind, path)
        case Primitive(kind="null"), Union(nullable=True):
            return lambda column, live: pa.nulls(len(column), kind)
        case _, Union():
            values = union_values(reader)
            return resolve(writer, values[0], path) if len(values) == 1 else _member(writer, reader, kind, path)
        case Record(), Record():
            return _fields(writer, reader, kind, path)
        case Array(), Array():
            return _items(writer, reader, kind, path)
        case Map(), Map():
            return _pairs(writer, reader, kind, path)
        case _:
            return _values(_value_steps(writer, reader, kind, path))


def _values(steps: Sequence[wire.Step]) -> Resolve:
    """Types without parts: a chain of steps over the column."""

    def run(column: pa.Array, live: Live) -> pa.Array:
        for step in steps:
            column = step(column)
        return column

    return run


def _fields(writer: Record, reader: Record, kind: pa.DataType, path: str) -> Resolve:
    """A record: each of the reader's fields out of the writer's, or its default."""
    on_wire = [field.name for field in writer.fields if takes_bytes(field.type)]
    written = {field.name: field for field in writer.fields}
    made: list[tuple[int, Resolve] | pa.Scalar] = []
    for field in reader.fields:
        step = f"{path}.{field.name}" if path else field.name
        if arrow_type(field.type, step) is None:
            continue
        given = next((written[name] for name in (field.name, *field.aliases) if name in written), None)
        if given is None:
            made.append(_default(field, step))
        else:
            place = on_wire.index(given.name) if given.name in on_wire else -1
            made.append((place, resolve(given.type, field.type, step)))

    def run(column: pa.Array, live: Live) -> pa.Array:
        count = len(column)
        parts = _parts(column) if pa.types.is_struct(column.type) else []
        hidden = None
        if parts and column.null_count:
            hidden = column.is_null()
            live = column.is_valid() if live is None else pc.and_(live, column.is_valid())
        found = []
        for part in made:
            if isinstance(part, pa.Scalar):
                found.append(pa.repeat(part, count) if count else pa.nulls(0, part.type))
            else:
                place, resolver = part
                found.append(resolver(parts[place] if place >= 0 else pa.nulls(count), live))
        return pa.StructArray.from_arrays(found, fields=list(kind), mask=hidden)

    return run


def _items(writer: Array, reader: Array, kind: pa.DataType, path: str) -> Resolve:
    items = resolve(writer.items, reader.items, f"{path}[]")

    def run(column: pa.Array, live: Live) -> pa.Array:
        # Hidden rows are empty, so every item is live.
        return pa.ListArray.from_arrays(column.offsets, items(column.values, None), type=kind, mask=_nulls(column))

    return run


def _pairs(writer: Map, reader: Map, kind: pa.DataType, path: str) -> Resolve:
    keys = wire.text(f"{path}{{}}")
    values = resolve(writer.values, reader.values, f"{path}{{}}")

    def run(column: pa.Array, live: Live) -> pa.Array:
        pairs = column.values
        found = values(pairs.field(1) if pairs.type.num_fields > 1 else pa.nulls(len(pairs)), None)
        return pa.MapArray.from_arrays(column.offsets, keys(pairs.field(0)), found, type=kind, mask=_nulls(column))

    return run


def _optional(writer: Union, reader: Node, path: str) -> Resolve:
    """A writer's type or null, read as anything."""
    [value] = writer.values
    resolver = resolve(value, reader, path)
    if reader == NULL or (isinstance(reader, Union) and reader.nullable):
        return resolver
    problem = f"{_at_path(path)}null, and the reader's {describe(reader)} is never"

    def run(column: pa.Array, live: Live) -> pa.Array:
        if column.null_count:
            missing = column.is_null() if live is None else pc.and_(column.is_null(), live)
            if pc.any(missing, min_count=0).as_py():
                raise BlockError(SCHEMA_INCOMPATIBLE, problem)
        return resolver(column, live)

    return run


def _member(writer: Node, reader: Union, kind: pa.DataType, path: str) -> Resolve:
    """A writer's type read as one of several: the first that is the same, else the first that it can become."""
    chosen, resolver = _choose(writer, reader, path)

    def run(column: pa.Array, live: Live) -> pa.Array:
        found = resolver(column, live)
        parts = [found if at == chosen else pa.nulls(len(column), field.type) for at, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=_nulls(column))

    return run


def _branches(writer: Union, reader: Node, kind: pa.DataType, path: str) -> Resolve:
    """A writer's union of several types: each branch as the reader's type, then each row from its own branch."""
    null = writer.branches.index(NULL) if writer.nullable else -1
    resolvers: list[Resolve | str] = []
    for branch in writer.branches:
        try:
            resolvers.append(resolve(branch, reader, path))
        except IncompatibleError as error:
            resolvers.append(str(error))
    if all(isinstance(resolver, str) for resolver in resolvers):
        raise _mismatch(path, writer, reader)

    def run(column: pa.Array, live: Live) -> pa.Array:
        count = len(column)
        codes, branches = _codes(column, null)
        shown = np.ones(count, bool) if live is None else live.to_numpy(zero_copy_only=False)
        taken: list[pa.Array] = []
        places = np.full(count, -1, np.int64)
        for code, resolver in enumerate(resolvers):
            mine = (codes == code) & shown
            if not mine.any():
                continue
            if isinstance(resolver, str):
                raise BlockError(SCHEMA_INCOMPATIBLE, resolver)
            places[mine] = np.arange(count)[mine] + count * len(taken)
            taken.append(resolver(branches.get(code, pa.nulls(count)), pa.array(mine)))
        if not taken:
            return pa.nulls(count, kind)
        return pa.concat_arrays(taken).take(pa.array(places, mask=places < 0))

    return run


def _parts(column: pa.StructArray) -> list[pa.Array]:
    """The columns of a struct, null where it is."""
    # The native reader writes those nulls, and the slow one does not. Arrow aborts the process over a union in a struct
    # with nulls, but only the native reader gives unions.
    if column.null_count and not any(pa.types.is_union(field.type) for field in column.type):
        return list(column.flatten())
    return [column.field(at) for at in range(column.type.num_fields)]


def _codes(column: pa.Array, null: int) -> tuple[npt.NDArray[np.int8], dict[int, pa.Array]]:
    """The branch of each row, -1 where there is none, and the column of each branch: from either reader's union."""
    if pa.types.is_union(column.type):
        codes = column.type_codes.to_numpy()
        count = column.type.num_fields
        return codes, {at: column.field(at).field(0) for at in range(count) if at != null}
    branches = {int(field.name[1:]): part for field, part in zip(column.type, _parts(column), strict=True)}
    codes = np.full(len(column), null, np.int8)
    for code, branch in branches.items():
        codes[branch.is_valid().to_numpy(zero_copy_only=False)] = code
    return codes, branches


def _choose(writer: Node, reader: Union, path: str) -> tuple[int, Resolve]:
    kinds = union_values(reader)
    same = [at for at, kind in enumerate(kinds) if _is_same(writer, kind)]
    for at in [*same, *range(len(kinds))]:
        if isinstance(kinds[at], Record) and at not in same:
            continue
        try:
            return at, resolve(writer, kinds[at], path)
        except IncompatibleError:
            continue
    raise _mismatch(path, writer, reader)


def _is_same(writer: Node, reader: Node) -> bool:
    match writer, reader:
        case Primitive(), Primitive():
            return writer.kind == reader.kind
        case Fixed() | Enum() | Record(), Fixed() | Enum() | Record():
            return type(writer) is type(reader) and _is_named(writer, reader)
        case _:
            return type(writer) is type(reader)


def _default(field: Field, path: str) -> pa.Scalar:
    if not field.has_default:
        raise IncompatibleError(
            f"{_at_path(path)}the writer has no such field, and the reader's {describe(field.type)} no default"
        )
    try:
        return pa.scalar(default_value(field.type, field.default), arrow_type(field.type, path))
    except (ValueError, TypeError, ArithmeticError, RecursionError, pa.ArrowException) as exc:
        raise IncompatibleError(f"{_at_path(path)}the default is no {describe(field.type)}: {exc}") from None


def _nulls(column: pa.Array) -> pa.BooleanArray | None:
    return column.is_null() if column.null_count else None


# Values without parts, promoted from a writer's type to a reader's: which column steps do it, or that none can.

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


def _value_steps(writer: Node, reader: Node, kind: pa.DataType, path: str) -> Sequence[wire.Step]:
    """The steps from a writer's wire column to the reader's type, `kind`. Raises `IncompatibleError`."""
    match writer, reader:
        case Enum(), Enum() if _is_named(writer, reader):
            known = tuple(symbol if symbol in reader.symbols else reader.default for symbol in writer.symbols)
            return [wire.symbols(known, path, f"enum {reader.name}")]
        case Fixed(), Fixed() if writer.size == reader.size and _is_named(writer, reader):
            return [wire.fixed(writer.size), *_binary_steps(writer, reader, kind, path)]
        case Primitive(kind="bytes" | "string"), Primitive(kind="bytes" | "string"):
            return _binary_steps(writer, reader, kind, path)
        case Primitive(), Primitive() if reader.kind in _PROMOTIONS.get(writer.kind, (writer.kind,)):
            return _number_steps(writer, reader, kind, path)
    raise _mismatch(path, writer, reader)


def _binary_steps(
    writer: Primitive | Fixed, reader: Primitive | Fixed, kind: pa.DataType, path: str
) -> list[wire.Step]:
    if reader.logical == "decimal":
        if writer.logical != "decimal":
            return [wire.decimals(kind, reader.scale, path)]
        if writer.scale > reader.scale:
            raise _mismatch(path, writer, reader)
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
        raise _mismatch(path, writer, reader)
    if pa.types.is_timestamp(kind):
        wanted = "micros"
    steps: list[wire.Step] = []
    if writer.kind == "int":
        steps.append(wire.number(pa.int32(), path))
    if unit != wanted:
        factor, rest = divmod(_UNITS[unit], _UNITS[wanted])
        if rest:
            raise _mismatch(path, writer, reader)
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


def _is_named(writer: Fixed | Enum | Record, reader: Fixed | Enum | Record) -> bool:
    """Whether they have one name, without the namespace, or the reader has the writer's as an alias."""
    return writer.name.rpartition(".")[2] == reader.name.rpartition(".")[2] or writer.name in reader.aliases


def _mismatch(path: str, writer: Node, reader: Node) -> IncompatibleError:
    """The error that names both types."""
    return IncompatibleError(f"{_at_path(path)}the writer has {describe(writer)}, the reader {describe(reader)}")


def _at_path(path: str) -> str:
    """The beginning of a message."""
    return f"{path}: " if path else ""

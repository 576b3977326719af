"""Converts columns, in whole arrays, to what an encoder takes, after finding the rows that it cannot take.

A shape is made once, on the driver, from a column's type and the schema of the target. It pickles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.sinks.arrow_types import is_listed

VALUE_NULL = "SINK_VALUE_NULL"
VALUE_UNFIT = "SINK_VALUE_UNFIT"


class UnfitError(Exception):
    """A column that does not fit the target's schema, whatever its values: the message says which, and why."""


@dataclass(frozen=True)
class Rule:
    """A condition on values: `broken` is true where a value violates it, for a whole array."""

    broken: Callable[[pa.Array], pa.Array]
    message: str


@dataclass(frozen=True)
class Shape:
    """How one column or nested value is converted. Without `convert` a plain value stays as it is."""

    path: str
    required: bool
    convert: Callable[[pa.Array], pa.Array] | None = None
    rules: tuple[Rule, ...] = ()
    fields: tuple[tuple[str, Shape], ...] | None = None
    """Of a struct."""
    item: Shape | None = None
    """Of a list's items or a map's values."""
    constant: tuple[pa.DataType, object] | None = None
    """The value of a field of the target that the rows lack."""

    @property
    def changes(self) -> bool:
        """Whether anything is converted."""
        inner = [shape for _, shape in self.fields or ()] + ([self.item] if self.item is not None else [])
        return self.convert is not None or self.constant is not None or any(shape.changes for shape in inner)


@dataclass(frozen=True)
class Misfit:
    """Rows that cannot be written, as a mask, and why."""

    rows: np.ndarray
    code: str
    message: str


def misfits(values: pa.Array, shape: Shape) -> Iterator[Misfit]:
    """The rows whose values the target cannot hold."""
    if shape.constant is not None:
        return
    if shape.required and values.null_count:
        yield Misfit(nulls(values), VALUE_NULL, f"{shape.path} is null, and the schema has no null there")
    if shape.fields is not None:
        there = ~nulls(values)
        for name, child in shape.fields:
            if child.constant is None:
                yield from _of_parent(misfits(values.field(name), child), lambda rows: rows & there)
    elif shape.item is not None:
        values = _as_list(values)
        bounds = _bounds(values)
        there = ~nulls(values)
        yield from _of_parent(
            misfits(_items(values), shape.item), lambda rows: _any_between(rows, bounds - bounds[:1]) & there
        )
    else:
        for rule in shape.rules:
            broken = pc.fill_null(rule.broken(values), False)
            if pc.any(broken).as_py():
                yield Misfit(broken.to_numpy(zero_copy_only=False), VALUE_UNFIT, f"{shape.path}: {rule.message}")


def encodable(rows: pa.RecordBatch, shape: Shape) -> pa.RecordBatch:
    """The rows as a native encoder takes them. They are copied: nested slices make the encoders panic."""
    values = pa.RecordBatch.from_struct_array(lowered(rows.to_struct_array(), shape))
    return pa.ipc.read_record_batch(values.serialize(), values.schema)


def lowered(values: pa.Array, shape: Shape) -> pa.Array:
    """The values as the encoder takes them."""
    if shape.constant is not None:
        kind, value = shape.constant
        return pa.repeat(pa.scalar(value, kind), len(values))
    if not shape.changes:
        return values
    if shape.fields is not None:
        columns = [
            lowered(values.field(name) if child.constant is None else values, child) for name, child in shape.fields
        ]
        return pa.StructArray.from_arrays(columns, [name for name, _ in shape.fields], mask=values.is_null())
    if shape.item is not None:
        values = _as_list(values)
        bounds = _bounds(values)
        offsets = pa.array(bounds - bounds[:1], pa.int32())
        items = lowered(_items(values), shape.item)
        if types.is_map(values.type):
            keys = values.keys.slice(bounds[0], bounds[-1] - bounds[0])
            return pa.MapArray.from_arrays(offsets, keys, items, mask=values.is_null())
        return pa.ListArray.from_arrays(offsets, items, mask=values.is_null())
    return shape.convert(values) if shape.convert is not None else values


def cast_to(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """A cast that never changes a value."""
    return values.cast(kind)


def one_of(symbols: Sequence[str]) -> Rule:
    """Text must be one of the symbols of an enum."""
    return Rule(partial(_not_one_of, symbols=tuple(symbols)), f"is not one of {', '.join(symbols[:10])}")


def _not_one_of(values: pa.Array, symbols: tuple[str, ...]) -> pa.Array:
    return pc.and_(values.is_valid(), pc.invert(pc.is_in(values.cast(pa.string()), pa.array(symbols, pa.string()))))


def _of_parent(found: Iterator[Misfit], rows_of: Callable[[np.ndarray], np.ndarray]) -> Iterator[Misfit]:
    """The misfits of a child, as masks over the rows of its parent."""
    for misfit in found:
        rows = rows_of(misfit.rows)
        if rows.any():
            yield Misfit(rows, misfit.code, misfit.message)


def nulls(values: pa.Array) -> np.ndarray:
    """Which values are null, as a mask."""
    return np.asarray(values.is_null().to_numpy(zero_copy_only=False))


def _as_list(values: pa.Array) -> pa.Array:
    kind = values.type
    return values.cast(pa.list_(kind.value_type)) if is_listed(kind) and not types.is_list(kind) else values


def _bounds(values: pa.Array) -> np.ndarray:
    offsets = values.offsets.to_numpy(zero_copy_only=False)
    return offsets if len(offsets) else np.zeros(1, np.int32)


def _items(values: pa.Array) -> pa.Array:
    bounds = _bounds(values)
    children = values.items if types.is_map(values.type) else values.values
    return children.slice(bounds[0], bounds[-1] - bounds[0])


def _any_between(marked: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """For each list whether any of its items is marked."""
    before = np.concatenate([[0], np.cumsum(marked)])
    return np.asarray(before[bounds[1:]] > before[bounds[:-1]])

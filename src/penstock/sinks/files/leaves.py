"""The leaf columns of a schema, in the order of a Parquet file: what footers and encodings speak of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as types


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf column. `names` leads to it through structs only and is empty inside a list or a map."""

    column: int
    parquet_path: str
    names: tuple[str, ...]
    type: pa.DataType


def leaves_of(schema: pa.Schema) -> list[Leaf]:
    """Every leaf, depth first: its place in the list is its column number in the Parquet file."""
    found = [leaf for field in schema for leaf in _walk(field.type, (field.name,), (field.name,))]
    return [Leaf(column, ".".join(path), names, kind) for column, (path, names, kind) in enumerate(found)]


_Found = tuple[tuple[str, ...], tuple[str, ...], pa.DataType]


def _walk(kind: pa.DataType, path: tuple[str, ...], names: tuple[str, ...]) -> Iterator[_Found]:
    if types.is_struct(kind):
        for field in kind:
            yield from _walk(field.type, (*path, field.name), (*names, field.name) if names else ())
    elif types.is_list(kind) or types.is_large_list(kind):
        yield from _walk(kind.value_type, (*path, "list", "element"), ())
    elif types.is_map(kind):
        yield from _walk(kind.key_type, (*path, "key_value", "key"), ())
        yield from _walk(kind.item_type, (*path, "key_value", "value"), ())
    else:
        yield path, names, kind


def dictionary_columns(leaves: Iterable[Leaf]) -> list[str]:
    """The columns worth a dictionary: text and small integers.

    Of 64-bit numbers, times and bytes most values are distinct, and building dictionaries for them halved
    the write rate and made larger files.
    """
    return [leaf.parquet_path for leaf in leaves if _repeats(leaf.type)]


def _repeats(kind: pa.DataType) -> bool:
    if types.is_string(kind) or types.is_large_string(kind) or types.is_date(kind):
        return True
    return bool(types.is_integer(kind)) and kind.bit_width <= 32

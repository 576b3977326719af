"""`explode`: one row for each element of an array, or for each entry of a map.

The elements take the place of the column; of a map a key and a value column do. A row whose array is empty or
NULL goes, or stays once with NULL. Everything else in the row, its coordinates too, is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import DefinitionError
from penstock.model import COORDINATES, Split
from penstock.transforms.columns import check_distinct, check_reserved, find_column, quote
from penstock.transforms.expressions.terms import sql_name


class Explode:
    """Makes a row of each element. `position` names a column for the element's place, counted from 0."""

    def __init__(
        self, column: str, into: str | None = None, position: str | None = None, keep_empty: bool = False
    ) -> None:
        check_reserved([name for name in (column, into, position) if name is not None])
        self.column = column
        self.into = into
        self.position = position
        self.keep_empty = keep_empty

    def __repr__(self) -> str:
        into = "" if self.into is None else f" as {self.into}"
        return f"explode {self.column}{into}{', keeping empty ones' if self.keep_empty else ''}"

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """None: taking values apart is exact."""
        self.output(schema)
        return None

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns with the elements in the place of the array."""
        place = find_column(self.column, schema.names)
        field = schema.field(place)
        if pa.types.is_map(field.type):
            parts = [field.type.key_field, field.type.item_field]
        elif pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
            parts = [field.type.value_field]
        else:
            raise self._not_an_array(sql_name(field.type))
        made = [part.with_nullable(part.nullable or self.keep_empty) for part in parts]
        if self.position is not None:
            made.insert(0, pa.field(self.position, pa.int32(), nullable=self.keep_empty))
        names = self._made(field.name, is_map=len(parts) > 1)
        made = [part.with_name(name) for part, name in zip(made, names, strict=True)]
        fields = list(schema)
        fields[place : place + 1] = made
        check_distinct([one.name for one in fields])
        return pa.schema(fields)

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Repeat each row for each element of its array."""
        place = find_column(self.column, rows.schema.names)
        array = rows.column(place)
        parents, positions, elements = self._elements(array)
        is_map = pa.types.is_map(array.type)
        made = [values.take(elements) for values in ([array.keys, array.items] if is_map else [array.values])]
        if self.position is not None:
            made.insert(0, positions)
        others = rows.drop_columns([rows.schema.names[place]]).take(parents)
        arrays = [*others.columns[:place], *made, *others.columns[place:]]
        return Split.all_good(pa.RecordBatch.from_arrays(arrays, schema=self.output(rows.schema)))

    def select(self, columns: Sequence[str]) -> str | None:
        """None: the query depends on the column's type; `frame` has it."""
        return None

    def frame(self, frame: Any) -> Any:
        """The same in Spark, over a frame."""
        place = find_column(self.column, frame.columns)
        kind = frame.schema.fields[place].dataType
        if kind.typeName() not in ("array", "map"):
            raise self._not_an_array(kind.simpleString().upper())
        made = self._made(frame.columns[place], is_map=kind.typeName() == "map")
        items = list(map(quote, frame.columns))
        function = f"{'pos' if self.position is not None else ''}explode{'_outer' if self.keep_empty else ''}"
        items[place] = f"{function}({items[place]}) AS ({', '.join(map(quote, made))})"
        check_distinct([*frame.columns[:place], *made, *frame.columns[place + 1 :]])
        return frame.selectExpr(*items)

    def _made(self, name: str, *, is_map: bool) -> list[str]:
        """The names of the columns that are made, in order."""
        into = self.into or name
        parts = [f"{into}_key", f"{into}_value"] if is_map else [into]
        return parts if self.position is None else [self.position, *parts]

    def _elements(self, array: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
        """For each row that leaves: the row it comes from, its place in the array, and where its element lies."""
        # Offsets are those of a slice, the values below them are not: places count from the whole's beginning.
        offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        starts, lengths = offsets[:-1], np.diff(offsets)
        # A NULL may lie over values that nobody is to see.
        lengths = np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
        copies = np.maximum(lengths, 1) if self.keep_empty else lengths
        parents = np.repeat(np.arange(len(array)), copies)
        positions = np.arange(len(parents)) - np.repeat(np.cumsum(copies) - copies, copies)
        empty = lengths[parents] == 0
        return (
            pa.array(parents),
            pa.array(positions.astype(np.int32), mask=empty),
            pa.array(starts[parents] + positions, mask=empty),
        )

    def _not_an_array(self, kind: str) -> DefinitionError:
        return DefinitionError(
            "EXPLODE_NEEDS_ARRAY",
            f'explode takes an array or a map apart, and column "{self.column}" is neither',
            context={"column": self.column, "type": kind},
            hint="name a column of type ARRAY<...> or MAP<..., ...>",
        )


# `flatten`: the fields of a struct as columns of their own, in its place, to any depth.
#
# A column is named by the way to it: `address.geo.lat` becomes `address_geo_lat`. All fields of a NULL struct are
# NULL. Structs inside arrays and maps stay as they are: `explode` first.

Path = tuple[str, ...]
"""A column, then the field inside it, and so on."""


class Flatten:
    """Makes columns of the fields of some structs, or of all; `depth` says how many levels, all where it is None."""

    def __init__(self, columns: Sequence[str] | None = None, separator: str = "_", depth: int | None = None) -> None:
        if columns is not None:
            check_distinct(columns)
            check_reserved(columns)
        self.columns = None if columns is None else list(columns)
        self.separator = separator
        self.depth = depth

    def __repr__(self) -> str:
        return f"flatten {'every struct' if self.columns is None else ', '.join(self.columns)}"

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """None: taking values apart is exact."""
        self.output(schema)
        return None

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns with the fields in the place of the structs."""
        self._check_structs(schema.names, [pa.types.is_struct(f.type) for f in schema], map(sql_name, schema.types))
        found = [leaf for field in schema for leaf in _arrow_leaves((field.name,), field, self._levels(field.name))]
        names = self._named([path for path, _ in found])
        return pa.schema(field.with_name(name) for name, (_, field) in zip(names, found, strict=True))

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Take the structs apart."""
        pairs = zip(rows.schema.names, rows.columns, strict=True)
        arrays = [leaf for name, array in pairs for leaf in _leaf_arrays(array, self._levels(name))]
        return Split.all_good(pa.RecordBatch.from_arrays(arrays, schema=self.output(rows.schema)))

    def select(self, columns: Sequence[str]) -> str | None:
        """None: the query depends on the structs' fields; `frame` has it."""
        return None

    def frame(self, frame: Any) -> Any:
        """The same in Spark, over a frame."""
        kinds = [field.dataType for field in frame.schema.fields]
        shown = (kind.simpleString().upper() for kind in kinds)
        self._check_structs(frame.columns, [kind.typeName() == "struct" for kind in kinds], shown)
        columns = zip(frame.columns, kinds, strict=True)
        paths = [path for name, kind in columns for path in _spark_leaves((name,), kind, self._levels(name))]
        pairs = zip(paths, self._named(paths), strict=True)
        return frame.selectExpr(*(f"{'.'.join(map(quote, path))} AS {quote(name)}" for path, name in pairs))

    def _levels(self, column: str) -> float:
        """How many levels of a column are taken apart."""
        chosen = self.columns is None or column.lower() in map(str.lower, self.columns)
        if not chosen or column == COORDINATES:
            return 0
        return inf if self.depth is None else self.depth

    def _named(self, paths: Sequence[Path]) -> list[str]:
        """The names of the columns, no two alike."""
        taken: dict[str, Path] = {}
        for path in paths:
            name = self.separator.join(path)
            other = taken.setdefault(name.lower(), path)
            if other is not path:
                raise DefinitionError(
                    "COLUMN_DUPLICATE",
                    f'flattening: two columns would be named "{name}"',
                    context={"one": ".".join(other), "other": ".".join(path)},
                    hint="rename or drop one of them first, or set another separator",
                )
        return [self.separator.join(path) for path in paths]

    def _check_structs(self, names: Sequence[str], structs: Sequence[bool], kinds: Iterable[str]) -> None:
        types = list(kinds)
        for name in self.columns or ():
            place = find_column(name, names)
            if not structs[place]:
                raise DefinitionError(
                    "FLATTEN_NEEDS_STRUCT",
                    f'flatten expands structs, and column "{name}" is not one',
                    context={"column": name, "type": types[place]},
                    hint="name columns of type STRUCT<...>, or none at all to flatten every struct",
                )


def _arrow_leaves(path: Path, field: pa.Field, levels: float) -> list[tuple[Path, pa.Field]]:
    if not pa.types.is_struct(field.type) or levels < 1:
        return [(path, field)]
    inner = [child.with_nullable(child.nullable or field.nullable) for child in field.type]
    return [leaf for child in inner for leaf in _arrow_leaves((*path, child.name), child, levels - 1)]


def _leaf_arrays(array: pa.Array, levels: float) -> list[pa.Array]:
    if not pa.types.is_struct(array.type) or levels < 1:
        return [array]
    # Unlike the fields as they lie, these are NULL where the struct is, and begin where a slice begins.
    return [leaf for child in array.flatten() for leaf in _leaf_arrays(child, levels - 1)]


def _spark_leaves(path: Path, kind: Any, levels: float) -> list[Path]:
    if kind.typeName() != "struct" or levels < 1:
        return [path]
    return [leaf for child in kind for leaf in _spark_leaves((*path, child.name), child.dataType, levels - 1)]

"""`flatten`: the fields of a struct as columns of their own, in its place, to any depth.

A column is named by the way to it: `address.geo.lat` becomes `address_geo_lat`. All fields of a NULL struct are
NULL. Structs inside arrays and maps stay as they are: `explode` first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

import pyarrow as pa

from penstock.errors import DefinitionError
from penstock.model import COORDINATES, Split
from penstock.transforms.columns import check_distinct, check_reserved, find_column, quote
from penstock.transforms.expressions.terms import sql_name

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

    def names(self, columns: Sequence[str]) -> list[str] | None:
        """None: what columns leave is for the types to say."""
        for name in self.columns or ():
            find_column(name, columns)
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

"""`explode`: one row for each element of an array, or for each entry of a map.

The elements take the place of the column; of a map a key and a value column do. A row whose array is empty or
NULL goes, or stays once with NULL. Everything else in the row, its coordinates too, is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from penstock.config.step_columns import exploded, flattened
from penstock.contracts import FrameTransform
from penstock.errors import DefinitionError
from penstock.model import Split
from penstock.transforms.columns import check_distinct, check_reserved, find_column, quote
from penstock.transforms.expressions.terms import sql_name
from penstock.transforms.step import Step

T = TypeVar("T")


class Explode(Step, FrameTransform):
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
        elements = [part.with_nullable(part.nullable or self.keep_empty) for part in parts]
        position = pa.field("", pa.int32(), nullable=self.keep_empty)
        columns = self._columns([(one.name, one) for one in schema], elements, position)
        return pa.schema(field.with_name(name) for name, field in columns)

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Repeat each row for each element of its array."""
        place = find_column(self.column, rows.schema.names)
        array = rows.column(place)
        parents, positions, elements = self._elements(array)
        values = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
        # The array itself goes: repeating it would cost the most.
        others = (one if at == place else one.take(parents) for at, one in enumerate(rows.columns))
        entering = list(zip(rows.schema.names, others, strict=True))
        columns = self._columns(entering, [one.take(elements) for one in values], positions)
        schema = self.output(rows.schema)
        return Split.all_good(pa.RecordBatch.from_arrays([column for _, column in columns], schema=schema))

    def frame(self, frame: Any) -> Any:
        """The same in Spark, over a frame: the query depends on the column's type."""
        place = find_column(self.column, frame.columns)
        kind = frame.schema.fields[place].dataType
        if kind.typeName() not in ("array", "map"):
            raise self._not_an_array(kind.simpleString().upper())
        elements = ["", ""] if kind.typeName() == "map" else [""]
        names = [name for name, _ in self._columns([(name, "") for name in frame.columns], elements, "")]
        made = names[place : place + len(names) - len(frame.columns) + 1]
        items = list(map(quote, frame.columns))
        function = f"{'pos' if self.position is not None else ''}explode{'_outer' if self.keep_empty else ''}"
        items[place] = f"{function}({items[place]}) AS ({', '.join(map(quote, made))})"
        return frame.selectExpr(*items)

    def _columns(self, columns: Sequence[tuple[str, T]], elements: Sequence[T], position: T) -> list[tuple[str, T]]:
        names = [name for name, _ in columns]
        column = names[find_column(self.column, names)]
        found = exploded(columns, column, elements, position, self.into, self.position)
        check_distinct([name for name, _ in found])
        return found

    def _elements(self, array: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
        """For each row that leaves: the row it comes from, its place in the array, and where its element lies."""
        # Offsets are those of a slice, the values below them are not: places count from the whole's beginning.
        offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        starts, lengths = offsets[:-1], np.diff(offsets)
        # A NULL may hide values that must not be read.
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


class Flatten(Step, FrameTransform):
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

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns with the fields in the place of the structs."""
        self._check_structs(schema.names, [pa.types.is_struct(f.type) for f in schema], map(sql_name, schema.types))
        leaves = self._columns(((field.name, field) for field in schema), _arrow_fields)
        return pa.schema(field.with_name(name) for name, field in leaves)

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Take the structs apart."""
        leaves = self._columns(zip(rows.schema.names, rows.columns, strict=True), _field_arrays)
        arrays = [array for _, array in leaves]
        return Split.all_good(pa.RecordBatch.from_arrays(arrays, schema=self.output(rows.schema)))

    def frame(self, frame: Any) -> Any:
        """The same in Spark, over a frame: the query depends on the structs' fields."""
        kinds = [field.dataType for field in frame.schema.fields]
        shown = (kind.simpleString().upper() for kind in kinds)
        self._check_structs(frame.columns, [kind.typeName() == "struct" for kind in kinds], shown)
        columns = ((name, _SparkField(kind, quote(name))) for name, kind in zip(frame.columns, kinds, strict=True))
        leaves = self._columns(columns, _spark_fields)
        return frame.selectExpr(*(f"{field.sql} AS {quote(name)}" for name, field in leaves))

    def _columns(
        self, columns: Iterable[tuple[str, T]], fields: Callable[[T], list[tuple[str, T]] | None]
    ) -> list[tuple[str, T]]:
        """The columns that leave, no two of one name."""
        leaves = flattened(columns, fields, self.columns, self.depth)
        taken: dict[str, tuple[str, ...]] = {}
        for path, _ in leaves:
            name = self.separator.join(path)
            other = taken.setdefault(name.lower(), path)
            if other is not path:
                raise DefinitionError(
                    "COLUMN_DUPLICATE",
                    f'flattening: two columns would be named "{name}"',
                    context={"one": ".".join(other), "other": ".".join(path)},
                    hint="rename or drop one of them first, or set another separator",
                )
        return [(self.separator.join(path), one) for path, one in leaves]

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


def _arrow_fields(field: pa.Field) -> list[tuple[str, pa.Field]] | None:
    if not pa.types.is_struct(field.type):
        return None
    return [(child.name, child.with_nullable(child.nullable or field.nullable)) for child in field.type]


def _field_arrays(array: pa.Array) -> list[tuple[str, pa.Array]] | None:
    if not pa.types.is_struct(array.type):
        return None
    # Unlike the fields as they lie, these are NULL where the struct is, and begin where a slice begins.
    return [(field.name, child) for field, child in zip(array.type, array.flatten(), strict=True)]


class _SparkField(NamedTuple):
    kind: Any
    sql: str


def _spark_fields(field: _SparkField) -> list[tuple[str, _SparkField]] | None:
    if field.kind.typeName() != "struct":
        return None
    return [(child.name, _SparkField(child.dataType, f"{field.sql}.{quote(child.name)}")) for child in field.kind]

"""The columns of the rows compared with those of a target: what fits, what would be added, and what conflicts.

A value goes into a column of its own type or of a wider one, which loses nothing; the stage casts it. All else is
for `evolve` to decide, in one of four ways, or is an error that names both types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa
import pyarrow.types as types

from penstock.config.arrow_types import arrow_to_ddl
from penstock.errors import MissingError
from penstock.model import COMPUTED, COORDINATES, NEVER_NULL
from penstock.sinks.failures import mismatch

Evolve = Literal["fail", "ignore", "add_columns", "widen"]

Describe = Callable[[pa.DataType], str]
CanWiden = Callable[[pa.DataType, pa.DataType], bool]
"""Whether a column can be widened from the first type to the second without loss."""


_REQUIRED = "NOT NULL"


def may_be_null(field: pa.Field) -> bool:
    """Whether a row may lack a value of the column."""
    return bool(field.nullable) and NEVER_NULL not in (field.metadata or {})


def _always(held: pa.DataType, wanted: pa.DataType) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Addition:
    """A field that the target lacks. In `path`, Spark's: inside an array is `element`, inside a map `value`."""

    name: str
    path: tuple[str, ...]
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Widening:
    """A column that is too narrow for the rows, and the type that holds theirs and its own."""

    name: str
    path: tuple[str, ...]
    held: pa.DataType
    type: pa.DataType


@dataclass(frozen=True)
class Fit:
    """How rows fit a target."""

    taken: pa.Schema
    """What is written: the rows' columns less those left out, in the types that the target has once it is changed."""
    added: Sequence[Addition] = ()
    widened: Sequence[Widening] = ()
    left_out: Sequence[Addition] = ()

    @property
    def changes_target(self) -> bool:
        """Whether the target has to change first."""
        return bool(self.added or self.widened)

    def changes(self, describe: Describe = arrow_to_ddl) -> list[str]:
        """The changes, for people, one line each."""
        return [
            *(f"add column {each.name} {describe(each.type)}" for each in self.added),
            *(f"widen {each.name} {describe(each.held)} -> {describe(each.type)}" for each in self.widened),
            *(f"ignore column {each.name}" for each in self.left_out),
        ]


@dataclass(frozen=True, slots=True)
class Fitting:
    """The rules of one sink for its target. `describe` gives a type in the target's own words, for errors."""

    sink: str
    evolve: Evolve = "fail"
    what: str = "the table"
    can_widen: CanWiden = _always
    describe: Describe = arrow_to_ddl

    def fit(self, rows: pa.Schema, held: pa.Schema, *, whole: bool = True, may_change: bool = True) -> Fit:
        """How the rows fit a target with the columns `held`. Raises where they do not.

        They must be `whole`, with all that the target requires, unless it requires nothing. A target that may not
        change takes no new columns and types.
        """
        evolve: Evolve = self.evolve if may_change or self.evolve == "ignore" else "fail"
        found = _Comparison(replace(self, evolve=evolve), whole)
        taken = found.fields("", (), list(rows), list(held))
        if found.differing:
            raise self._refuse_types(found)
        if found.lacking and evolve == "fail":
            raise self._refuse_lacking(found.lacking, rows, held)
        if evolve == "ignore":
            return Fit(pa.schema(taken), (), found.widened, found.dropped)
        return Fit(pa.schema(taken), found.lacking, found.widened)

    def staged(self, rows: pa.Schema, held: pa.Schema) -> pa.Schema:
        """In a task: the columns of these rows that are written to a target prepared for them, in its types.

        Rows may lack what the target requires, as tombstones do. A column that the target does not have is still an
        error: it would be lost silently.
        """
        return self.fit(rows, held, whole=False, may_change=False).taken

    def _refuse_types(self, found: _Comparison) -> MissingError:
        hint = "cast the column in the pipeline, or write to another table"
        if self.evolve != "widen" and found.may_widen and len(found.may_widen) == len(found.differing):
            hint = f"set evolve: widen on this sink, {hint}"
        facts = {name: f"pipeline {ours}, table {its}" for name, (ours, its) in found.differing.items()}
        if all(its == _REQUIRED for _, its in found.differing.values()):
            hint = "declare the columns NOT NULL in the pipeline's schema, or let the table's columns be null"
            return mismatch(self.sink, f"{self.what} requires values that the rows may lack", facts, hint)
        return mismatch(self.sink, f"{self.what} has other types", facts, hint)

    def _refuse_lacking(self, lacking: Sequence[Addition], rows: pa.Schema, held: pa.Schema) -> MissingError:
        return mismatch(
            self.sink,
            f"{self.what} lacks {', '.join(each.name for each in lacking)}",
            {"pipeline": ", ".join(rows.names), "table": ", ".join(held.names)},
            "set evolve: add_columns on this sink, or drop the columns in the pipeline",
        )


def wide_enough(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds every value of both, or none where no type does without a change of kind."""
    if types.is_signed_integer(one) and types.is_signed_integer(other):
        return one if one.bit_width >= other.bit_width else other
    if types.is_floating(one) and types.is_floating(other):
        return one if one.bit_width >= other.bit_width else other
    if types.is_decimal128(one) and types.is_decimal128(other):
        scale = max(one.scale, other.scale)
        precision = scale + max(one.precision - one.scale, other.precision - other.scale)
        return pa.decimal128(precision, scale) if precision <= 38 else None
    return None


def check_columns(sink: str, schema: pa.Schema, system: str, folding: str, has: Callable[[pa.DataType], bool]) -> None:
    """Refuse columns of types that a system does not have, and names that differ only in case where it is folded."""
    wrong = [f"{name}: {kind}" for field in schema for name, kind in unwritable(field.name, field.type, has)]
    if wrong:
        raise mismatch(sink, f"columns of types that {system} does not have", {"columns": ", ".join(wrong)})
    check_names(sink, schema, folding)


def check_names(sink: str, schema: pa.Schema, folding: str) -> None:
    """Refuse names that are equal once their case is folded."""
    folded = [name.lower() for name in schema.names]
    twice = sorted({name for name in folded if folded.count(name) > 1})
    if twice:
        raise mismatch(sink, f"columns that differ in case only, which {folding} takes for one", {"columns": twice})


def check_partitions(sink: str, ours: Sequence[str], theirs: Sequence[str], what: str = "table") -> None:
    """Refuse a target that is partitioned differently."""
    if list(theirs) != list(ours):
        facts = {"pipeline": ", ".join(ours) or "none", "table": ", ".join(theirs) or "none"}
        raise mismatch(sink, f"the {what} is partitioned differently", facts, f"set partition_by as in the {what}")


def unwritable(name: str, kind: pa.DataType, has: Callable[[pa.DataType], bool]) -> Iterator[tuple[str, pa.DataType]]:
    """The parts of a column whose plain types a system does not have."""
    if types.is_struct(kind):
        for each in kind:
            yield from unwritable(f"{name}.{each.name}", each.type, has)
    elif _is_list(kind):
        yield from unwritable(f"{name}[]", kind.value_type, has)
    elif types.is_map(kind):
        yield from unwritable(f"{name} key", kind.key_type, has)
        yield from unwritable(f"{name} value", kind.item_type, has)
    elif not has(kind):
        yield name, kind


def union(held: Sequence[pa.Field], ours: Sequence[pa.Field], *, loosen: bool = False) -> list[pa.Field]:
    """The fields of both where they fit, those of the target first. New fields may be null.

    `loosen` lets every field be null that either side may lack.
    """
    mine = {each.name: each for each in ours}
    known = {each.name for each in held}
    fields = []
    for its in held:
        own = mine.get(its.name)
        nullable = its.nullable or (loosen and (own is None or own.nullable))
        kind = its.type if own is None else _union_type(its.type, own.type, loosen)
        fields.append(its.with_type(kind).with_nullable(nullable))
    return [*fields, *(pa.field(each.name, each.type) for each in ours if each.name not in known)]


def _union_type(held: pa.DataType, mine: pa.DataType, loosen: bool) -> pa.DataType:
    if types.is_struct(held):
        return pa.struct(union(list(held), list(mine), loosen=loosen))
    if _is_list(held):
        nullable = held.value_field.nullable or (loosen and mine.value_field.nullable)
        return pa.list_(pa.field("element", _union_type(held.value_type, mine.value_type, loosen), nullable))
    if types.is_map(held):
        return pa.map_(held.key_type, held.item_field.with_type(_union_type(held.item_type, mine.item_type, loosen)))
    return held


def written_columns(schema: pa.Schema, *, keep_coordinates: bool) -> pa.Schema:
    """The columns of the rows that are the target's too: not those computed for the sink alone."""
    kept = (each for each in schema if not each.name.startswith(COMPUTED))
    return pa.schema([each for each in kept if keep_coordinates or each.name != COORDINATES])


def cast_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema` out of the rows, each in the type it has there; without a copy where it has it."""
    arrays = [rows.column(each.name) for each in schema]
    cast = [
        values if values.type == each.type else values.cast(each.type)
        for values, each in zip(arrays, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


@dataclass
class _Comparison:
    """Walks through both schemas side by side, and collects the differences."""

    rules: Fitting
    whole: bool = True
    """Rows must have what the target requires."""
    lacking: list[Addition] = field(default_factory=list)
    dropped: list[Addition] = field(default_factory=list)
    widened: list[Widening] = field(default_factory=list)
    differing: dict[str, tuple[str, str]] = field(default_factory=dict)
    may_widen: list[str] = field(default_factory=list)
    _inside_key: bool = False

    def fields(
        self, name: str, path: tuple[str, ...], mine: Sequence[pa.Field], held: Sequence[pa.Field]
    ) -> list[pa.Field]:
        """The fields of rows that are written."""
        theirs = {each.name.lower(): each for each in held}
        taken: list[pa.Field] = []
        for ours in mine:
            label, place = f"{name}.{ours.name}".lstrip("."), (*path, ours.name)
            its = theirs.pop(ours.name.lower(), None)
            if its is None:
                taken += self._lacking(label, place, ours)
            elif ours.name != its.name:
                self.differing[f"{name}.{its.name}".lstrip(".")] = f"named {ours.name}", f"named {its.name}"
            elif self.whole and may_be_null(ours) and not its.nullable:
                self.differing[label] = "may be null", _REQUIRED
            elif kind := self._type(label, place, ours.type, its.type):
                taken.append(pa.field(ours.name, kind, ours.nullable, ours.metadata))
            elif self.whole and not its.nullable:
                self.differing[label] = "nothing of it written", _REQUIRED
            else:
                self.dropped.append(Addition(label, place, ours.type))
        for its in theirs.values():
            if self.whole and not its.nullable:
                self.differing[f"{name}.{its.name}".lstrip(".")] = "not written", _REQUIRED
        return taken

    def _lacking(self, label: str, place: tuple[str, ...], ours: pa.Field) -> Iterator[pa.Field]:
        addition = Addition(label, place, ours.type)
        if self._inside_key:
            self.differing[label] = self._describe(ours.type), "no such field"
            return
        self.lacking.append(addition)
        if self.rules.evolve == "ignore":
            self.dropped.append(addition)
        else:
            yield ours

    def _type(self, name: str, path: tuple[str, ...], mine: pa.DataType, held: pa.DataType) -> pa.DataType | None:
        """The type in which rows are written; none where nothing of it is left to write."""
        if types.is_struct(mine) and types.is_struct(held):
            inner = self.fields(name, path, list(mine), list(held))
            return pa.struct(inner) if inner or not mine.num_fields else None
        if _is_list(mine) and _is_list(held):
            self._nullable(f"{name}[]", mine.value_field, held.value_field)
            item = self._type(f"{name}[]", (*path, "element"), mine.value_type, held.value_type)
            made = pa.large_list if types.is_large_list(mine) else pa.list_
            return made(mine.value_field.with_type(item)) if item else None
        if types.is_map(mine) and types.is_map(held):
            self._nullable(f"{name} value", mine.item_field, held.item_field)
            outer, self._inside_key = self._inside_key, True
            key = self._type(f"{name} key", (*path, "key"), mine.key_type, held.key_type)
            self._inside_key = outer
            item = self._type(f"{name} value", (*path, "value"), mine.item_type, held.item_type)
            return pa.map_(key, mine.item_field.with_type(item)) if key and item else None
        return self._leaf(name, path, mine, held)

    def _leaf(self, name: str, path: tuple[str, ...], mine: pa.DataType, held: pa.DataType) -> pa.DataType:
        if _plain(mine) == _plain(held):
            return mine
        wide = wide_enough(held, mine)
        if wide == held:
            return held
        if wide is not None and not self._inside_key and self.rules.can_widen(held, wide):
            if self.rules.evolve == "widen":
                self.widened.append(Widening(name, path, held, wide))
                return wide
            self.may_widen.append(name)
        self.differing[name] = self._describe(mine), self._describe(held)
        return mine

    def _nullable(self, name: str, mine: pa.Field, held: pa.Field) -> None:
        if self.whole and may_be_null(mine) and not held.nullable:
            self.differing[name] = "may be null", _REQUIRED

    def _describe(self, kind: pa.DataType) -> str:
        return _NESTED.get(kind.id) or self.rules.describe(kind)


_NESTED: Mapping[int, str] = {
    pa.lib.Type_STRUCT: "struct",
    pa.lib.Type_LIST: "array",
    pa.lib.Type_LARGE_LIST: "array",
    pa.lib.Type_MAP: "map",
}


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type with small offsets: what differs in these alone holds the same values."""
    if types.is_large_string(kind):
        return pa.string()
    return pa.binary() if types.is_large_binary(kind) else kind

"""What happens to the good rows, step by step. Each step sees the columns that the step before left."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Discriminator, Field, Tag

from penstock.config.ddl import ColumnsError, ColumnType, read_type
from penstock.config.everyday import (
    EnrichConfig,
    ExpectConfig,
    ExplodeConfig,
    FlattenConfig,
    MapArrowConfig,
    MaskConfig,
    PythonConfig,
)
from penstock.config.expressions import ExpressionError, place_for_coordinates, read_query
from penstock.config.fields import BESIDE, COORDINATES, ComputingStep, Duration, Names, Section, Step, Text, models_of
from penstock.config.problems import Path
from penstock.config.scope import Scope, step_at
from penstock.config.stateful import JoinConfig, StatefulConfig, WatermarkConfig, WindowConfig
from penstock.config.step_columns import computed, renamed, without


class WhereConfig(ComputingStep):
    """Keep the rows for which a condition is true; false and null go."""

    kind: ClassVar[str] = "where"
    where: Text = Field(description="A Spark SQL condition.", examples=["amount >= 0"])

    def check(self, scope: Scope, path: Path) -> None:
        """The condition is one over the columns, which all stay."""
        scope.check_expression(self.where, path)


class DeriveConfig(ComputingStep):
    """Add columns, or replace existing ones in place.

    Every expression of one step sees the columns that entered the step, not each other's results; a later
    `derive` step sees them. The order is that of the file.
    """

    kind: ClassVar[str] = "derive"
    derive: Annotated[dict[Text, Text], Field(min_length=1)] = Field(
        description="New column: Spark SQL expression.", examples=[{"event_date": "date(event_time)"}]
    )

    def check(self, scope: Scope, path: Path) -> None:
        """The expressions are over the columns that enter; the types of what they give are not known here."""
        neighbours = [name for name in self.derive if name not in (scope.types or ())]
        scope.gone |= dict.fromkeys(neighbours, "made by this same step: use it in a derive step after this one")
        for name, expression in self.derive.items():
            scope.check_new(name, (*path, name), replaces=True)
            scope.check_expression(expression, (*path, name))
        for name in self.derive:
            scope.gone.pop(name, None)
        if scope.types is not None:
            scope.give(computed(scope.types.items(), ((name, None) for name in self.derive)))


class RenameConfig(Step):
    """Give columns other names; their order stays."""

    kind: ClassVar[str] = "rename"
    rename: Annotated[dict[Text, Text], Field(min_length=1)] = Field(description="Old name: new name.")

    def check(self, scope: Scope, path: Path) -> None:
        """The old names are there, the new ones are free."""
        taken: dict[str, str] = {}
        for old, new in self.rename.items():
            here = (*path, old)
            if old == COORDINATES:
                scope.file.report(here, f'"{COORDINATES}" carries the coordinates and keeps its name', at_key=True)
            else:
                scope.has(here, old, at_key=True)
            scope.check_new(new, here, without=self.rename)
            if new.lower() in taken:
                context = [f"the other: {taken[new.lower()]}"]
                scope.file.report(here, f'two columns cannot both become "{new}"', context=context)
            taken[new.lower()] = old
            scope.gone[old] = f'renamed to "{new}" by {step_at(path)}'
        if scope.types is not None:
            scope.give(renamed(scope.types.items(), self.rename))


class DropConfig(Step):
    """Leave columns out."""

    kind: ClassVar[str] = "drop"
    drop: Names = Field(description="The columns to leave out.")

    def check(self, scope: Scope, path: Path) -> None:
        """The columns are there, and some column is left."""
        for index, name in enumerate(self.drop):
            here = (*path, index)
            if name == COORDINATES:
                hint = "to leave it out of a table: coordinates: false in the sink"
                scope.file.report(here, f'"{COORDINATES}" carries the coordinates and cannot be dropped', hint=hint)
            elif scope.has(here, name) and scope.types is not None:
                scope.give(without(scope.types.items(), [name]))
                scope.gone[name] = f"dropped by {step_at(path)}"
        if scope.types is not None and not scope.names():
            scope.file.report(path, "no column is left after this step")


class CastConfig(ComputingStep):
    """Change the types of columns, as Spark's CAST does."""

    kind: ClassVar[str] = "cast"
    cast: Annotated[dict[Text, Text], Field(min_length=1)] = Field(
        description="Column: Spark SQL type.", examples=[{"amount": "DECIMAL(10, 2)"}]
    )

    def check(self, scope: Scope, path: Path) -> None:
        """The columns are there, and the types are some."""
        for name, text in self.cast.items():
            here = (*path, name)
            if name == COORDINATES:
                scope.file.report(here, f'"{COORDINATES}" carries the coordinates and keeps its type', at_key=True)
                continue
            there = scope.has(here, name, at_key=True)
            try:
                target = read_type(text)
            except ColumnsError as error:
                scope.file.report(here, error.message, offset=error.offset, hint=error.hint)
                continue
            if there and scope.types is not None:
                scope.give(computed(scope.types.items(), [(name, target)]))


class DedupeKeys(Section):
    """What makes two rows the same."""

    keys: Names = Field(description="The columns that together identify a row.")
    within: Duration | None = Field(
        default=None,
        description="Across batches: a row whose keys were seen is left out for this long in event time. The first one "
        "is kept. Needs a watermark before it. Left out, the newest of each batch is kept.",
    )


class DedupeConfig(Step):
    """Of the rows with equal keys keep one: the newest of a batch; with `within` the first, across batches."""

    kind: ClassVar[str] = "dedupe"
    dedupe: DedupeKeys = Field(description="The keys to compare.")

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that together identify a row."""
        return self.dedupe.keys

    def check(self, scope: Scope, path: Path) -> None:
        """The keys are there, and what says which row is the newest, or when a key is forgotten."""
        if self.dedupe.within is not None:
            scope.check_event_time(path, "dedupe within a time", "no key could ever be forgotten")
        elif scope.types is not None and COORDINATES not in scope.types:
            hint = f"select {COORDINATES} in the sql step before"
            scope.file.report(
                path, f'dedupe keeps the newest offset, but the column "{COORDINATES}" is gone', hint=hint
            )
        scope.check_columns(self.keys, (*path, "keys"))


class SqlConfig(Step):
    """One SELECT over `input`, the rows of the batch, and over any of `tables:`. Takes the frame lane."""

    kind: ClassVar[str] = "sql"
    sql: Text = Field(description="A Spark SQL query over `input`.", examples=["SELECT * FROM input"])

    def check(self, scope: Scope, path: Path) -> None:
        """The query reads columns that are there. What leaves it is known where its select list says so."""
        before = scope.types
        scope.types = None
        try:
            query = read_query(self.sql)
        except ExpressionError as error:
            scope.file.report(path, error.message, offset=error.offset, hint=error.hint)
            return
        scope.types = before
        for reference in query.references:
            scope.check_reference(reference, path, fold=True)
        scope.gone, scope.types = {}, None
        if query.outputs is None or ("*" in query.outputs and before is None):
            return
        types = before or {}
        after: dict[str, ColumnType | None] = {}
        for output in query.outputs:
            new = types if output == "*" else {output: types.get(output)}
            for name in new:
                if name.lower() in (other.lower() for other in after):
                    hint = "give one of them another name"
                    scope.file.report(path, f'the query gives the column "{name}" twice', hint=hint)
            after |= new
        if COORDINATES in (before or [COORDINATES]) and place_for_coordinates(self.sql) is not None:
            after[COORDINATES] = types.get(COORDINATES)
        scope.gone = dict.fromkeys(types, f"not selected by {step_at(path)}")
        scope.types = after


def _kind_of(item: Any) -> str | None:
    if isinstance(item, BaseModel):
        return str(getattr(item, "kind", None))
    if isinstance(item, dict):
        keys = [key for key in item if key not in BESIDE]
        return str(keys[0]) if len(keys) == 1 else None
    return None


TransformConfig = Annotated[
    Annotated[WhereConfig, Tag("where")]
    | Annotated[DeriveConfig, Tag("derive")]
    | Annotated[RenameConfig, Tag("rename")]
    | Annotated[DropConfig, Tag("drop")]
    | Annotated[CastConfig, Tag("cast")]
    | Annotated[ExplodeConfig, Tag("explode")]
    | Annotated[FlattenConfig, Tag("flatten")]
    | Annotated[MaskConfig, Tag("mask")]
    | Annotated[ExpectConfig, Tag("expect")]
    | Annotated[EnrichConfig, Tag("enrich")]
    | Annotated[DedupeConfig, Tag("dedupe")]
    | Annotated[MapArrowConfig, Tag("map_arrow")]
    | Annotated[SqlConfig, Tag("sql")]
    | Annotated[PythonConfig, Tag("python")]
    | Annotated[WatermarkConfig, Tag("watermark")]
    | Annotated[WindowConfig, Tag("window")]
    | Annotated[JoinConfig, Tag("join")]
    | Annotated[StatefulConfig, Tag("stateful")],
    Discriminator(_kind_of),
]
KINDS = tuple(step.kind for step in models_of(TransformConfig) if issubclass(step, Step))


def remembers(step: TransformConfig | None) -> bool:
    """Whether a step keeps state from batch to batch."""
    return isinstance(step, WindowConfig | JoinConfig | StatefulConfig) or (
        isinstance(step, DedupeConfig) and step.dedupe.within is not None
    )

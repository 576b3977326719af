"""What happens to the good rows, step by step. Each step sees the columns that the step before left; its `check` gives
the scope those that leave it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from penstock.config.ddl import ColumnsError, ColumnType, read_type
from penstock.config.expressions import ExpressionError, place_for_coordinates, read_query
from penstock.config.fields import (
    BESIDE,
    COORDINATES,
    ComputingStep,
    Count,
    Dotted,
    Duration,
    Name,
    Names,
    Pairs,
    Secret,
    Section,
    Step,
    Text,
    models_of,
)
from penstock.config.problems import Path
from penstock.config.scope import Scope, step_at
from penstock.config.stateful import JoinConfig, StatefulConfig, WatermarkConfig, WindowConfig
from penstock.config.step_columns import added, computed, exploded, flattened, renamed, without


class WhereConfig(ComputingStep):
    """Keep the rows for which a condition is true; false and null go."""

    where: Text = Field(description="A Spark SQL condition.", examples=["amount >= 0"])

    def check(self, scope: Scope, path: Path) -> None:
        """The condition is one over the columns, which all stay."""
        scope.check_expression(self.where, path)


class DeriveConfig(ComputingStep):
    """Add columns, or replace existing ones in place.

    Every expression of a step sees the input columns of the step, not each other's results; a later `derive` step sees
    them. Order as in the file.
    """

    derive: Annotated[dict[Text, Text], Field(min_length=1)] = Field(
        description="New column: Spark SQL expression.", examples=[{"event_date": "date(event_time)"}]
    )

    def check(self, scope: Scope, path: Path) -> None:
        """The expressions are over the columns that enter; the types of what they give are not known here."""
        neighbours = [name for name in self.derive if name not in (scope.types or ())]
        scope.gone |= dict.fromkeys(neighbours, "created by this same step: use it in a later derive step")
        for name, expression in self.derive.items():
            scope.check_new(name, (*path, name), replaces=True)
            scope.check_expression(expression, (*path, name))
        for name in self.derive:
            scope.gone.pop(name, None)
        if scope.types is not None:
            scope.give(computed(scope.types.items(), ((name, None) for name in self.derive)))


class RenameConfig(Step):
    """Give columns other names; their order stays."""

    rename: Annotated[dict[Text, Text], Field(min_length=1)] = Field(description="Old name: new name.")

    def check(self, scope: Scope, path: Path) -> None:
        """The old names are there, the new ones are free."""
        taken: dict[str, str] = {}
        for old, new in self.rename.items():
            here = (*path, old)
            scope.has(here, old, at_key=True, coordinates="keeps its name")
            scope.check_new(new, here, without=self.rename)
            if new.lower() in taken:
                context = [f"the other: {taken[new.lower()]}"]
                scope.file.report(here, f'two columns cannot both be renamed to "{new}"', context=context)
            taken[new.lower()] = old
            scope.gone[old] = f'renamed to "{new}" by {step_at(path)}'
        if scope.types is not None:
            scope.give(renamed(scope.types.items(), self.rename))


class DropConfig(Step):
    """Leave columns out."""

    drop: Names = Field(description="The columns to drop.")

    def check(self, scope: Scope, path: Path) -> None:
        """The columns are there, and some column is left."""
        for index, name in enumerate(self.drop):
            here = (*path, index)
            if name == COORDINATES:
                hint = "to omit it from a table, set coordinates: false in the sink"
                scope.file.report(here, f'"{COORDINATES}" carries the coordinates and cannot be dropped', hint=hint)
            elif scope.has(here, name) and scope.types is not None:
                scope.give(without(scope.types.items(), [name]))
                scope.gone[name] = f"dropped by {step_at(path)}"
        if scope.types is not None and not scope.names():
            scope.file.report(path, "no column is left after this step")


class CastConfig(ComputingStep):
    """Change the types of columns, as Spark's CAST does."""

    cast: Annotated[dict[Text, Text], Field(min_length=1)] = Field(
        description="Column: Spark SQL type.", examples=[{"amount": "DECIMAL(10, 2)"}]
    )

    def check(self, scope: Scope, path: Path) -> None:
        """The columns are there, and the types are some."""
        for name, text in self.cast.items():
            here = (*path, name)
            there = scope.has(here, name, at_key=True, coordinates="keeps its type")
            if name == COORDINATES:
                continue
            try:
                target = read_type(text)
            except ColumnsError as error:
                scope.file.report_error(here, error)
                continue
            if there and scope.types is not None:
                scope.give(computed(scope.types.items(), [(name, target)]))


class DedupeKeys(Section):
    """What makes two rows the same."""

    keys: Names = Field(description="The columns that identify a row.")
    within: Duration | None = Field(
        default=None,
        description="Across batches: drop rows whose keys already occurred, for this long in event time. The first "
        "row is kept. Needs a watermark before it. If omitted, the newest row of each batch is kept.",
    )


class DedupeConfig(Step):
    """Of the rows with equal keys keep one: the newest of a batch; with `within` the first, across batches."""

    dedupe: DedupeKeys = Field(description="The keys to compare.")

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return self.dedupe.keys

    @property
    def remembers(self) -> bool:
        """Whether it is across batches."""
        return self.dedupe.within is not None

    def check(self, scope: Scope, path: Path) -> None:
        """Check the keys, and the coordinates or watermark that dedupe needs."""
        if self.dedupe.within is not None:
            scope.check_event_time(path, "dedupe within a time", "keys could never be removed from the state")
        elif scope.types is not None and COORDINATES not in scope.types:
            hint = f"select {COORDINATES} in the sql step before"
            scope.file.report(
                path, f'dedupe keeps the newest offset, but the column "{COORDINATES}" is gone', hint=hint
            )
        scope.check_columns(self.keys, (*path, "keys"))


class SqlConfig(Step):
    """One SELECT over `input`, the rows of the batch, and over any of `tables:`. Takes the frame lane."""

    sql: Text = Field(description="A Spark SQL query over `input`.", examples=["SELECT * FROM input"])

    def check(self, scope: Scope, path: Path) -> None:
        """Check that the query reads existing columns. Its output is known if its select list gives it."""
        before = scope.types
        scope.types = None
        try:
            query = read_query(self.sql)
        except ExpressionError as error:
            scope.file.report_error(path, error)
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
                    hint = "rename one of them"
                    scope.file.report(path, f'the query returns column "{name}" twice', hint=hint)
            after |= new
        if COORDINATES in (before or [COORDINATES]) and place_for_coordinates(self.sql) is not None:
            after[COORDINATES] = types.get(COORDINATES)
        scope.gone = dict.fromkeys(types, f"not selected by {step_at(path)}")
        scope.types = after


class ExplodeSettings(Section):
    """Which column, and what its elements become."""

    column: Text = Field(description="A column of type ARRAY or MAP.")
    into: Text | None = Field(
        default=None,
        alias="as",
        description="The column for the elements; for a map, `<as>_key` and `<as>_value`. Defaults to the column "
        "itself.",
    )
    position: Text | None = Field(
        default=None, description="An additional column with the index of the element, from 0."
    )
    keep_empty: bool = Field(default=False, description="Keep rows with an empty or null array, with null as element.")


class ExplodeConfig(Step):
    """One row for each element of an array or entry of a map."""

    explode: ExplodeSettings = Field(description="What to explode.")

    def check(self, scope: Scope, path: Path) -> None:
        """The column is an array or a map; its elements take its place."""
        one = self.explode
        if not scope.has((*path, "column"), one.column) or scope.types is None:
            return
        kind = scope.types[one.column]
        if kind is not None and kind.name not in ("ARRAY", "MAP"):
            scope.file.report((*path, "column"), f'column "{one.column}" is {kind}; explode takes ARRAY or MAP')
            return
        if kind is None and one.into is None and one.position is None:
            scope.types = None
            return
        elements = kind.items if kind is not None else (None,)
        settings = (one.column, elements, ColumnType("INT"), one.into, one.position)
        for name, _ in exploded([(one.column, kind)], *settings):
            key = "position" if name == one.position else "as" if one.into is not None else "column"
            scope.check_new(name, (*path, key), without=[one.column])
        scope.give(exploded(scope.types.items(), *settings))


class FlattenSettings(Section):
    """Which structs become columns."""

    columns: Names | None = Field(default=None, description="The struct columns. Defaults to all.")
    separator: str = Field(default="_", description="The separator between column name and field name.")
    depth: Count | None = Field(default=None, description="How many levels. Defaults to all.")


class FlattenConfig(Step):
    """The fields of structs as separate columns: `address.city` becomes `address_city`."""

    flatten: FlattenSettings = Field(description="What to flatten.")

    def check(self, scope: Scope, path: Path) -> None:
        """The columns are structs; their fields take their places, and no two get one name."""
        one = self.flatten
        for index, name in enumerate(one.columns or ()):
            here = (*path, "columns", index)
            kind = scope.type_of(name)
            if scope.has(here, name) and kind is not None and kind.name != "STRUCT":
                scope.file.report(here, f'column "{name}" is {kind}; flatten takes STRUCT')
        if scope.types is None or any(scope.type_of(name) is None for name in one.columns or scope.types):
            scope.types = None
            return
        leaves = flattened(scope.types.items(), _fields, one.columns, one.depth)
        named = [(way, one.separator.join(way)) for way, _ in leaves]
        for way, name in named:
            if len(way) > 1:
                scope.gone[way[0]] = f"flattened by {step_at(path)}"
                if any(other.lower() == name.lower() and its[0] != way[0] for its, other in named):
                    message = f'flattening "{way[0]}" creates column "{name}", which already exists'
                    hint = "set another separator, or rename the other column first"
                    scope.file.report(path, message, hint=hint, at_key=True)
        scope.give((name, kind) for (_, name), (_, kind) in zip(named, leaves, strict=True))


def _fields(kind: ColumnType | None) -> list[tuple[str, ColumnType | None]] | None:
    return [(field.name, field.type) for field in kind.fields] if kind is not None and kind.name == "STRUCT" else None


class MaskSettings(Section):
    """How one column is masked: give exactly one."""

    hash: Secret | None = Field(
        default=None, description="Replace with the SHA-256 of this salt and the value, in hex. Secret: by reference."
    )
    keep_last: Count | None = Field(default=None, description="Replace all but this many last characters with stars.")


class MaskConfig(Step):
    """Hide what is in columns; null stays null."""

    mask: Annotated[dict[Text, Literal["hash", "redact"] | MaskSettings], Field(min_length=1)] = Field(
        description="Column: `hash` (SHA-256 in hex), `redact` (three stars), `{hash: SALT}` or `{keep_last: 4}`.",
        examples=[{"email": "hash"}],
    )

    def check(self, scope: Scope, path: Path) -> None:
        """The columns are there, and are text afterwards."""
        for name, how in self.mask.items():
            here = (*path, name)
            if isinstance(how, MaskSettings) and (how.hash is None) == (how.keep_last is None):
                scope.file.report(here, "exactly one of hash and keep_last is needed", at_key=True)
            kind = scope.type_of(name)
            if scope.has(here, name, at_key=True, coordinates="stays as it is") and scope.types is not None:
                if kind is not None and (kind.nested or kind.name == "BINARY"):
                    scope.file.report(here, f'column "{name}" is {kind}, which has no text to mask', at_key=True)
                scope.give(computed(scope.types.items(), [(name, ColumnType("STRING"))]))


Action = Literal["drop", "quarantine", "warn", "fail"]


class ExpectRuleConfig(Section):
    """A rule for rows."""

    rule: Text = Field(description="A Spark SQL condition. A row passes if it is true; null fails.")
    action: Action = Field(
        default="quarantine",
        description="What happens to a row that fails the rule: `drop` it, `quarantine` its record, `warn` and keep "
        "it, or `fail` and stop the pipeline.",
    )


class ExpectConfig(ComputingStep):
    """Rules that rows have to keep; every batch reports how many broke each."""

    expect: Annotated[dict[Name, ExpectRuleConfig], Field(min_length=1)] = Field(
        description="Name of the rule: `{rule: ..., action: ...}`.",
        examples=[{"amount_positive": {"rule": "amount >= 0", "action": "quarantine"}}],
    )

    def check(self, scope: Scope, path: Path) -> None:
        """Each rule is an expression over the columns, which all stay."""
        for name, rule in self.expect.items():
            scope.check_expression(rule.rule, (*path, name, "rule"))
            if rule.action == "quarantine":
                scope.check_quarantined((*path, name))


class MapArrowSettings(Section):
    """A function over Arrow record batches."""

    function: Dotted = Field(description="`module.function`, in a file next to the pipeline file.")
    on_error: Literal["fail", "quarantine"] = Field(
        default="fail",
        description="What happens if it raises: stop, or quarantine only the rows that it raises for.",
    )
    columns: Text | None = Field(
        default=None,
        alias="schema",
        description="The output columns. Left out, it is called once with an empty batch to find out.",
    )


def _to_map_arrow(value: Any) -> Any:
    return {"function": value} if isinstance(value, str) else value


class MapArrowConfig(Step):
    """Your own function: a `pyarrow.RecordBatch` in, one out. Stays in the direct lane."""

    map_arrow: Annotated[MapArrowSettings, BeforeValidator(_to_map_arrow)] = Field(
        description="The function, as text or with settings.", examples=["rules.clean"]
    )

    def check(self, scope: Scope, path: Path) -> None:
        """Only the function knows its output, unless the file declares it."""
        if self.map_arrow.on_error == "quarantine":
            scope.check_quarantined((*path, "on_error"), at=path)
        before = scope.types
        scope.give_declared(self.map_arrow.columns, (*path, "schema"))
        if scope.types is not None and before is not None and COORDINATES not in before:
            scope.types.pop(COORDINATES)


class PythonConfig(Step):
    """Your own function: a Spark DataFrame in, one out. Takes the frame lane."""

    python: Dotted = Field(
        description="`module.function`, in a file next to the pipeline file.", examples=["steps.enrich"]
    )

    def check(self, scope: Scope, path: Path) -> None:
        """Only Spark knows what leaves it."""
        scope.gone, scope.types = {}, None


class EnrichSettings(Section):
    """Which table, by which keys, and what of it."""

    table: Name = Field(description="A name from `tables:`.")
    on: Pairs = Field(
        description="The columns that must be equal: a list if the names are the same on both sides, "
        "else `{column: column of the table}`."
    )
    take: Pairs | None = Field(
        default=None,
        description="The columns of the table to add: a list, or `{new name: column of the table}`. Defaults to all "
        "but the keys.",
    )
    on_miss: Literal["keep", "drop", "quarantine"] = Field(
        default="keep",
        description="What happens to a row without a match: keep it with nulls, drop it, or quarantine it.",
    )
    on_duplicate: Literal["fail", "first", "all"] = Field(
        default="fail",
        description="What happens if the table has several rows for a key: stop, take the first by all columns, or "
        "emit one row for each.",
    )


class EnrichConfig(Step):
    """Add columns of a table to each row. A table that fits in memory is joined in the direct lane."""

    enrich: EnrichSettings = Field(description="The table and the keys.")

    def check(self, scope: Scope, path: Path) -> None:
        """The keys are there, the new columns are not; of those only the names are known."""
        one = self.enrich
        for name in one.on:
            scope.has((*path, "on"), name, at_key=True)
        if one.on_miss == "quarantine":
            scope.check_quarantined((*path, "on_miss"), at=path)
        for name in one.take or ():
            scope.check_new(name, (*path, "take"))
        if one.take is None:
            scope.types = None
        elif scope.types is not None:
            scope.give(added(scope.types.items(), ((name, None) for name in one.take)))


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
    return step is not None and step.remembers

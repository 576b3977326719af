"""What happens to the good rows, step by step. Each step sees the columns that the step before left."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Discriminator, Field, Tag

from penstock.config.everyday import (
    EnrichConfig,
    ExpectConfig,
    ExplodeConfig,
    FlattenConfig,
    MapArrowConfig,
    MaskConfig,
    PythonConfig,
)
from penstock.config.fields import BESIDE, ComputingStep, Duration, Names, Section, Step, Text
from penstock.config.stateful import JoinConfig, StatefulConfig, WatermarkConfig, WindowConfig


class WhereConfig(ComputingStep):
    """Keep the rows for which a condition is true; false and null go."""

    kind: ClassVar[str] = "where"
    where: Text = Field(description="A Spark SQL condition.", examples=["amount >= 0"])


class DeriveConfig(ComputingStep):
    """Add columns, or replace existing ones in place.

    Every expression of one step sees the columns that entered the step, not each other's results; a later
    `derive` step sees them. The order is that of the file.
    """

    kind: ClassVar[str] = "derive"
    derive: Annotated[dict[Text, Text], Field(min_length=1)] = Field(
        description="New column: Spark SQL expression.", examples=[{"event_date": "date(event_time)"}]
    )


class RenameConfig(Step):
    """Give columns other names; their order stays."""

    kind: ClassVar[str] = "rename"
    rename: Annotated[dict[Text, Text], Field(min_length=1)] = Field(description="Old name: new name.")


class DropConfig(Step):
    """Leave columns out."""

    kind: ClassVar[str] = "drop"
    drop: Names = Field(description="The columns to leave out.")


class CastConfig(ComputingStep):
    """Change the types of columns, as Spark's CAST does."""

    kind: ClassVar[str] = "cast"
    cast: Annotated[dict[Text, Text], Field(min_length=1)] = Field(
        description="Column: Spark SQL type.", examples=[{"amount": "DECIMAL(10, 2)"}]
    )


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


class SqlConfig(Step):
    """One SELECT over `input`, the rows of the batch, and over any of `tables:`. Takes the frame lane."""

    kind: ClassVar[str] = "sql"
    sql: Text = Field(description="A Spark SQL query over `input`.", examples=["SELECT * FROM input"])


KINDS: tuple[str, ...] = (
    WhereConfig.kind,
    DeriveConfig.kind,
    RenameConfig.kind,
    DropConfig.kind,
    CastConfig.kind,
    ExplodeConfig.kind,
    FlattenConfig.kind,
    MaskConfig.kind,
    ExpectConfig.kind,
    EnrichConfig.kind,
    DedupeConfig.kind,
    MapArrowConfig.kind,
    SqlConfig.kind,
    PythonConfig.kind,
    WatermarkConfig.kind,
    WindowConfig.kind,
    JoinConfig.kind,
    StatefulConfig.kind,
)


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


def remembers(step: TransformConfig | None) -> bool:
    """Whether a step keeps state from batch to batch."""
    return isinstance(step, WindowConfig | JoinConfig | StatefulConfig) or (
        isinstance(step, DedupeConfig) and step.dedupe.within is not None
    )

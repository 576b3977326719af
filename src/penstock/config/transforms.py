"""What happens to the good rows, step by step. Each step sees the columns that the step before left."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from penstock.config.fields import Names, Section, Text

Kind = Literal["where", "derive", "rename", "drop", "cast", "dedupe", "sql"]
KINDS: tuple[Kind, ...] = ("where", "derive", "rename", "drop", "cast", "dedupe", "sql")


class WhereConfig(Section):
    """Keep the rows for which a condition is true; false and null go."""

    kind: ClassVar[Kind] = "where"
    where: Text = Field(description="A Spark SQL condition.", examples=["amount >= 0"])


class DeriveConfig(Section):
    """Add columns, or replace existing ones in place.

    Every expression of one step sees the columns that entered the step, not each other's results; a later
    `derive` step sees them. The order is that of the file.
    """

    kind: ClassVar[Kind] = "derive"
    derive: Annotated[dict[Text, Text], Field(min_length=1)] = Field(
        description="New column: Spark SQL expression.", examples=[{"event_date": "date(event_time)"}]
    )


class RenameConfig(Section):
    """Give columns other names; their order stays."""

    kind: ClassVar[Kind] = "rename"
    rename: Annotated[dict[Text, Text], Field(min_length=1)] = Field(description="Old name: new name.")


class DropConfig(Section):
    """Leave columns out."""

    kind: ClassVar[Kind] = "drop"
    drop: Names = Field(description="The columns to leave out.")


class CastConfig(Section):
    """Change the types of columns, as Spark's CAST does."""

    kind: ClassVar[Kind] = "cast"
    cast: Annotated[dict[Text, Text], Field(min_length=1)] = Field(
        description="Column: Spark SQL type.", examples=[{"amount": "DECIMAL(10, 2)"}]
    )


class DedupeKeys(Section):
    """What makes two rows the same."""

    keys: Names = Field(description="The columns that together identify a row.")


class DedupeConfig(Section):
    """Of the rows with equal keys in one batch keep the one with the newest offset."""

    kind: ClassVar[Kind] = "dedupe"
    dedupe: DedupeKeys = Field(description="The keys to compare.")

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that together identify a row."""
        return self.dedupe.keys


class SqlConfig(Section):
    """One SELECT over the table `input`, which holds the rows of the batch. Takes the frame lane."""

    kind: ClassVar[Kind] = "sql"
    sql: Text = Field(description="A Spark SQL query over `input`.", examples=["SELECT * FROM input"])


def _kind_of(item: Any) -> str | None:
    if isinstance(item, BaseModel):
        return str(getattr(item, "kind", None))
    if isinstance(item, dict) and len(item) == 1:
        return str(next(iter(item)))
    return None


TransformConfig = Annotated[
    Annotated[WhereConfig, Tag("where")]
    | Annotated[DeriveConfig, Tag("derive")]
    | Annotated[RenameConfig, Tag("rename")]
    | Annotated[DropConfig, Tag("drop")]
    | Annotated[CastConfig, Tag("cast")]
    | Annotated[DedupeConfig, Tag("dedupe")]
    | Annotated[SqlConfig, Tag("sql")],
    Discriminator(_kind_of),
]

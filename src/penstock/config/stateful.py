"""The steps that remember rows from batch to batch: watermark, window, join, your own state."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from penstock.config.everyday import Dotted, Pairs
from penstock.config.fields import Duration, Name, Names, Section, Step, Text


class WatermarkSettings(Section):
    """How far behind the newest event others may come."""

    column: Text = Field(description="The TIMESTAMP column with the time of the event.")
    delay: Duration = Field(description="How much later than the newest event a row may come.")
    late: Literal["drop", "quarantine"] = Field(
        default="drop", description="What happens to rows that come later than that. They are counted in both cases."
    )


class WatermarkConfig(Step):
    """The event time, and how late rows may be. What state is kept by it ends with it."""

    kind: ClassVar[str] = "watermark"
    watermark: WatermarkSettings = Field(description="The column and the delay.")


class WindowSettings(Section):
    """Rows of the same stretch of event time, aggregated. Give `size`, `size` and `slide`, or `gap`."""

    size: Duration | None = Field(default=None, description="How long a window is.")
    slide: Duration | None = Field(default=None, description="How often a window begins. Left out, one after another.")
    gap: Duration | None = Field(default=None, description="Sessions: a window ends when no row came for this long.")
    by: Annotated[tuple[Text, ...], Field(strict=False)] = Field(
        default=(), description="The columns whose values have windows of their own."
    )
    aggregates: Annotated[dict[Text, Text], Field(min_length=1)] = Field(
        description="New column: Spark SQL aggregate.", examples=[{"orders": "count(*)", "total": "sum(amount)"}]
    )
    emit: Literal["final", "changes"] = Field(
        default="final",
        description="`final`: each window once, when no row can come any more. `changes`: a window again with every "
        "batch that changes it, for a sink that merges by its key, or for Kafka.",
    )


class WindowConfig(Step):
    """Aggregates over windows of event time: `window_start`, `window_end`, the `by` columns, the aggregates."""

    kind: ClassVar[str] = "window"
    window: WindowSettings = Field(description="The windows and what is computed in them.")


class Within(Section):
    """How far the right row may be from the left one, in event time."""

    before: Duration | None = Field(default=None, description="How much earlier. Left out, not earlier.")
    after: Duration | None = Field(default=None, description="How much later. Left out, not later.")


class JoinSettings(Section):
    """Which sources, by which keys, and how far apart in time."""

    left: Name = Field(description="A name out of `sources:`.")
    right: Name = Field(description="Another name out of `sources:`.")
    on: Pairs = Field(
        description="The columns that have to be equal: a list where they have one name in both, else "
        "`{left column: right column}`."
    )
    type: Literal["inner", "left", "right", "full"] = Field(
        default="inner", description="Which rows without a match come out, with nulls, when none can come any more."
    )
    within: Duration | Within | None = Field(
        default=None,
        description="How far apart two rows that belong together may be in event time: `1 hour` either way, or "
        "`{before: 5 minutes, after: 1 hour}` of the right row. It is what keeps the state finite.",
    )

    @property
    def bounds(self) -> tuple[timedelta, timedelta] | None:
        """How much earlier and how much later the right row may be."""
        if self.within is None or isinstance(self.within, timedelta):
            return None if self.within is None else (self.within, self.within)
        return self.within.before or timedelta(), self.within.after or timedelta()


class JoinConfig(Step):
    """Two sources row by row. The first of the transforms; each source has its watermark in its own transforms."""

    kind: ClassVar[str] = "join"
    join: JoinSettings = Field(description="The sources and the condition.")


class StatefulSettings(Section):
    """Your own class over Spark's `transformWithState`."""

    cls: Dotted = Field(alias="class", description="`module.Class`, a StatefulProcessor, in a file beside this one.")
    keys: Names = Field(description="The columns whose values have a state of their own.")
    columns: Text = Field(alias="schema", description="The columns that leave it.")
    time: Literal["event", "processing", "none"] = Field(
        default="none", description="Which time its timers go by. `event` needs a watermark before."
    )
    ttl: Duration | None = Field(
        default=None,
        description="How long a state is kept after it was last written, where the class does not say. Needs `time: "
        "processing`.",
    )
    rows: Literal["pandas", "python"] = Field(
        default="pandas",
        description="What the class takes and gives: pandas frames, or Spark's rows, which are several times as fast.",
    )


class StatefulConfig(Step):
    """Your own state for each key, with timers."""

    kind: ClassVar[str] = "stateful"
    stateful: StatefulSettings = Field(description="The class, its keys and what leaves it.")

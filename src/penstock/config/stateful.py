"""The steps that remember rows from batch to batch: watermark, window, join, your own state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from penstock.config.expressions import ExpressionError, read_aggregate
from penstock.config.fields import COORDINATES, Dotted, Duration, Name, Names, Pairs, Section, StatefulStep, Step, Text
from penstock.config.problems import Path, did_you_mean
from penstock.config.scope import TIMESTAMP, Scope
from penstock.config.step_columns import joined, windowed

_NUMERIC = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")


class WatermarkSettings(Section):
    """How late rows may be, compared with the newest event."""

    column: Text = Field(description="The TIMESTAMP column with the event time.")
    delay: Duration = Field(description="How far behind the newest event a row may arrive.")
    late: Literal["drop", "quarantine"] = Field(
        default="drop", description="What happens to rows that arrive later. They are counted in both cases."
    )


class WatermarkConfig(Step):
    """The event time, and how late rows may be. What state is kept by it ends with it."""

    watermark: WatermarkSettings = Field(description="The column and the delay.")

    def check(self, scope: Scope, path: Path) -> None:
        """One for each source, over a TIMESTAMP column. All columns stay."""
        scope.check_watermark(self.watermark.column, path)
        if self.watermark.late == "quarantine":
            scope.needs_quarantine.append((*path, "late"))


class WindowSettings(Section):
    """Rows of the same stretch of event time, aggregated. Give `size`, `size` and `slide`, or `gap`."""

    size: Duration | None = Field(default=None, description="The length of a window.")
    slide: Duration | None = Field(
        default=None, description="The interval between window starts. Defaults to `size`: windows do not overlap."
    )
    gap: Duration | None = Field(
        default=None, description="Session windows: a window ends when no row arrives for this long."
    )
    by: Annotated[tuple[Text, ...], Field(strict=False)] = Field(
        default=(), description="The grouping columns: each combination of values has its own windows."
    )
    aggregates: Annotated[dict[Text, Text], Field(min_length=1)] = Field(
        description="New column: Spark SQL aggregate.", examples=[{"orders": "count(*)", "total": "sum(amount)"}]
    )
    emit: Literal["final", "changes"] = Field(
        default="final",
        description="`final` emits each window once, when no more rows can arrive. `changes` emits a window after "
        "every batch that changes it, for sinks that merge by key, or for Kafka.",
    )


class WindowConfig(StatefulStep):
    """Aggregates over windows of event time: `window_start`, `window_end`, the `by` columns, the aggregates."""

    window: WindowSettings = Field(description="The windows and their aggregates.")

    def check(self, scope: Scope, path: Path) -> None:
        """Windows need a watermark; what leaves is the window, its keys and the aggregates."""
        one = self.window
        scope.check_event_time(path, "a window", "windows could never be closed")
        self._check_spans(scope, path)
        scope.check_columns(one.by, (*path, "by"))
        by = [(name, scope.type_of(name)) for name in one.by]
        taken = [COORDINATES, *(name for name, _ in windowed(TIMESTAMP, TIMESTAMP, by, ()))]
        for name, text in one.aggregates.items():
            here = (*path, "aggregates", name)
            if name.lower() in (other.lower() for other in taken):
                scope.file.report(here, f'column "{name}" already exists', at_key=True)
            taken.append(name)
            _check_aggregate(text, scope, here)
        scope.give_own(windowed(TIMESTAMP, TIMESTAMP, by, ((name, None) for name in one.aggregates)), path)
        scope.close("window", path)

    def _check_spans(self, scope: Scope, path: Path) -> None:
        one, report = self.window, scope.file.report
        if (one.size is None) == (one.gap is None):
            message = "only one of size and gap can be given" if one.gap else "one of size and gap is needed"
            report(path, message, hint="size for fixed windows, gap for sessions", at_key=True)
        elif one.slide is not None and one.size is None:
            report((*path, "slide"), "slide has no effect without size", hint="remove slide", at_key=True)
        elif one.slide is not None and one.size is not None and one.slide > one.size:
            report((*path, "slide"), "slide is longer than size: rows between two windows would be lost")
        elif one.gap is not None and not one.by:
            report((*path, "gap"), "sessions need by: Spark does not support them over all rows", hint="add by: [...]")
        elif one.gap is not None and one.emit == "changes":
            message = "sessions cannot emit changes: two sessions may merge into one"
            report((*path, "emit"), message, hint="emit: final")


def _check_aggregate(text: str, scope: Scope, path: Path) -> None:
    try:
        aggregate = read_aggregate(text)
    except ExpressionError as error:
        scope.file.report_error(path, error)
        return
    for reference in aggregate.references:
        scope.check_reference(reference, path)
    for reference in aggregate.numeric:
        kind = scope.type_of(reference.parts[0]) if len(reference.parts) == 1 else None
        if kind is not None and kind.name not in _NUMERIC:
            message = f'column "{reference.parts[0]}" is {kind}, but sum and average need numbers'
            scope.file.report(path, message, offset=reference.offsets[0])


class Within(Section):
    """How far the right row may be from the left one, in event time."""

    before: Duration | None = Field(default=None, description="How much earlier. Defaults to zero.")
    after: Duration | None = Field(default=None, description="How much later. Defaults to zero.")


class JoinSettings(Section):
    """Which sources, by which keys, and how far apart in time."""

    left: Name = Field(description="A name from `sources:`.")
    right: Name = Field(description="Another name from `sources:`.")
    on: Pairs = Field(
        description="The columns that must be equal: a list if the names are the same on both sides, "
        "else `{left column: right column}`."
    )
    type: Literal["inner", "left", "right", "full"] = Field(
        default="inner",
        description="Which side's unmatched rows are emitted, with nulls, when no match can arrive anymore.",
    )
    within: Duration | Within | None = Field(
        default=None,
        description="How far apart matching rows may be in event time: `1 hour` either way, or `{before: 5 "
        "minutes, after: 1 hour}` of the right row. It bounds the state.",
    )

    @property
    def bounds(self) -> tuple[timedelta, timedelta] | None:
        """How much earlier and how much later the right row may be."""
        if self.within is None or isinstance(self.within, timedelta):
            return None if self.within is None else (self.within, self.within)
        return self.within.before or timedelta(), self.within.after or timedelta()


class JoinConfig(StatefulStep):
    """Two sources row by row. The first of the transforms; each source has its watermark in its own transforms."""

    join: JoinSettings = Field(description="The sources and the condition.")

    def check(self, scope: Scope, path: Path) -> None:
        """A join that is not the first step is reported with the order of the steps."""
        scope.types = None

    def check_sides(self, sides: Mapping[str, Scope], scope: Scope, path: Path) -> None:
        """Two sources: keys on both sides, a bound in time, and columns that do not clash."""
        one, report = self.join, scope.file.report
        scope.close("join", path)
        for key in ("left", "right"):
            name = getattr(one, key)
            if name not in sides and len(sides) > 1:
                context = [f"sources: {', '.join(sides)}"]
                report((*path, key), f'there is no source "{name}"', context=context, hint=did_you_mean(name, sides))
        if one.left == one.right:
            message = f'source "{one.right}" is already the left one'
            report((*path, "right"), message, hint="join it with the other source")
        left, right = sides.get(one.left), sides.get(one.right)
        if left is None or right is None or one.left == one.right:
            return
        for own, other in one.on.items():
            _check_key(one.left, left, own, path)
            _check_key(one.right, right, other, path)
        if one.within is None:
            what = "an outer join" if one.type != "inner" else "a join of two streams"
            message = f"{what} without within keeps every row in the state forever"
            report(path, message, hint="add within: 1 hour, or {before: ..., after: ...}", at_key=True)
        for name, side in sides.items():
            if side.watermark is None:
                message = f"source {name} has no watermark, so its state would grow forever"
                hint = f"end sources.{name}.transforms with - watermark: {{column: ..., delay: ...}}"
                report(("sources", name), message, hint=hint, at_key=True)
        if left.types is None or right.types is None:
            return
        after = joined(left.types.items(), right.types.items(), one.on)
        mine = [name.lower() for name in left.names()]
        for name, _ in after[len(mine) :]:
            if name.lower() in mine:
                message = f'both sources have a column "{name}"'
                hint = f"rename or drop it in sources.{one.right}.transforms"
                report(path, message, hint=hint, at_key=True)
        scope.give([*after, (COORDINATES, left.type_of(COORDINATES))])


def _check_key(name: str, side: Scope, column: str, path: Path) -> None:
    if side.types is not None and column not in side.types:
        context = [f"columns of {name}: {', '.join(side.names())}"]
        hint = did_you_mean(column, side.names())
        message = f'source {name} has no column "{column}"'
        side.file.report((*path, "on"), message, context=context, hint=hint, at_key=True)


class StatefulSettings(Section):
    """Your own class over Spark's `transformWithState`."""

    cls: Dotted = Field(alias="class", description="`module.Class`, a StatefulProcessor, in a file next to this one.")
    keys: Names = Field(description="The key columns of the state.")
    columns: Text = Field(alias="schema", description="The output columns.")
    time: Literal["event", "processing", "none"] = Field(
        default="none", description="The time that timers use. `event` needs a watermark before this step."
    )
    ttl: Duration | None = Field(
        default=None,
        description="How long state is kept after its last write, unless the class sets it. Needs `time: processing`.",
    )
    rows: Literal["pandas", "python"] = Field(
        default="pandas",
        description="The input and output of the class: pandas frames, or Spark rows, which are several times faster.",
    )


class StatefulConfig(StatefulStep):
    """Your own state for each key, with timers."""

    stateful: StatefulSettings = Field(description="The class, its keys and its output.")

    def check(self, scope: Scope, path: Path) -> None:
        """Check the keys, the watermark for event time, and the declared output."""
        one = self.stateful
        if one.time == "event":
            scope.check_event_time(path, "time: event", "no timer would ever fire")
        if one.ttl is not None and one.time != "processing":
            message = f"state can only expire by processing time, but time is {one.time}"
            hint = "set time: processing, or clear the state with a timer"
            scope.file.report((*path, "ttl"), message, hint=hint, at_key=True)
        scope.check_columns(one.keys, (*path, "keys"))
        scope.give_declared(one.columns, (*path, "schema"))
        scope.close("state", path)

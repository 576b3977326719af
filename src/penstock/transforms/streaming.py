"""Steps with state: watermark, window, dedupe within a time, and the join of two streams. Spark runs them, over its own
streaming frame.

Each says what its state is kept by (`keeps`), what ends it (`bound`), and which of its settings the state in a
checkpoint depends on (`identity`): a change of those is a change that the checkpoint cannot take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.config import show_duration
from penstock.config.step_columns import joined, windowed
from penstock.contracts import FrameTransform, StatefulTransform
from penstock.model import COORDINATES, COORDINATES_FIELD, TIMESTAMP
from penstock.transforms.columns import find_column, quote
from penstock.transforms.expressions.expression import aggregate_type
from penstock.transforms.step import SparkStep

_PARTITIONS = 16384
_DELAY = "spark.watermarkDelayMs"
"""Spark's own key, in the metadata of a column of event time."""


class Streaming(SparkStep, FrameTransform):
    """A step with state: one over Spark's streaming frame."""

    reason = "it keeps state from batch to batch, which is Spark's"

    def known_output(self, schema: pa.Schema) -> pa.Schema | None:
        """The columns that leave, where they are known without Spark: the same, unless a step says otherwise."""
        return schema

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns that leave. Raises where only Spark knows them."""
        found = self.known_output(schema)
        if found is None:
            raise self.needs_spark()
        return found


@dataclass(frozen=True)
class Watermark(Streaming):
    """The event time, and how late rows may be."""

    column: str
    delay: timedelta
    late: Literal["drop", "quarantine"] = "drop"

    def __repr__(self) -> str:
        return f"watermark on {self.column}, {show_duration(self.delay)} behind the newest; late rows: {self.late}"

    def frame(self, frame: Any) -> Any:
        """The frame with the watermark."""
        column = frame.columns[find_column(self.column, frame.columns)]
        return frame.withWatermark(column, millis(self.delay))


@dataclass(frozen=True)
class Window(Streaming, StatefulTransform):
    """Aggregates over windows of event time, for each value of `by`."""

    time: str
    """The column of the watermark."""
    aggregates: Mapping[str, str]
    by: tuple[str, ...] = ()
    size: timedelta | None = None
    slide: timedelta | None = None
    gap: timedelta | None = None
    emit: Literal["final", "changes"] = "final"
    topics: tuple[str, ...] | None = None
    """The topics that rows can be of; None where that is not known."""

    def __repr__(self) -> str:
        keys = f" by {', '.join(self.by)}" if self.by else ""
        return f"window of {self.span}{keys}: {', '.join(self.aggregates)}"

    @property
    def span(self) -> str:
        """The windows in words."""
        if self.gap is not None:
            return f"sessions with gaps of {show_duration(self.gap)}"
        assert self.size is not None, "checked when the file was loaded"
        return show_duration(self.size) + (f" every {show_duration(self.slide)}" if self.slide is not None else "")

    @property
    def keeps(self) -> str:
        """What the state holds."""
        return f"one row for each open window{' and ' + ', '.join(self.by) if self.by else ''}"

    @property
    def bound(self) -> str:
        """What ends it."""
        return "a window goes when the watermark has passed its end"

    def identity(self) -> dict[str, Any]:
        """What the state depends on."""
        spans = {name: millis(span) for name in ("size", "slide", "gap") if (span := getattr(self, name)) is not None}
        return {"window": {"time": self.time, **spans, "by": list(self.by), "aggregates": dict(self.aggregates),
                           "emit": self.emit}}  # fmt: skip

    def late_after(self, times: pa.Array) -> pa.Array:
        """A row is too late when the newest of its windows has ended."""
        if self.gap is not None:
            return pc.add(times, micros(self.gap))
        assert self.size is not None
        slide = pa.scalar(micros(self.slide or self.size), pa.int64())
        # Rounded down, before 1970 as well: Arrow's division cuts towards zero.
        quotient = pc.divide(times, slide)
        negative = pc.less(times, pc.multiply(quotient, slide))
        start = pc.multiply(pc.subtract(quotient, negative.cast(pa.int64())), slide)
        return pc.add(start, micros(self.size))

    def known_output(self, schema: pa.Schema) -> pa.Schema | None:
        """The columns that leave, where every aggregate's type is known without Spark."""
        kinds = {name: aggregate_type(text, schema) for name, text in self.aggregates.items()}
        by = [(name, schema.field(find_column(name, schema.names))) for name in self.by]
        made = [(name, pa.field(name, kind)) for name, kind in kinds.items() if kind is not None]
        if len(made) < len(kinds):
            return None
        time = pa.field("", TIMESTAMP)
        fields = [field.with_name(name) for name, field in windowed(time, time, by, made)]
        return pa.schema([*fields, *([COORDINATES_FIELD] if COORDINATES in schema.names else [])])

    def frame(self, frame: Any) -> Any:
        """The aggregation."""
        frame.createOrReplaceTempView("input")
        return frame.sparkSession.sql(self._query(frame.columns))

    def _query(self, columns: Sequence[str]) -> str:
        time = quote(columns[find_column(self.time, columns)])
        if self.gap is not None:
            group = f"session_window({time}, '{millis(self.gap)}')"
            window = "session_window"
        else:
            assert self.size is not None
            spans = [self.size, *([self.slide] if self.slide is not None else [])]
            spans_text = ", ".join(f"'{millis(span)}'" for span in spans)
            group, window = f"window({time}, {spans_text})", "window"
        by = [(name, quote(columns[find_column(name, columns)])) for name in self.by]
        aggregates = [(name, f"({text}\n)") for name, text in self.aggregates.items()]
        items = windowed(f"{window}.start", f"{window}.end", by, aggregates)
        if COORDINATES in columns:
            items.append((COORDINATES, self._newest()))
        selected = ", ".join(f"{item} AS {quote(name)}" for name, item in items)
        return f"SELECT {selected} FROM input GROUP BY {', '.join([group, *(key for _, key in by)])}"

    def _newest(self) -> str:
        """The coordinates of the record with the greatest offset among those of a group.

        Numbers alone, where the topic is known: Spark then aggregates by hash and not by sorting.
        """
        place = quote(COORDINATES)
        if self.topics is None or len(self.topics) != 1:
            return f"max_by({place}, {place}.offset)"
        [topic] = self.topics
        packed = f"max({place}.offset * {_PARTITIONS}L + {place}.partition)"
        return (
            f"named_struct('topic', '{topic}', 'partition', CAST({packed} % {_PARTITIONS} AS INT), "
            f"'offset', {packed} DIV {_PARTITIONS}, 'timestamp', max({place}.timestamp))"
        )


@dataclass(frozen=True)
class DedupeWithin(Streaming, StatefulTransform):
    """Leaves out a row whose keys were seen: the first one is kept."""

    keys: tuple[str, ...]
    time: str
    within: timedelta

    def __repr__(self) -> str:
        return f"dedupe by {', '.join(self.keys)} within {show_duration(self.within)}"

    @property
    def keeps(self) -> str:
        """What the state holds."""
        return f"each {', '.join(self.keys)} that was seen"

    @property
    def bound(self) -> str:
        """What ends it."""
        return f"a key goes when the watermark is {show_duration(self.within)} past its event"

    def identity(self) -> dict[str, Any]:
        """What the state depends on."""
        return {"dedupe": {"keys": list(self.keys), "time": self.time}}

    def late_after(self, times: pa.Array) -> pa.Array:
        """A row is too late when its own time has passed."""
        return times

    def frame(self, frame: Any) -> Any:
        """The deduplication. Spark takes the time to remember a key from the column's own metadata."""
        at = find_column(self.time, frame.columns)
        metadata = frame.schema.fields[at].metadata
        keys = [frame.columns[find_column(key, frame.columns)] for key in self.keys]
        longer = {**metadata, _DELAY: count_millis(self.within)}
        name = frame.columns[at]
        kept = frame.withMetadata(name, longer).dropDuplicatesWithinWatermark(keys)
        return kept.withMetadata(name, metadata)


def micros(span: timedelta) -> int:
    """Microseconds."""
    return round(span.total_seconds() * 1_000_000)


def count_millis(span: timedelta) -> int:
    """Milliseconds."""
    return round(span.total_seconds() * 1000)


def millis(span: timedelta) -> str:
    """As Spark reads it in a window or a watermark."""
    return f"{count_millis(span)} milliseconds"


JoinType = Literal["inner", "left", "right", "full"]


@dataclass(frozen=True)
class JoinSide:
    """One side of a join."""

    name: str
    time: str
    """The column of its watermark."""


@dataclass(frozen=True)
class Join(Streaming, StatefulTransform):
    """The rows of two sources with equal keys, close to each other in event time."""

    left: JoinSide
    right: JoinSide
    on: Mapping[str, str]
    before: timedelta
    after: timedelta
    type: JoinType = "inner"

    def __repr__(self) -> str:
        keys = ", ".join(one if one == other else f"{one} = {other}" for one, other in self.on.items())
        return f"{self.type} join of {self.left.name} and {self.right.name} on {keys}, {self._apart}"

    @property
    def _apart(self) -> str:
        before = f"from {show_duration(self.before)} before" if self.before else "from the same time"
        after = f"to {show_duration(self.after)} after" if self.after else "to the same time"
        return f"{self.right.name} {before} {after}"

    @property
    def keeps(self) -> str:
        """What the state holds."""
        return f"the rows of {self.left.name} and of {self.right.name} that may still find a match"

    @property
    def bound(self) -> str:
        """What ends it."""
        return f"a row goes when the watermark is past its time and the bound: {self._apart}"

    def identity(self) -> dict[str, Any]:
        """What the state depends on."""
        sides = {
            side: {"source": one.name, "time": one.time} for side, one in (("left", self.left), ("right", self.right))
        }
        return {"join": {**sides, "on": dict(self.on), "type": self.type, "before": millis(self.before),
                         "after": millis(self.after)}}  # fmt: skip

    def late_after(self, times: pa.Array) -> pa.Array:
        """A row is too late when its own time has passed."""
        return times

    def known_join(self, left: pa.Schema, right: pa.Schema) -> pa.Schema:
        """The columns that leave."""
        fields = joined(((field.name, field) for field in left), ((field.name, field) for field in right), self.on)
        return pa.schema([*(field.with_nullable(True) for _, field in fields), COORDINATES_FIELD])

    def known_output(self, schema: pa.Schema) -> pa.Schema | None:
        """Asked of both sides only."""
        return None

    def frame(self, frame: Any) -> Any:
        """Asked of both sides only."""
        raise self.needs_spark()

    def frames(self, left: Any, right: Any) -> Any:
        """The join of two frames."""
        left.createOrReplaceTempView("penstock_left")
        right.createOrReplaceTempView("penstock_right")
        return left.sparkSession.sql(self._query(left.columns, right.columns))

    def _query(self, left: Sequence[str], right: Sequence[str]) -> str:
        shared = {one for one, other in self.on.items() if one == other and self.type in ("right", "full")}
        both = {name: f"coalesce(l.{quote(name)}, r.{quote(name)}) AS {quote(name)}" for name in shared}
        ours = ((name, both.get(name, f"l.{quote(name)}")) for name in left)
        items = [item for _, item in joined(ours, ((name, f"r.{quote(name)}") for name in right), self.on)]
        place = quote(COORDINATES)
        items.append(f"coalesce(l.{place}, r.{place}) AS {place}")
        time, its = f"l.{quote(self.left.time)}", f"r.{quote(self.right.time)}"
        conditions = [f"l.{quote(one)} = r.{quote(other)}" for one, other in self.on.items()]
        conditions += [
            f"{its} >= {time} - INTERVAL '{self.before.total_seconds():.3f}' SECOND",
            f"{its} <= {time} + INTERVAL '{self.after.total_seconds():.3f}' SECOND",
        ]
        kind = {"inner": "INNER", "left": "LEFT OUTER", "right": "RIGHT OUTER", "full": "FULL OUTER"}[self.type]
        return (
            f"SELECT {', '.join(items)} FROM penstock_left AS l {kind} JOIN penstock_right AS r "
            f"ON {' AND '.join(conditions)}"
        )

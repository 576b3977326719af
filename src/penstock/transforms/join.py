"""`join`: the rows of two streams that belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa

from penstock.config import show_duration
from penstock.config.step_columns import joined
from penstock.model import COORDINATES, COORDINATES_FIELD
from penstock.transforms.columns import quote
from penstock.transforms.streaming import Streaming, millis

JoinType = Literal["inner", "left", "right", "full"]


@dataclass(frozen=True)
class Joined:
    """One side of a join."""

    name: str
    time: str
    """The column of its watermark."""


@dataclass(frozen=True)
class Join(Streaming):
    """The rows of two sources with equal keys, close to each other in event time."""

    left: Joined
    right: Joined
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

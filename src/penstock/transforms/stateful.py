"""`stateful`: a class of the user's own that keeps state for each key, with timers, over Spark's `transformWithState`.

The class is exactly what Spark documents: a `StatefulProcessor` with `init`, `handleInputRows`, `handleExpiredTimer`
and `close`. It sees the rows without their coordinates; every row that it gives gets those of the newest record of
its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa

from penstock.config.arrow_types import arrow_to_ddl
from penstock.errors import DefinitionError
from penstock.model import COORDINATES, COORDINATES_FIELD
from penstock.transforms.carrying import Carrying, RowForm
from penstock.transforms.columns import check_reserved, find_column, quote
from penstock.transforms.spans import show
from penstock.transforms.streaming import Streaming
from penstock.transforms.user import load

TimeMode = Literal["event", "processing", "none"]
_TIME_MODES = {"event": "EventTime", "processing": "ProcessingTime", "none": "None"}
_METHODS = ("init", "handleInputRows", "close")


@dataclass(frozen=True, repr=False)
class Stateful(Streaming):
    """Runs the class with the rows of each key, batch after batch. `schema` is what leaves it."""

    folder: str
    cls: str
    keys: Sequence[str]
    schema: pa.Schema
    time_mode: TimeMode = "event"
    ttl: timedelta | None = None
    """For the states that the class makes without a time to live of their own."""
    rows: RowForm = "pandas"
    """What the class takes and gives: pandas frames, or Spark's rows, which are several times as fast."""

    def __post_init__(self) -> None:
        check_reserved([*self.keys, *self.schema.names])
        if self.ttl is not None and self.time_mode != "processing":
            raise DefinitionError(
                "STATE_TTL_NEEDS_PROCESSING_TIME",
                f"{self!r}: state can expire by processing time alone",
                context={"time": self.time_mode, "ttl": show(self.ttl)},
                hint="write `time: processing`, or end the state by a timer and leave `ttl` out",
            )

    def __repr__(self) -> str:
        return f"stateful {self.cls} by {', '.join(self.keys)}"

    def describe_state(self) -> str:
        """What is kept and what ends it."""
        return f"{self.keeps}; {self.bound}"

    @property
    def keeps(self) -> str:
        """What the state holds."""
        return f"what {self.cls} keeps for each {', '.join(self.keys)}"

    @property
    def bound(self) -> str:
        """What ends it."""
        if self.ttl is not None:
            return f"a state goes {show(self.ttl)} after it was last written, unless {self.cls} says otherwise"
        timers = "" if self.time_mode == "none" else f", by timers of {self.time_mode} time or at once"
        return f"nothing but {self.cls} itself ends it{timers}"

    def identity(self) -> dict[str, Any]:
        """What the state depends on; Spark itself compares the states that the class makes."""
        settings = {"class": self.cls, "keys": list(self.keys), "time": self.time_mode, "ttl": self.ttl is not None}
        return {"stateful": settings}

    def late_after(self, times: pa.Array) -> pa.Array:
        """A row is too late when its own time has passed."""
        return times

    def names(self, columns: Sequence[str]) -> list[str]:
        """The declared columns; raises for a key that is not there."""
        for key in self.keys:
            find_column(key, columns)
        return [*self.schema.names, *(name for name in columns if name == COORDINATES)]

    def known_output(self, schema: pa.Schema) -> pa.Schema | None:
        """The declared columns."""
        return self.output(schema)

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The declared columns, with the coordinates where the rows have them."""
        self.names(schema.names)
        return pa.schema([*self.schema, *([COORDINATES_FIELD] if COORDINATES in schema.names else [])])

    def frame(self, frame: Any) -> Any:
        """The rows of each key through the class."""
        self._check_class()
        columns = [name for name in frame.columns if name != COORDINATES]
        tracked = COORDINATES in frame.columns
        output = pa.schema([*self.schema, *([COORDINATES_FIELD] if tracked else [])])
        # Spark knows the state by the names of the keys; others may come and go, and hold dots, which it trips over.
        keys = [find_column(key, columns) for key in self.keys]
        aliases = [f"key_{keys.index(at)}" if at in keys else f"column_{at}" for at in range(len(columns))]
        renamed = [f"{quote(name)} AS {alias}" for name, alias in zip(columns, aliases, strict=True)]
        carrying = Carrying(
            step=repr(self),
            folder=self.folder,
            cls=self.cls,
            columns=tuple(columns),
            schema=self.schema,
            rows=self.rows,
            tracked=tracked,
            timed=self.time_mode != "none",
            ttl=self.ttl,
        )
        grouped = frame.selectExpr(*renamed, *([quote(COORDINATES)] if tracked else [])).groupBy(
            *(f"key_{number}" for number in range(len(keys)))
        )
        return grouped.transformWithState(carrying, _ddl(output), "Append", _TIME_MODES[self.time_mode])

    def _check_class(self) -> None:
        found = load(self.folder, self.cls)
        lacking = [name for name in _METHODS if not hasattr(found, name)]
        if lacking:
            raise DefinitionError(
                "STEP_NOT_CALLABLE",
                f"{self.cls} is not a StatefulProcessor",
                context={"it lacks": ", ".join(lacking)},
                hint="derive it from pyspark.sql.streaming.StatefulProcessor",
            )


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(
        f"{quote(field.name)} {arrow_to_ddl(field.type)}{'' if field.nullable else ' NOT NULL'}" for field in schema
    )

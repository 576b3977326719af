"""`stateful`: a class of the user's own that keeps state for each key, with timers, over Spark's `transformWithState`.

The class is exactly what Spark documents: a `StatefulProcessor` with `init`, `handleInputRows`, `handleExpiredTimer`
and `close`. It sees the rows without their coordinates; every row that it gives gets those of the newest record of its
key.

In a task, Spark hands over the rows of a key in whatever order its shuffle left them. Here they are put in the order of
the source first, so that a batch that is run again gives the same. One key's rows of one batch are in memory at a time.
Spark's rows are the transport for pandas as well: its pandas transport gives integer keys the state of another key
where one of them is NULL (it makes them DOUBLE), and renames columns that are no Python identifiers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa

from penstock.config import show_duration
from penstock.config.arrow_types import arrow_to_ddl
from penstock.contracts import StatefulTransform
from penstock.errors import DefinitionError, PenstockError, TerminalError, wire_key
from penstock.model import COORDINATES, COORDINATES_FIELD
from penstock.transforms.columns import check_reserved, find_column, quote
from penstock.transforms.dedupe import NEWEST_BY
from penstock.transforms.streaming import Streaming
from penstock.transforms.user import load, user_errors

# ruff: noqa: N802, N803 -- the names are Spark's


RowForm = Literal["pandas", "python"]
Coordinates = Mapping[str, Any]
_PARTS = ("topic", "partition", "offset", "timestamp")
_STORED = "`topic` STRING, `partition` INT, `offset` BIGINT, `micros` BIGINT"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN = {pa.int64(): int, pa.float64(): float, pa.string(): str, pa.bool_(): bool}
"""Types whose Python values need no further look."""


class OutputRow(dict[str, Any]):
    """A row on its way out, in the one respect in which Spark looks at it."""

    def asDict(self, recursive: bool = False) -> dict[str, Any]:
        """The row as a dictionary."""
        return self


@dataclass(frozen=True)
class WithTtl:
    """Spark's handle, with a time to live for the states that are made without one."""

    handle: Any
    ttl_millis: int

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        """Spark's, with the time to live."""
        return self.handle.getValueState(stateName, schema, ttlDurationMs or self.ttl_millis)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        """Spark's, with the time to live."""
        return self.handle.getListState(stateName, schema, ttlDurationMs or self.ttl_millis)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> Any:
        """Spark's, with the time to live."""
        return self.handle.getMapState(stateName, userKeySchema, valueSchema, ttlDurationMs or self.ttl_millis)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle, name)


@dataclass
class ProcessorAdapter:
    """What Spark takes for the stateful class: the user's own, made where it runs."""

    step: str
    folder: str
    cls: str
    columns: tuple[str, ...]
    schema: pa.Schema
    rows: RowForm
    tracked: bool
    """Whether the rows have coordinates, in a last column of their own."""
    timed: bool
    ttl: timedelta | None
    key: bytes = field(default_factory=wire_key, repr=False)
    """Signs the errors that the task sends to the driver."""
    _user: Any = field(default=None, init=False)
    _handle: Any = field(default=None, init=False)
    _newest: Any = field(default=None, init=False)
    """The coordinates to give to rows that a timer makes: kept as long as the key has a timer."""

    def init(self, handle: Any) -> None:
        """Make the user's class, and let it make its states."""
        self._handle = handle
        if self.tracked and self.timed:
            self._newest = handle.getValueState(COORDINATES, _STORED)
        given = handle if self.ttl is None else WithTtl(handle, self.ttl // timedelta(milliseconds=1))
        with self._errors_for_spark():
            self._user = load(self.folder, self.cls)()
            self._user.init(given)

    def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterator[OutputRow]:
        """The rows of a key."""
        taken = list(rows)
        at = None
        if self.tracked:
            taken.sort(key=lambda row: (row[-1]["topic"], row[-1]["partition"], row[-1]["offset"]))
            at = max((row[-1] for row in taken), key=lambda place: [place[name] for name in NEWEST_BY])
        given = self._given(taken)
        with self._errors_for_spark():
            yield from self._emitted(self._user.handleInputRows(tuple(key), given, timerValues), at)
        if self._newest is not None and list(self._handle.listTimers()):
            self._newest.update(_stored(at))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[OutputRow]:
        """A timer of a key."""
        at = _restored(self._newest.get()) if self._newest is not None else None
        with self._errors_for_spark():
            given = self._user.handleExpiredTimer(
                key=tuple(key), timerValues=timerValues, expiredTimerInfo=expiredTimerInfo
            )
            yield from self._emitted(given, at)
        if self._newest is not None and set(self._handle.listTimers()) <= {expiredTimerInfo.getExpiryTimeInMs()}:
            self._newest.clear()

    def close(self) -> None:
        """The end of a partition's batch."""
        with self._errors_for_spark():
            self._user.close()

    def _given(self, taken: list[Any]) -> Iterator[Any]:
        values = [tuple(row)[:-1] if self.tracked else tuple(row) for row in taken]
        if self.rows == "pandas":
            import pandas as pd  # type: ignore[import-untyped]

            # Without a time zone, in UTC, as Spark's frames have them.
            plain = [tuple(_naive(value) for value in row) for row in values]
            return iter([pd.DataFrame.from_records(plain, columns=list(self.columns))])
        named = type(taken[0])(*self.columns)
        return iter([named(*row) for row in values])

    def _emitted(self, given: Iterable[Any] | None, at: Coordinates | None) -> Iterator[OutputRow]:
        for one in given or ():
            for row in self._rows_of(one):
                yield OutputRow(row, **{COORDINATES: at}) if self.tracked else OutputRow(row)

    def _rows_of(self, given: Any) -> list[dict[str, Any]]:
        if self.rows == "pandas":
            return self._rows_of_frame(given)
        row = given.asDict(True) if hasattr(given, "asDict") else given
        if not isinstance(row, dict):
            raise self._wrong(f"it has to give rows, not {type(given).__name__}")
        self._check_names(row)
        for name, (kind, nullable, plain) in self._fields.items():
            value = row[name]
            if value is None:
                if not nullable:
                    raise self._wrong(f'NULL in the NOT NULL column "{name}"')
            elif type(value) is not plain:
                self._check(name, value, kind)
        return [row]

    def _rows_of_frame(self, given: Any) -> list[dict[str, Any]]:
        import pandas as pd

        if not isinstance(given, pd.DataFrame):
            raise self._wrong(f"it has to give pandas frames, not {type(given).__name__}")
        self._check_names([str(name) for name in given.columns])
        try:
            found = pa.RecordBatch.from_pandas(given, schema=self.schema, preserve_index=False)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError) as error:
            raise self._wrong("the values do not fit the declared columns") from error
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows

    @cached_property
    def _fields(self) -> dict[str, tuple[pa.DataType, bool, type | None]]:
        return {one.name: (one.type, one.nullable, _PLAIN.get(one.type)) for one in self.schema}

    def _check_names(self, names: Iterable[str]) -> None:
        if set(names) != self._fields.keys():
            raise self._wrong("it gave other columns than it should", ", ".join(names))

    def _check(self, name: str, value: object, kind: pa.DataType) -> None:
        try:
            pa.array([value], kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            raise self._wrong(f'a {type(value).__name__} does not fit the column "{name}"') from error

    def _wrong(self, what: str, gave: str | None = None) -> TerminalError:
        wanted = ", ".join(f"{one.name} {arrow_to_ddl(one.type)}" for one in self.schema)
        context = {"it should give": wanted, **({"it gave": gave} if gave is not None else {})}
        return TerminalError("STEP_WRONG_COLUMNS", f"running {self.step}: {what}", context=context)

    @contextmanager
    def _errors_for_spark(self) -> Iterator[None]:
        """What the user's code raises, in a form that Spark keeps."""
        try:
            with user_errors(self.step, self.folder):
                yield
        except PenstockError as error:
            raise RuntimeError(error.to_wire(self.key)) from None


def _naive(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime) and value.tzinfo is not None else value


def _stored(at: Coordinates | None) -> tuple[Any, ...]:
    assert at is not None, "only rows with coordinates are remembered"
    micros = None if at["timestamp"] is None else (at["timestamp"] - _EPOCH) // timedelta(microseconds=1)
    return at["topic"], at["partition"], at["offset"], micros


def _restored(stored: tuple[Any, ...] | None) -> Coordinates | None:
    if stored is None:
        return None
    *place, micros = stored
    return dict(zip(_PARTS, [*place, None if micros is None else _EPOCH + timedelta(microseconds=micros)], strict=True))


TimeMode = Literal["event", "processing", "none"]
_TIME_MODES = {"event": "EventTime", "processing": "ProcessingTime", "none": "None"}
_METHODS = ("init", "handleInputRows", "close")


@dataclass(frozen=True, repr=False)
class Stateful(Streaming, StatefulTransform):
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
                context={"time": self.time_mode, "ttl": show_duration(self.ttl)},
                hint="write `time: processing`, or end the state by a timer and leave `ttl` out",
            )

    def __repr__(self) -> str:
        return f"stateful {self.cls} by {', '.join(self.keys)}"

    @property
    def keeps(self) -> str:
        """What the state holds."""
        return f"what {self.cls} keeps for each {', '.join(self.keys)}"

    @property
    def bound(self) -> str:
        """What ends it."""
        if self.ttl is not None:
            return f"a state goes {show_duration(self.ttl)} after it was last written, unless {self.cls} says otherwise"
        timers = "" if self.time_mode == "none" else f", by timers of {self.time_mode} time or at once"
        return f"nothing but {self.cls} itself ends it{timers}"

    def identity(self) -> dict[str, Any]:
        """What the state depends on; Spark itself compares the states that the class makes."""
        settings = {"class": self.cls, "keys": list(self.keys), "time": self.time_mode, "ttl": self.ttl is not None}
        return {"stateful": settings}

    def late_after(self, times: pa.Array) -> pa.Array:
        """A row is too late when its own time has passed."""
        return times

    def known_output(self, schema: pa.Schema) -> pa.Schema:
        """The declared columns, with the coordinates where the rows have them."""
        for key in self.keys:
            find_column(key, schema.names)
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
        carrying = ProcessorAdapter(
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

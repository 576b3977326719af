"""The contracts between the parts: the page to read first.

Data flows one way: a reader yields raw record batches, a decoder splits them into good rows and bad
records, transforms change the good rows, and every sink stages what it is given inside the task. The driver
then commits each sink once. *A batch may only be committed onto the position it starts from*: `model/position.py`
decides, `sinks/commit.py` does it, and that is all the exactly-once machinery there is.

What runs in a task must pickle and must be small; clients are made there and kept in the worker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol

import pyarrow as pa

from penstock.model import BatchToken, Guarantee, Manifest, OffsetRange, Position, Refusal, SlotAttempt, Split
from penstock.model.upkeep import Cleaned, Compacted, TableFigures


class Reader(Protocol):
    """In a task: the records of some offset ranges, each exactly once, holes in the offsets allowed."""

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """Yield record batches in `RAW_SCHEMA`, ordered by offset within each partition."""
        ...


class Decoder(Protocol):
    """In a task: bytes to columns. A good record is never lost because its neighbour is bad."""

    @property
    def schema(self) -> pa.Schema:
        """The decoded columns, with the coordinates as the last."""
        ...

    def decode(self, raw: pa.RecordBatch) -> Split:
        """Split raw records into rows of `schema` and bad records. Never raises for a bad record."""
        ...

    def notices(self) -> list[str]:
        """Conditions that concern no single record, such as a slow path, if not reported before in this process."""
        ...


class Transform(Protocol):
    """Rows to rows, with exactly the values that Spark would give: in a task over Arrow, or as SQL in Spark.

    Its `repr` says what it does, for people.
    """

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """Why the step needs Spark, given the columns that enter; `None` where the Arrow form is exact."""
        ...

    def select(self, columns: Sequence[str]) -> str | None:
        """The step as a SQL query over a relation named `input` that has `columns`.

        None for a step that is one over Arrow in both lanes.
        """
        ...

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns that leave when `schema` enters."""
        ...

    def apply(self, rows: pa.RecordBatch) -> Split:
        """Transform the rows. Coordinates stay with their row."""
        ...


class FrameTransform(ABC):
    """Base of a transform that Spark runs, and that cannot be written as a single query."""

    @abstractmethod
    def frame(self, frame: Any) -> Any:
        """On the driver: the step over a Spark frame."""


class StatefulTransform(FrameTransform):
    """Base of a transform that keeps state from batch to batch: one over Spark's own streaming frame."""

    @property
    @abstractmethod
    def keeps(self) -> str:
        """What its state contains, for people."""

    @property
    @abstractmethod
    def bound(self) -> str:
        """What ends the state, for people."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What the state in a checkpoint depends on: with any of it changed the checkpoint cannot be used."""

    @abstractmethod
    def late_after(self, times: pa.Array) -> pa.Array:
        """The watermark from which on rows of these event times are too late, all in microseconds."""


class Stage(Protocol):
    """In a task: what one attempt of one slot writes for one sink. Invisible to readers until committed.

    Rows are pushed, so that one pass over the records can feed several sinks and the quarantine.
    """

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Take some rows; give back those that the target can never hold. They go to the quarantine."""
        ...

    def finish(self) -> Manifest:
        """Make what was written durable and say what it is."""
        ...

    def abort(self) -> None:
        """Remove what was written. Never raises."""
        ...


class BaseSink(Protocol):
    """The optional methods of a sink, with defaults. Every sink inherits from it, and overrides what it supports.

    All of them run on the driver.
    """

    no_maintenance: str = "there is nothing to compact"
    """Why `maintenance` returns None, for people."""

    def changes(self, schema: pa.Schema) -> Sequence[str]:
        """What `prepare` would change in the target, in words. Raises what `check` raises."""
        return ()

    def records_held(self, ranges: Sequence[OffsetRange]) -> set[tuple[str, int, int]] | None:
        """The topic, partition and offset of every record in these ranges that the target holds a row of.

        None where the target cannot tell, as where its rows do not have the coordinates of their records.
        """
        return None

    def other_writers(self) -> Sequence[str]:
        """Every other pipeline and sink that has a position in the target, sorted, as `pipeline/sink`.

        Replays and redrives have their own names, and are listed too: `orders.replay-ID/out`, `orders.redrive/out`.
        A `?` stands for the name of a sink that the target does not know. Of a topic, only the sinks of the same
        pipeline are known.
        """
        return ()

    def has_staged(self, manifests: Sequence[Manifest]) -> bool:
        """Whether all that these manifests name still exists. A target that is restored loses it."""
        return True

    def pending_rejects(self, token: BatchToken) -> Sequence[Refusal]:
        """Where 0.7 wrote the position: rows of its last batch that it refused and may not have quarantined."""
        return ()

    def replacing(self, ranges: Sequence[OffsetRange]) -> Sink | None:
        """For a sink that appends: a copy whose commit also removes the rows of these ranges from the target."""
        return None

    def would_replace(self) -> int | None:
        """For a copy made by `replacing`: how many rows it would remove; None if only Spark can tell."""
        return None

    def by_position(self) -> Sink | None:
        """For a sink that merges: a copy that keeps rows written from a later position."""
        return None

    @property
    def needs_sql(self) -> bool:
        """Whether the sink commits through Spark SQL, given its settings and the current target."""
        return False

    def use(self, sql: SqlEngine) -> None:
        """Called before `prepare` if `needs_sql`: the engine to commit with. A pickled sink does not contain it."""
        assert not self.needs_sql

    @property
    def commits_under_lock(self) -> bool:
        """Whether its commit would have to be repeated after a concurrent compaction: it then takes the lock."""
        return False

    def maintenance(self) -> Maintenance | None:
        """The maintenance of the target; None if it needs none."""
        return None


class Sink(BaseSink, Protocol):
    """A target of rows. Everything but `stage` runs on the driver."""

    @property
    def name(self) -> str:
        """The name in the pipeline file."""
        ...

    @property
    def guarantee(self) -> Guarantee:
        """The delivery guarantee."""
        ...

    @property
    def target(self) -> str:
        """Where it writes, for people."""
        ...

    def prepare(self, schema: pa.Schema) -> None:
        """Before the first batch of a run: create the target, or check that it can take `schema`."""
        ...

    def check(self, schema: pa.Schema) -> None:
        """Read-only: raise what `prepare` would raise where the target, if it exists, cannot take `schema`."""
        ...

    def position(self) -> Position | None:
        """The position of this pipeline and sink in the target, read from the target; none where it holds nothing.

        A target that was restored to an older copy of itself gives the position that it has now.
        """
        ...

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> Stage:
        """In a task: begin to stage one attempt of a slot."""
        ...

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """Make the staged rows visible and `position` current, in one atomic step, while the target is at `onto`.

        Raises a `TransientError` where the target has moved on, or where the outcome is not known: the caller reads
        the position again. No manifests are a commit too. Called only after a decision on `onto`.
        """
        ...

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove what other attempts of this batch staged and `manifests` do not name."""
        ...


class SqlEngine(Protocol):
    """On the driver: Spark SQL in a session of its own, for a sink that cannot commit without it.

    `files` are Parquet files by their whole paths, read with exactly the columns of `schema` (null where a file lacks
    one) as the relation `staged`; `settings` hold for this call alone.
    """

    def run(
        self,
        *statements: str,
        files: Sequence[str] = (),
        schema: pa.Schema | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        """Run the statements in order; the rows of the last one."""
        ...


class SlotSink(ABC):
    """Base of a sink whose slots each commit in their task, so that the number of slots must not change unnoticed.

    Every batch then has exactly that many slots, numbered from 0, each with the same part of the source every
    time: no partition is split, and an empty slot is staged too.
    """

    notices: tuple[str, ...]
    """Notices of `prepare` for people."""

    @abstractmethod
    def pin(self, cores: int) -> int:
        """On the driver, after `prepare`: the number of slots, `cores` where nothing else decides."""

    @abstractmethod
    def begun(self) -> Position | None:
        """On the driver: the newest position of any slot, whether or not the others have reached it."""

    @abstractmethod
    def claim(self, token: BatchToken, position: Position) -> None:
        """On the driver, between the passes of a batch: give every slot the next number where it stands.

        One that holds nothing gets `position`. Raises a `TransientError` where another run has written to a slot since
        the position was read.
        """

    @abstractmethod
    def torn(self) -> str | None:
        """On the driver: which batch each slot has, in words, where the last batch is not whole."""


class RowsRefused(Exception):  # noqa: N818  not a failure: the batch goes on without these rows
    """Raised by `land` where the target refuses single rows and the sink may leave them out. Nothing has landed.

    The refused rows are quarantined, and the batch is then landed with `manifests`, which do not have them any more.
    """

    def __init__(self, refusals: Sequence[Refusal], manifests: Sequence[Manifest]) -> None:
        super().__init__(f"{len(refusals)} rows refused")
        self.refusals = tuple(refusals)
        self.manifests = tuple(manifests)


class MaintenanceLock(Protocol):
    """The lock that maintenance takes on a table; a stream that wants to commit to the table comes first."""

    def taken(self, deadline: float) -> AbstractContextManager[bool]:
        """Hold the lock for one chunk of work; false where the stream did not release it before the deadline."""
        ...

    def wanted(self) -> bool:
        """Whether the stream waits for the lock, so that its holder has to release it."""
        ...


class Maintenance(Protocol):
    """The maintenance of one table, on the driver or in a command next to a running stream.

    It changes neither rows nor tokens. Deadlines are those of `time.monotonic`.
    """

    @property
    def needs_sql(self) -> bool:
        """Whether the table as it is now is maintained through Spark."""
        ...

    def use(self, sql: SqlEngine, interrupt: Callable[[], None]) -> None:
        """The engine, where one is needed, and how to interrupt it."""
        ...

    def figures(self) -> TableFigures | None:
        """The state of the table, read without Spark; none where the table does not exist yet."""
        ...

    def compact(self, lock: MaintenanceLock, deadline: float) -> Compacted:
        """Compact small files until the deadline, chunk by chunk; a conflict costs one chunk, never the stream."""
        ...

    def clean(self, keep: timedelta, lock: MaintenanceLock, deadline: float, *, dry_run: bool = False) -> Cleaned:
        """Remove files that no version newer than `keep` names, and no stream, token or reader can need."""
        ...

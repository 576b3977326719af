"""The quarantine: one more sink, over bad records, with the guarantee of the sink that it writes to; what takes its
place where none is configured; and gaps, the records that expired before they could be read.

Bad records enter in `BAD_SCHEMA`; rows leave in `QUARANTINE_SCHEMA`, whose column names others rely on. Where only
some sinks refused a record, their names follow the stage: `sink orders_pg`, `transform returns`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import BaseSink, Sink, Stage
from penstock.errors import TerminalError
from penstock.model import (
    BAD_SCHEMA,
    QUARANTINE_SCHEMA,
    TIMESTAMP,
    BatchToken,
    Guarantee,
    Manifest,
    OffsetRange,
    Position,
    Refusal,
    SlotAttempt,
    TopicPartition,
)

if TYPE_CHECKING:
    from penstock.quarantine.records import Held


class OverSink(BaseSink):
    """Implements `contracts.Sink` over another sink, for rows of one schema."""

    SCHEMA: ClassVar[pa.Schema]
    sink: Sink

    @property
    def name(self) -> str:
        """The name of the other sink."""
        return self.sink.name

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the other sink."""
        return self.sink.guarantee

    @property
    def target(self) -> str:
        """Where the other sink writes."""
        return self.sink.target

    def prepare(self, schema: pa.Schema) -> None:
        """Create or check the target; `schema` is ignored."""
        self.sink.prepare(self.SCHEMA)

    def check(self, schema: pa.Schema) -> None:
        """Check that the target, if it exists, can take the rows."""
        self.sink.check(self.SCHEMA)

    def position(self) -> Position | None:
        """The position of the target."""
        return self.sink.position()

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """Commit the rows."""
        self.sink.land(position, manifests, onto)

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove what other attempts staged."""
        self.sink.discard(token, manifests)


class Quarantine(OverSink):
    """Bad records. A batch may be committed again, with more of them."""

    SCHEMA = QUARANTINE_SCHEMA

    def __init__(
        self, sink: Sink, pipeline: str, records: Callable[[], Held] | None = None, *, one_sink: bool = False
    ) -> None:
        self.sink = sink
        self._pipeline = pipeline
        self._records = records
        self._one_sink = one_sink
        """Whether the pipeline has a single sink, which is then not named."""

    def __getstate__(self) -> dict[str, Any]:
        # Tasks only stage: the reader stays on the driver.
        return {**self.__dict__, "_records": None}

    def records(self) -> Held:
        """On the driver: reads the records back."""
        assert self._records is not None, "on the driver"
        return self._records()

    def recorded(self, ranges: Sequence[OffsetRange]) -> list[tuple[str | None, tuple[str, int, int], str]]:
        """The quarantined records of these ranges: who refused each (None: the whole pipeline), where, which stage."""
        from penstock.quarantine.records import PLACE, REFUSED_BY, read_records  # polars, which tasks do not need

        found = read_records(self.records(), self._pipeline, [*PLACE, "pipeline", "stage"])
        by_partition = {r.topic_partition: r for r in ranges}
        kept = []
        for topic, partition, offset, pipeline, stage, by in found.select(
            *PLACE, "pipeline", "stage", REFUSED_BY
        ).iter_rows():
            r = by_partition.get(TopicPartition(topic, partition))
            if pipeline == self._pipeline and r is not None and r.start <= offset < r.end:
                kept.append((by, (topic, partition, offset), stage.partition(" ")[0]))
        return kept

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> Stage:
        """In a task: begin to stage bad records."""
        inner = self.sink.stage(token, writer, QUARANTINE_SCHEMA)
        return _QuarantineStage(inner, self._pipeline, token.batch_id, self._one_sink)


def stage_table(sink: Sink, token: BatchToken, rows: pa.Table) -> Manifest:
    """Stage rows on the driver."""
    stage = sink.stage(token, SlotAttempt(0, uuid4().hex[:12]), rows.schema)
    try:
        for batch in rows.to_batches():
            stage.write(batch)
        return stage.finish()
    except BaseException:
        stage.abort()
        raise


class _QuarantineStage:
    def __init__(self, inner: Stage, pipeline: str, batch_id: int, one_sink: bool) -> None:
        self._inner = inner
        self._one_sink = one_sink
        self._pipeline = pipeline
        self._batch_id = batch_id

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        if not rows.num_rows:
            return ()
        arrays = [
            pa.repeat(pa.scalar(self._pipeline), rows.num_rows),
            pa.repeat(pa.scalar(self._batch_id, pa.int64()), rows.num_rows),
            self._stages(rows),
            *(rows.column(name) for name in BAD_SCHEMA.names if name not in ("stage", "refused_by")),
            pa.repeat(pa.scalar(datetime.now(UTC), TIMESTAMP), rows.num_rows),
        ]
        return self._inner.write(pa.RecordBatch.from_arrays(arrays, schema=QUARANTINE_SCHEMA))

    def _stages(self, rows: pa.RecordBatch) -> pa.Array:
        stage, by = rows.column("stage"), rows.column("refused_by")
        if by.null_count == len(by):
            return stage
        plain = pc.equal(stage, "sink") if self._one_sink else pa.repeat(pa.scalar(False), len(stage))
        named = pc.binary_join_element_wise(stage, by, " ")
        return pc.if_else(pc.or_(plain, pc.is_null(by)), stage, named)

    def finish(self) -> Manifest:
        return self._inner.finish()

    def abort(self) -> None:
        self._inner.abort()


class WithoutTarget(BaseSink):
    """The methods of a sink without a target: it stores nothing and commits nothing."""

    def prepare(self, schema: pa.Schema) -> None:
        """There is nothing to prepare."""

    def check(self, schema: pa.Schema) -> None:
        """There is nothing to check."""

    def position(self) -> Position | None:
        """It has none."""
        return None

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """There is nothing to commit."""

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """There is nothing to remove."""


class RefusingQuarantine(WithoutTarget):
    """Implements `contracts.Sink`: it takes no record."""

    name = "quarantine"
    guarantee = Guarantee.EXACTLY_ONCE
    target = "none: a bad record stops the pipeline"

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> _RefusingStage:
        """In a task: stop at the first bad record."""
        return _RefusingStage(writer, token.batch_id)


class _RefusingStage:
    def __init__(self, writer: SlotAttempt, batch_id: int) -> None:
        self._writer = writer
        self._batch_id = batch_id

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        if not rows.num_rows:
            return ()
        shown = ("stage", "code", "message", "topic", "partition", "offset")
        first = rows.select(list(shown)).slice(0, 1).to_pylist()[0]
        place = f"{first['topic']}[{first['partition']}] offset {first['offset']}"
        raise TerminalError(
            "BAD_RECORD",
            f"{place}: {first['code']}: {first['message']}",
            context={
                "record": place,
                "stage": first["stage"],
                "batch": self._batch_id,
                "bad records": f"{rows.num_rows} among those read together",
            },
            hint="to set bad records aside and go on, add to the pipeline file:\nquarantine: {table: lake/quarantine}",
        )

    def finish(self) -> Manifest:
        return Manifest(RefusingQuarantine.name, self._writer, rows=0, size_bytes=0)

    def abort(self) -> None:
        pass


GAPS_SCHEMA = pa.schema(
    [
        pa.field("pipeline", pa.string(), nullable=False),
        pa.field("batch_id", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("from_offset", pa.int64(), nullable=False),
        pa.field("to_offset", pa.int64()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("recorded_at", TIMESTAMP, nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Gap:
    """The offsets `[start, end)` of one partition that cannot be read any more. `end` may be unknown."""

    topic: str
    partition: int
    start: int
    end: int | None
    reason: str

    def __str__(self) -> str:
        end = "?" if self.end is None else self.end
        return f"{self.topic}[{self.partition}] {self.start}-{end}: {self.reason}"


def gap_rows(token: BatchToken, gaps: Sequence[Gap], recorded_at: datetime | None = None) -> pa.RecordBatch:
    """The gaps of a batch as rows of `GAPS_SCHEMA`, recorded now unless said otherwise."""
    moment = recorded_at or datetime.now(UTC)
    rows = [
        {
            "pipeline": token.pipeline,
            "batch_id": token.batch_id,
            "topic": gap.topic,
            "partition": gap.partition,
            "from_offset": gap.start,
            "to_offset": gap.end,
            "reason": gap.reason,
            "recorded_at": moment,
        }
        for gap in gaps
    ]
    return pa.RecordBatch.from_pylist(rows, schema=GAPS_SCHEMA)

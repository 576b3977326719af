"""The quarantine: one more sink, over bad records, as exact as the sink it is handed.

Bad records enter in `BAD_SCHEMA`; rows leave in `QUARANTINE_SCHEMA`, whose column names others rely on. Who refused
a record that others took stands behind the stage: `sink orders_pg`, `transform returns`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts import Sink, Stage
from penstock.model import (
    BAD_SCHEMA,
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

QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("pipeline", pa.string()),
        pa.field("batch_id", pa.int64()),
        *(field for field in BAD_SCHEMA if field.name != "refused_by"),
        pa.field("quarantined_at", TIMESTAMP),
    ]
)
"""A bad record with the pipeline and batch that met it, and when."""


class Quarantine:
    """Implements `contracts.Sink` by way of another sink."""

    def __init__(
        self, sink: Sink, pipeline: str, records: Callable[[], Held] | None = None, *, one_sink: bool = False
    ) -> None:
        self.sink = sink
        self._pipeline = pipeline
        self._records = records
        self._one_sink = one_sink
        """Whether the pipeline has a single sink, which then goes without saying."""

    def __getstate__(self) -> dict[str, Any]:
        # Tasks only stage: what reads the quarantine stays on the driver.
        return {**self.__dict__, "_records": None}

    @property
    def name(self) -> str:
        """The name of the sink underneath."""
        return self.sink.name

    @property
    def guarantee(self) -> Guarantee:
        """What the sink underneath promises."""
        return self.sink.guarantee

    @property
    def target(self) -> str:
        """Where the sink underneath writes."""
        return self.sink.target

    def prepare(self, schema: pa.Schema) -> None:
        """Create or check the target. Bad records always look alike, so `schema` is not looked at."""
        self.sink.prepare(QUARANTINE_SCHEMA)

    def check(self, schema: pa.Schema) -> None:
        """Look whether the target, if it is there, can take bad records."""
        self.sink.check(QUARANTINE_SCHEMA)

    def position(self) -> Position | None:
        """The position of the target."""
        return self.sink.position()

    def records(self) -> Held:
        """On the driver: what reads the records back."""
        assert self._records is not None, "on the driver"
        return self._records()

    def recorded(
        self, ranges: Sequence[OffsetRange], batch_id: int | None = None
    ) -> list[tuple[str | None, tuple[str, int, int], str]]:
        """The records of these ranges in the quarantine, of one batch or of any, with who refused each, at which stage.

        None stands for the whole pipeline.
        """
        from penstock.quarantine.records import PLACE, REFUSED_BY, read_records

        found = read_records(self.records(), self._pipeline, [*PLACE, "batch_id", "pipeline", "stage"])
        within = {r.topic_partition: r for r in ranges}
        kept = []
        for row in found.select(*PLACE, "batch_id", "pipeline", "stage", REFUSED_BY).iter_rows():
            topic, partition, offset, batch, pipeline, stage, by = row
            inside = within.get(TopicPartition(topic, partition))
            mine = pipeline == self._pipeline and batch_id in (None, batch)
            if mine and inside is not None and inside.start <= offset < inside.end:
                kept.append((by, (topic, partition, offset), stage.partition(" ")[0]))
        return kept

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> Stage:
        """In a task: begin to stage bad records."""
        inner = self.sink.stage(token, writer, QUARANTINE_SCHEMA)
        return _QuarantineStage(inner, self._pipeline, token.batch_id, self._one_sink)

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """Commit bad records. A batch may be committed again, with more of them."""
        self.sink.land(position, manifests, onto)

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove what other attempts staged."""
        self.sink.discard(token, manifests)


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

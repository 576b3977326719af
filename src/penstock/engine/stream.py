"""A stateful flow: Spark's own streaming frame from the topic to the last stateful step, then a frame per batch.

Spark's Kafka source reads, because only its streaming frame carries watermarks and state. The same decoder and the same
steps over Arrow run in its tasks; after the last step with state each batch is a frame like any other, and the same
sinks stage it. What changes from batch to batch reaches the tasks as local properties of the thread that runs it.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from penstock.assembly.build import as_nullable
from penstock.assembly.layout import Layout, StreamInput
from penstock.contracts import Decoder, StatefulTransform, Transform
from penstock.engine.frame import (
    TaskReports,
    apply_steps,
    pinned_by_record,
    quarantine_all,
    spark_schema,
    stage_rows_of,
)
from penstock.engine.outlet import errors_for_spark
from penstock.engine.refused import Excluded, record_places, single_record
from penstock.engine.slot import apply_all
from penstock.engine.work import SlotReport, SlotWork
from penstock.errors import wire_key
from penstock.model import COORDINATES, RAW_SCHEMA, OffsetRange, Refusal, Split, TopicPartition, coordinates_of
from penstock.transforms import Dedupe, Enrich, PythonFrame, Sql, Watermark
from penstock.transforms.columns import find_column, quote

CLOCK = "penstock.clock"
"""In a trial: the topic of records that only advance time."""
EXCLUDED = "penstock.excluded"
"""The local property with the excluded records of the batch, pickled."""
LATE = "penstock.late"
"""The local property with the watermark for late rows of the batch, in microseconds."""


class LateRows:
    """Removes the rows that the next step would drop as late, so that each is counted and kept."""

    def __init__(self, watermark: Watermark, step: StatefulTransform) -> None:
        self.watermark, self.step = watermark, step

    def __repr__(self) -> str:
        return f"late rows by {self.watermark.column}: {self.watermark.late}"

    def no_arrow_form(self, schema: pa.Schema) -> str | None:
        """It is one over Arrow."""
        return None

    def select(self, columns: Sequence[str]) -> str | None:
        """None: it is one over Arrow."""
        return None

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The same columns."""
        return schema

    def apply(self, rows: pa.RecordBatch) -> Split:
        """In a task of a batch: what is not late by its watermark."""
        context = TaskContext.get()
        mark = int((context.getLocalProperty(LATE) if context is not None else None) or 0)
        if mark <= 0:
            return Split.all_good(rows)
        times = rows.column(find_column(self.watermark.column, rows.schema.names)).cast(pa.int64())
        late = pc.fill_null(pc.less_equal(self.step.late_after(times), mark), False)
        count = pc.sum(late).as_py() or 0
        if not count:
            return Split.all_good(rows)
        refused = _refusals(rows.filter(late), self) if self.watermark.late == "quarantine" else ()
        return Split(rows.filter(pc.invert(late)), refused=refused, counts={"late": count})


def _refusals(rows: pa.RecordBatch, late: LateRows) -> tuple[Refusal, ...]:
    message = f"later than the watermark on {late.watermark.column} allows"
    return tuple(Refusal(single_record(place), "LATE", message) for place in record_places(rows))


@dataclass
class Stream:
    """The streaming frame of one flow, and how each of its batches is staged."""

    layout: Layout
    reports: TaskReports
    clock: bool = False
    """Whether there are records that only advance time."""

    @classmethod
    def over(cls, session: Any, layout: Layout) -> Stream:
        """The stream of a layout, not started."""
        return cls(layout, TaskReports(session.sparkContext))

    def frame(self, session: Any, raw: Mapping[str, Any]) -> Any:
        """The frame to start the query with, over the raw records of each input."""
        inputs = [self._input(session, one, raw[one.name]) for one in self.layout.inputs]
        frame = self.layout.join.frames(*inputs) if self.layout.join is not None else inputs[0]
        return apply_steps(session, frame, self.layout.kept, self.reports)

    def _input(self, session: Any, one: StreamInput, raw: Any) -> Any:
        over_arrow = one.over_arrow()
        after = one.before[len(over_arrow) :]
        late = (
            (LateRows(one.watermark, one.late_for),) if one.watermark is not None and one.late_for is not None else ()
        )
        if not after:
            # Together with the decoder: a separate pass through Python costs more than the decoding.
            over_arrow, late = (*over_arrow, *late), ()
        schema = one.decoder.schema
        for step in over_arrow:
            schema = step.output(schema)
        clock = one.watermark.column if one.watermark is not None and self.clock else None
        decode = _decoding(one.decoder, over_arrow, self.reports, self.reports.segment(), clock)
        schema = as_nullable(schema) if clock is not None else schema
        frame = raw.select(*RAW_SCHEMA.names).mapInArrow(decode, spark_schema(schema))
        frame = apply_steps(session, frame, [*after, *late], self.reports)
        frame = one.watermark.frame(frame) if one.watermark is not None else frame
        if clock is None:
            return frame
        # The column is named for Spark alone: a condition without it would be moved before the watermark.
        return frame.where(f"NOT ({COORDINATES}.topic = '{CLOCK}' AND {quote(clock)} > TIMESTAMP'0001-01-01')")

    def stage(self, frame: Any, work: SlotWork, late: int, after: Sequence[Transform]) -> list[SlotReport]:
        """Run a batch of the stream and stage what leaves it."""
        session = frame.sparkSession
        session.sparkContext.setLocalProperty(LATE, str(late * 1000))
        self.reports.take()
        session.sparkContext.setLocalProperty(EXCLUDED, base64.b64encode(pickle.dumps(work.excluded)).decode())
        if not work.inlets and not work.quarantines:
            # Every target has the batch, but the state must still be updated.
            frame.write.format("noop").mode("overwrite").save()
            return []
        staged = stage_rows_of(self._pinned(apply_steps(session, frame, after, self.reports), work, after), work)
        reports = self.reports.take()
        reports += self._unread(session.sparkContext, work, reports)
        return quarantine_all(session.sparkContext, work, [*reports, *staged])

    def _pinned(self, frame: Any, work: SlotWork, after: Sequence[Transform]) -> Any:
        """If a sink commits in its slot: a row's slot is that of its state, unless a step moves rows."""
        if work.pinned is None:
            return frame
        if any(map(_moves_rows, after)):
            return pinned_by_record(frame, work)
        from pyspark.sql import functions as f

        return frame.repartitionById(work.pinned, f.pmod(f.spark_partition_id(), f.lit(work.pinned)))

    def _unread(self, context: Any, work: SlotWork, reports: Sequence[SlotReport]) -> list[SlotReport]:
        """Read what Spark saw no need to read, for its bad records alone."""
        seen = {at for report in reports for at in report.read}
        left = [r for r in work.token.ranges if len(r) and r.topic_partition not in seen]
        if not left:
            return []
        decoders = {topic: one.decoder for one in self.layout.inputs for topic in one.topics or ()}
        tasks = [
            (work.reader, decoders.get(r.topic, self.layout.inputs[0].decoder), r, work.excluded, work.key)
            for r in left
        ]
        return list(context.parallelize(tasks, len(tasks)).map(_decode_range).collect())


def _moves_rows(step: Transform) -> bool:
    """Whether rows may leave a step in another partition than they came in."""
    return isinstance(step, Sql | Dedupe | PythonFrame) or (isinstance(step, Enrich) and step.rows is None)


def _decoding(
    decoder: Decoder, steps: Sequence[Transform], reports: TaskReports, segment: int, clock: str | None = None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    key = wire_key()

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = SlotReport(segment + TaskContext.get().partitionId())
        kept_out = TaskContext.get().getLocalProperty(EXCLUDED)
        excluded = pickle.loads(base64.b64decode(kept_out)) if kept_out else Excluded()
        with errors_for_spark(key):
            for batch in batches:
                raw = batch.cast(RAW_SCHEMA)
                ticks = pc.equal(raw.column("topic"), CLOCK) if clock is not None else None
                if ticks is not None:
                    raw, ticks = raw.filter(pc.invert(ticks)), raw.filter(ticks)
                rows = apply_all(_decoded(decoder, raw, report, excluded), steps, report)
                if rows.num_rows:
                    yield rows
                if ticks is not None and ticks.num_rows:
                    yield _clock_rows(ticks, rows.schema, clock)
            report.notices.update(decoder.notices())
        reports.add(report)

    return run


def _clock_rows(ticks: pa.RecordBatch, schema: pa.Schema, column: str | None) -> pa.RecordBatch:
    """Rows of nothing but the time and a place that no record has."""
    own = {column: ticks.column("timestamp"), COORDINATES: coordinates_of(ticks)}
    arrays = [own.get(f.name, pa.nulls(ticks.num_rows, f.type)) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=as_nullable(schema))


def _decode_range(task: tuple[Any, Decoder, OffsetRange, Excluded, bytes]) -> SlotReport:
    reader, decoder, wanted, excluded, key = task
    report = SlotReport(0)
    with errors_for_spark(key):
        for raw in reader.read([wanted]):
            _decoded(decoder, raw, report, excluded)
    return report


def _decoded(
    decoder: Decoder, raw: pa.RecordBatch, report: SlotReport, excluded: Excluded = Excluded()
) -> pa.RecordBatch:
    """The good rows of some records; the bad ones are noted by their places, with the reason."""
    report.rows_in += raw.num_rows
    report.bytes_in += raw.column("value").nbytes
    if raw.num_rows:
        report.read.add(TopicPartition(raw.column("topic")[0].as_py(), raw.column("partition")[0].as_py()))
    with report.timed("decode"):
        split = decoder.decode(excluded.raw(raw))
    if split.bad.num_rows:
        reasons = (split.bad.column(name).to_pylist() for name in ("code", "message", "stage"))
        for place, *reason in zip(record_places(split.bad), *reasons, strict=True):
            report.refused.append(Refusal(single_record(place), *reason))
    return split.good

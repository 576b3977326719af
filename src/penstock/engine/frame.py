"""The frame lane: the same reader, decoder and sinks around a Spark frame, for what only Spark SQL can express.

The decoder's bad records are staged where they are found, inside the reading task, and their manifests come back
through an accumulator. Spark may leave rows unread that a query does not need, or read a slot twice: of each slot one
whole report counts, and a slot that was not read to its end is read again for its bad records alone.

SQL steps and frame functions run directly, steps over Arrow in their own tasks. Their refusals and counters also come
back through an accumulator. The records are quarantined after the frame has run, by coordinates and byte for byte, in
one job for all of them. An expression that only Spark can evaluate is evaluated so that a row that fails does not fail
the job.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import AccumulatorParam
from pyspark.errors import AnalysisException, PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from penstock.contracts import FrameTransform, Transform
from penstock.engine.outlet import errors_for_spark, finish_stages, outlet_of, sides_of
from penstock.engine.refused import refused_records
from penstock.engine.slot import apply_all, quarantine, slot_run, stage_rows
from penstock.engine.work import SlotReport, SlotWork, pinned_slot, reporting
from penstock.errors import wire_key
from penstock.model import COORDINATES, OffsetRange, Refusal
from penstock.spark.internals import forget_accumulator, tried_column
from penstock.transforms import Join
from penstock.transforms.step import ExpressionStep, FromSpark

Slots = Sequence[tuple[OffsetRange, ...]]
Views = Callable[[Any], None]
"""Registers the tables of the steps as views of a session."""
_REPORT = "report binary"


def stage_frame(
    batch: Any, works: Sequence[SlotWork], slots: Slots, *, steps: Sequence[Transform], views: Views = lambda _: None
) -> list[SlotReport]:
    """Run the batch of one flow through Spark SQL; give back what each task read and staged."""
    [work] = works
    session = batch.sparkSession
    views(session)
    context = session.sparkContext
    read, by_steps = TaskReports(context), TaskReports(context)
    tasks = session.range(0, len(slots), 1, len(slots))
    frame = tasks.mapInArrow(_reading(work, slots, read), spark_schema(work.decoder.schema))
    staged = stage_rows_of(pinned_by_record(apply_steps(session, frame, steps, by_steps), work), work)
    reports = {report.slot: report for report in read.take()}
    unread = sorted(set(range(len(slots))) - reports.keys())
    if unread:
        drained = context.parallelize(unread, len(unread)).map(lambda slot: _drain(work, slot, slots[slot]))
        reports.update({report.slot: report for report in drained.collect()})
    found = [*reports.values(), *by_steps.take(), *staged]
    read.forget()
    by_steps.forget()
    return quarantine_all(context, work, found)


def stage_rows_of(frame: Any, work: SlotWork) -> list[SlotReport]:
    """Run a frame, and stage its rows in the tasks that end it."""
    return [pickle.loads(row.report) for row in numbered(frame).mapInArrow(_staging(work), _REPORT).collect()]


def pinned_by_record(frame: Any, work: SlotWork) -> Any:
    """If a sink commits in its slot: the rows in the slot of their record, in source order."""
    if work.pinned is None:
        return frame
    from pyspark.sql import functions as f

    # The partitions are few and known: a table in the plan, and no second way to compute a slot.
    parts = {r.topic_partition for r in work.token.ranges}
    known = [(f.lit(f"{p.topic}/{p.partition}"), f.lit(pinned_slot(p.topic, p.partition, work.pinned))) for p in parts]
    at = f.concat_ws("/", f.col(f"{COORDINATES}.topic"), f.col(f"{COORDINATES}.partition"))
    slot = f.coalesce(f.create_map(*chain.from_iterable(known))[at], f.lit(0)) if known else f.lit(0)
    return frame.repartitionById(work.pinned, slot).sortWithinPartitions(
        f"{COORDINATES}.topic", f"{COORDINATES}.partition", f"{COORDINATES}.offset"
    )


def _reading(work: SlotWork, slots: Slots, read: TaskReports) -> Callable[[Iterable[Any]], Iterator[pa.RecordBatch]]:
    def read_slots(tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for slot in (number for task in tasks for number in task.column(0).to_pylist()):
            with slot_run([work], slot) as run:
                yield from run.decoded(slots[slot])
            read.add(run.report)

    return read_slots


def _drain(work: SlotWork, slot: int, ranges: Sequence[OffsetRange]) -> SlotReport:
    with slot_run([work], slot) as run:
        for _ in run.decoded(ranges):
            pass
    return run.report


def _staging(work: SlotWork) -> Callable[[Iterable[Any]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slot = TaskContext.get().partitionId()
        with reporting(slot) as report, outlet_of(work, slot) as out:
            rows = (b.rename_columns(work.schema.names).cast(work.schema) for b in batches)
            stage_rows(rows, out, report)
            finish_stages(report, out=out)
            report.refused = out.refused
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(report)], pa.binary())], names=["report"])

    return run


# The steps over a frame.

_ONCE_FOR_SEVERAL = "spark.sql.subexpressionElimination.enabled"


def with_tried(frame: Any, step: ExpressionStep) -> Any | None:
    """The frame with a struct in each row for each expression of a step, NULL where it fails.

    None if Spark only accepts them unchanged: one generates rows, or is invalid.
    """
    # A piece that several expressions share would be computed before them, outside of what catches its failure.
    frame.sparkSession.conf.set(_ONCE_FOR_SEVERAL, "false")
    frame.createOrReplaceTempView("input")
    try:
        tried = [
            tried_column(frame.sparkSession, one.text, condition=one.condition).alias(FromSpark.column(n))
            for n, one in enumerate(step.expressions)
        ]
        return frame.alias("input").select("*", *tried)
    except AnalysisException:
        return None


_one_at_a_time = threading.Lock()
_WATERMARK = "spark.watermarkDelayMs"
_SEGMENT = 1_000_000
"""More than the tasks of any stage: a report is identified by its segment and task."""


class _Reports(AccumulatorParam):  # type: ignore[misc]
    def zero(self, value: list[SlotReport]) -> list[SlotReport]:
        return []

    def addInPlace(self, value1: list[SlotReport], value2: list[SlotReport]) -> list[SlotReport]:  # noqa: N802
        return value1 + value2


class TaskReports:
    """Collects the reports of tasks inside a frame on the driver. A task that ran twice counts once.

    Call `forget` after its last job: PySpark keeps every accumulator forever, and these are created for each batch.
    """

    def __init__(self, context: Any) -> None:
        # Its id is incremented without a lock, and two with the same id would get each other's reports.
        with _one_at_a_time:
            self._reports = context.accumulator([], _Reports())
        self._segments = 0

    def segment(self) -> int:
        """On the driver: a number for the reports of the next kind of task."""
        self._segments += 1
        return self._segments * _SEGMENT

    def add(self, report: SlotReport) -> None:
        """In a task: send a report."""
        self._reports.add([report])

    def take(self) -> list[SlotReport]:
        """On the driver: everything since the last time."""
        found = {report.slot: report for report in self._reports.value}
        self._reports.value = []
        return list(found.values())

    def forget(self) -> None:
        """On the driver, when no job can report anymore: drop the accumulator."""
        forget_accumulator(self._reports)


def spark_schema(schema: pa.Schema) -> Any:
    """An Arrow schema as Spark's; times without a zone stay so."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def apply_steps(session: Any, frame: Any, steps: Sequence[Transform], reports: TaskReports | None = None) -> Any:
    """Apply the transforms in order. Without `reports` the frame is only analysed, never run."""
    over_arrow: list[Transform] = []
    columns: Sequence[str] = frame.columns
    for step in steps:
        if isinstance(step, ExpressionStep) and step.on_error == "quarantine":
            frame, over_arrow, done = _refusing(frame, over_arrow, step, reports)
            if done:
                columns = _after(frame, over_arrow).names
                continue
        query = None if isinstance(step, FrameTransform) else step.select(columns)
        if query is None and not isinstance(step, FrameTransform):
            over_arrow.append(step)
            columns = _after(frame, over_arrow).names
            continue
        frame, over_arrow = through_arrow(frame, over_arrow, reports), []
        if isinstance(step, FrameTransform):
            frame = step.frame(frame)
        else:
            frame.createOrReplaceTempView("input")
            frame = session.sql(query)
        columns = frame.columns
    return through_arrow(frame, over_arrow, reports)


def _refusing(
    frame: Any, over_arrow: list[Transform], step: ExpressionStep, reports: TaskReports | None
) -> tuple[Any, list[Transform], bool]:
    """The frame and its steps, with a step that refuses the rows it fails on; false if it is left to Spark.

    That is if no row can fail, if the rows have lost their coordinates, or if only Spark can process them.
    """
    if not _keeps_through_arrow(frame):
        return frame, over_arrow, False
    schema = _after(frame, over_arrow)
    if COORDINATES not in schema.names:
        return frame, over_arrow, False
    if step.no_arrow_form(schema) is None:
        # If the rows are already in a task, one more step costs less than the way back.
        return (frame, [*over_arrow, step], True) if over_arrow or step.may_fail(schema) else (frame, [], False)
    frame = through_arrow(frame, over_arrow, reports)
    tried = with_tried(frame, step)
    if tried is None or not _keeps_through_arrow(tried):
        return frame, [], False
    return tried, [FromSpark(step)], True


def _keeps_through_arrow(frame: Any) -> bool:
    """Whether the columns of a frame stay what they are when its rows go through Arrow.

    Not those of types that Arrow has no word for, such as intervals and texts with a collation, nor, in a stream, the
    event time of a watermark, which Spark knows by its column.
    """
    try:
        again = spark_schema(to_arrow_schema(frame.schema))
    except PySparkTypeError:
        return False
    if frame.isStreaming and any(_WATERMARK in one.metadata for one in frame.schema):
        return False
    return all(one.dataType == other.dataType for one, other in zip(frame.schema, again, strict=True))


def _after(frame: Any, steps: Sequence[Transform]) -> pa.Schema:
    schema: pa.Schema = to_arrow_schema(frame.schema)
    for step in steps:
        schema = step.output(schema)
    return schema


def through_arrow(frame: Any, steps: Sequence[Transform], reports: TaskReports | None) -> Any:
    """Steps over Arrow, in one pass inside Spark's tasks."""
    if not steps:
        return frame
    entering: pa.Schema = to_arrow_schema(frame.schema)
    schema = _after(frame, steps)
    segment, key = reports.segment() if reports is not None else 0, wire_key()

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = SlotReport(segment + TaskContext.get().partitionId())
        with errors_for_spark(key):
            for batch in batches:
                rows = apply_all(pa.RecordBatch.from_arrays(batch.columns, schema=entering), steps, report)
                if rows.num_rows:
                    yield rows
        if reports is not None:
            reports.add(report)

    return numbered(frame).mapInArrow(run, spark_schema(schema))


def numbered(frame: Any) -> Any:
    """The frame with names that `mapInArrow` can look up: it reads a dot or a backtick in one as syntax."""
    if not any("." in name or "`" in name for name in frame.columns):
        return frame
    return frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))


def schema_after(session: Any, schema: pa.Schema, steps: Sequence[Transform]) -> pa.Schema:
    """The Arrow schema that the steps give, found by analysis alone."""
    frame = session.createDataFrame([], spark_schema(schema))
    found: pa.Schema = to_arrow_schema(apply_steps(session, frame, steps).schema)
    return found


def schema_joined(session: Any, join: Join, sides: Mapping[str, pa.Schema]) -> pa.Schema:
    """The Arrow schema that a join gives, found by analysis alone."""
    left, right = (session.createDataFrame([], spark_schema(sides[one.name])) for one in (join.left, join.right))
    found: pa.Schema = to_arrow_schema(join.frames(left, right).schema)
    return found


def quarantine_all(context: Any, work: SlotWork, reports: list[SlotReport]) -> list[SlotReport]:
    """Quarantine what the tasks of some reports refused, in a separate job; returns all reports."""
    refused: list[Refusal] = []
    for report in reports:
        report.refused_on(work.route)
        refused, report.refused = [*refused, *report.refused], []
    if not refused:
        return reports
    groups: dict[int, list[Refusal]] = {}
    slots = work.pinned or context.defaultParallelism
    for refusal in refused:
        groups.setdefault(pinned_slot(refusal.record.topic, refusal.record.partition, slots), []).append(refusal)
    tasks = context.parallelize(sorted(groups.items()), len(groups))
    done: list[SlotReport] = tasks.map(_quarantining(work)).collect()
    return [*reports, *done]


def _quarantining(work: SlotWork) -> Callable[[tuple[int, list[Refusal]]], SlotReport]:
    def run(group: tuple[int, list[Refusal]]) -> SlotReport:
        slot, refused = group
        report = SlotReport(slot)
        with sides_of(work, slot) as sides:
            for bad in refused_records(work.reader, refused):
                quarantine(bad, work, sides, report)
            report.manifests = sides.finish()
        return report

    return run

"""The frame lane: the same reader, decoder and sinks around a Spark frame, for what only Spark SQL can say.

The decoder's bad records are staged where they are found, inside the reading task, and their manifests come
back through an accumulator. Spark may leave rows unread that a query does not need, or read a slot twice:
of each slot one whole report counts, and a slot that was not read to its end is read again for its bad
records alone.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from penstock.contracts import Transform
from penstock.engine.outlet import finish_stages, outlet_of
from penstock.engine.slot import slot_run, stage_rows
from penstock.engine.steps import TaskReports, apply_steps, numbered, quarantine_all, spark_schema
from penstock.engine.work import SlotReport, SlotWork, pinned_slot, reporting
from penstock.model import COORDINATES, OffsetRange

Slots = Sequence[tuple[OffsetRange, ...]]
Views = Callable[[Any], None]
"""Makes the tables that the steps name views of a session."""
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
    """Where a sink commits in its slot: the rows in the slot of their record, in the order of the source."""
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

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
from pyspark.accumulators import AccumulatorParam
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from penstock.contracts import Transform
from penstock.model import COORDINATES, OffsetRange
from penstock.runtime.slot import (
    SlotReport,
    SlotWork,
    decoded,
    outlet_of,
    quarantine_refused,
    sides_of,
    stage_rows,
)
from penstock.runtime.slots import pinned_slot

Slots = Sequence[tuple[OffsetRange, ...]]
_REPORT = "report binary"


class _Reports(AccumulatorParam):  # type: ignore[misc]
    def zero(self, value: list[SlotReport]) -> list[SlotReport]:
        return []

    def addInPlace(self, value1: list[SlotReport], value2: list[SlotReport]) -> list[SlotReport]:  # noqa: N802
        return value1 + value2


def stage_frame(
    session: Any, works: Sequence[SlotWork], slots: Slots, *, steps: Sequence[Transform]
) -> list[SlotReport]:
    """Run the batch of one flow through Spark SQL; give back what each task read and staged."""
    [work] = works
    context = session.sparkContext
    read: Any = context.accumulator([], _Reports())
    tasks = session.range(0, len(slots), 1, len(slots))
    frame = tasks.mapInArrow(
        _reading(work, slots, read), from_arrow_schema(work.decoder.schema, prefer_timestamp_ntz=True)
    )
    frame = _pinned(apply_steps(session, frame, steps), work, slots)
    staged = frame.mapInArrow(_staging(work, len(slots)), _REPORT).collect()
    reports = {report.slot: report for report in read.value}
    unread = sorted(set(range(len(slots))) - reports.keys())
    if unread:
        drained = context.parallelize(unread, len(unread)).map(lambda slot: _drain(work, slot, slots[slot]))
        reports.update({report.slot: report for report in drained.collect()})
    return [*reports.values(), *(pickle.loads(row.report) for row in staged)]


def apply_steps(session: Any, frame: Any, steps: Sequence[Transform]) -> Any:
    """The transforms as SQL over `input`, one after another."""
    for step in steps:
        frame.createOrReplaceTempView("input")
        frame = session.sql(step.select(frame.columns))
    return frame


def schema_after(session: Any, decoded_schema: pa.Schema, steps: Sequence[Transform]) -> pa.Schema:
    """The Arrow schema that the steps give, found by analysis alone."""
    frame = session.createDataFrame([], from_arrow_schema(decoded_schema, prefer_timestamp_ntz=True))
    found: pa.Schema = to_arrow_schema(apply_steps(session, frame, steps).schema)
    return found


def _pinned(frame: Any, work: SlotWork, slots: Slots) -> Any:
    """Where a sink commits in its slot: the rows back in the slot of their partition, in the order of the source."""
    if work.pinned is None:
        return frame
    from pyspark.sql import functions as f

    # The partitions are few and known: a table in the plan, and no second way to compute a slot.
    parts = {r.topic_partition for ranges in slots for r in ranges}
    known = [(f.lit(f"{p.topic}/{p.partition}"), f.lit(pinned_slot(p.topic, p.partition, work.pinned))) for p in parts]
    at = f.concat_ws("/", f.col(f"{COORDINATES}.topic"), f.col(f"{COORDINATES}.partition"))
    slot = f.coalesce(f.create_map(*chain.from_iterable(known))[at], f.lit(0)) if known else f.lit(0)
    return frame.repartitionById(work.pinned, slot).sortWithinPartitions(
        f"{COORDINATES}.topic", f"{COORDINATES}.partition", f"{COORDINATES}.offset"
    )


def _reading(work: SlotWork, slots: Slots, read: Any) -> Callable[[Iterable[Any]], Iterator[pa.RecordBatch]]:
    def run(tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for slot in (number for task in tasks for number in task.column(0).to_pylist()):
            report = SlotReport(slot)
            with sides_of(work, slot) as sides:
                yield from decoded(work, slots[slot], sides, report)
                quarantine_refused(work, sides, report)
                report.manifests = sides.finish()
            read.add([report])

    return run


def _drain(work: SlotWork, slot: int, ranges: Sequence[OffsetRange]) -> SlotReport:
    report = SlotReport(slot)
    with sides_of(work, slot) as sides:
        for _ in decoded(work, ranges, sides, report):
            pass
        quarantine_refused(work, sides, report)
        report.manifests = sides.finish()
    return report


def _staging(work: SlotWork, count: int) -> Callable[[Iterable[Any]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slot = TaskContext.get().partitionId()
        report = SlotReport(slot)
        with outlet_of(work, slot) as out, sides_of(work, count + slot) as sides:
            rows = (pa.RecordBatch.from_arrays(b.columns, schema=work.schema) for b in batches)
            stage_rows(rows, out, report)
            quarantine_refused(work, sides, report, out)
            with report.timed("stage"):
                report.manifests = sides.finish() + out.finish()
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(report)], pa.binary())], names=["report"])

    return run

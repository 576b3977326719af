"""The direct lane: Spark schedules the slots, the rows stay in Arrow from Kafka to the staged file.

A dedupe must see all rows of a key, which may lie in several slots. Rows are then exchanged once by key,
as Arrow IPC blocks through Spark's shuffle; Spark never looks inside them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.model import OffsetRange
from penstock.runtime.outlet import SlotWork, outlet_of, sides_of
from penstock.runtime.slot import RefusedRows, decoded, joined, stage_rows, transformed
from penstock.runtime.slot_report import SlotReport, reporting
from penstock.transforms import Dedupe

Slots = Sequence[tuple[OffsetRange, ...]]


def can_share(one: SlotWork, other: SlotWork) -> bool:
    """Whether two flows of the same topics can be staged in one pass, each record read and decoded once."""
    return all(
        work.tombstones is None and not any(isinstance(step, Dedupe) for step in work.transforms)
        for work in (one, other)
    )


def stage_direct(frame: Any, works: Sequence[SlotWork], slots: Slots) -> list[SlotReport]:
    """Run the slots as Spark tasks, for one flow or for several that can share; give back what each staged."""
    work = works[0]
    cut = next((i for i, t in enumerate(work.transforms) if isinstance(t, Dedupe)), None)
    tasks = frame.sparkSession.sparkContext.parallelize(list(enumerate(slots)), len(slots))
    if len(works) > 1:
        shared: list[SlotReport] = tasks.map(lambda task: share_slot(works, *task)).collect()
        return shared
    if cut is None or len(slots) == 1:
        reports: list[SlotReport] = tasks.map(lambda task: run_slot(work, *task)).collect()
        return reports
    count = len(slots)
    exchanged = tasks.flatMap(lambda task: _send(work, cut, count, *task)).partitionBy(count, _as_is)
    received: list[SlotReport] = exchanged.mapPartitionsWithIndex(_receiver(work, cut, count)).collect()
    return received


def run_slot(work: SlotWork, slot: int, ranges: Sequence[OffsetRange]) -> SlotReport:
    """In a task: one slot of one flow."""
    with reporting(slot) as report, outlet_of(work, slot) as out, sides_of(work, slot) as sides:
        refused = RefusedRows(report, [(work, sides, out)])
        rows = transformed(decoded(work, ranges, sides, report, refused.settle), work.transforms, report)
        stage_rows(rows, out, report)
        refused.finish()
        report.finish(sides, out)
    return report


def share_slot(works: Sequence[SlotWork], slot: int, ranges: Sequence[OffsetRange]) -> SlotReport:
    """In a task: one slot of several flows that read the same records."""
    with reporting(slot) as report, ExitStack() as stages:
        ends = [(w, stages.enter_context(outlet_of(w, slot)), stages.enter_context(sides_of(w, slot))) for w in works]
        refused = RefusedRows(report, [(work, sides, out) for work, out, sides in ends])
        # What stays out of one route may be in another: each takes its own part.
        whole = replace(works[0], route="")
        for batch in decoded(whole, ranges, ends[0][2], report, refused.settle):
            for work, out, _ in ends:
                mine = work.excluded.rows(batch, work.route)
                stage_rows(transformed([mine], work.transforms, report), out, report)
                report.refused_on(work.route)
        refused.finish()
        for _, out, sides in ends:
            report.finish(sides, out)
    return report


def _send(
    work: SlotWork, cut: int, count: int, slot: int, ranges: Sequence[OffsetRange]
) -> Iterator[tuple[int, bytes]]:
    """Read one slot up to the dedupe and give its rows out by key, with the slot's report at the end."""
    with reporting(slot) as report, sides_of(work, slot) as sides:
        dedupe = work.transforms[cut]
        assert isinstance(dedupe, Dedupe)
        refused = RefusedRows(report, [(work, sides, None)])
        read = decoded(work, ranges, sides, report, refused.settle)
        rows = joined(list(transformed(read, work.transforms[:cut], report)))
        if rows is not None:
            with report.timed("transform"):
                rows = dedupe.apply(rows).good
                buckets = dedupe.buckets(rows, count)
                for bucket in range(count):
                    mine = rows.filter(pa.compute.equal(buckets, bucket))
                    if mine.num_rows:
                        yield bucket, _to_ipc(mine)
        refused.finish()
        report.finish(sides)
    yield slot, pickle.dumps(report)


def _receiver(
    work: SlotWork, cut: int, count: int
) -> Callable[[int, Iterable[tuple[int, bytes]]], Iterator[SlotReport]]:
    def receive(bucket: int, items: Iterable[tuple[int, bytes]]) -> Iterator[SlotReport]:
        side = count + bucket
        with reporting(side) as report, outlet_of(work, bucket) as out, sides_of(work, side) as sides:
            blocks = []
            for _, item in items:
                if item.startswith(_IPC):
                    blocks.append(_from_ipc(item))
                else:
                    yield pickle.loads(item)
            refused = RefusedRows(report, [(work, sides, out)])
            stage_rows(transformed(blocks, work.transforms[cut:], report), out, report)
            refused.finish()
            report.finish(sides, out)
        yield report

    return receive


_IPC = b"ARROW1"


def _as_is(bucket: int) -> int:
    return bucket


def _to_ipc(rows: pa.RecordBatch) -> bytes:
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_file(buffer, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(buffer.getvalue())


def _from_ipc(block: bytes) -> pa.RecordBatch:
    return pa.ipc.open_file(pa.py_buffer(block)).get_batch(0)

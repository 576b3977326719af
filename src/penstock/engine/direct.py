"""The direct lane: Spark schedules the slots, the rows stay in Arrow from Kafka to the staged file.

A dedupe must see all rows of a key, which may be in several slots. Rows are then exchanged by key, once for each
dedupe, as Arrow IPC blocks through Spark's shuffle; Spark never looks inside them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from penstock.engine.slot import joined, slot_run, transformed
from penstock.engine.work import SlotReport, SlotWork
from penstock.model import OffsetRange
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
    work, count = works[0], len(slots)
    cuts = [i for i, t in enumerate(work.transforms) if isinstance(t, Dedupe)]
    tasks = frame.sparkSession.sparkContext.parallelize(list(enumerate(slots)), count)
    if len(works) > 1:
        shared: list[SlotReport] = tasks.map(lambda task: share_slot(works, *task)).collect()
        return shared
    if not cuts or count == 1:
        reports: list[SlotReport] = tasks.map(lambda task: run_slot(work, *task)).collect()
        return reports
    exchanged = tasks.flatMap(lambda task: _send(work, cuts[0], count, *task)).partitionBy(count, _as_is)
    for number, (cut, following) in enumerate(pairwise(cuts), 1):
        forward = _forwarder(work, cut, following, count, number * count)
        exchanged = exchanged.mapPartitionsWithIndex(forward).partitionBy(count, _as_is)
    receive = _receiver(work, cuts[-1], len(cuts) * count)
    received: list[SlotReport] = exchanged.mapPartitionsWithIndex(receive).collect()
    return received


def run_slot(work: SlotWork, slot: int, ranges: Sequence[OffsetRange]) -> SlotReport:
    """In a task: one slot of one flow."""
    with slot_run([work], slot, slot) as run:
        run.stage(transformed(run.decoded(ranges), work.transforms, run.report))
    return run.report


def share_slot(works: Sequence[SlotWork], slot: int, ranges: Sequence[OffsetRange]) -> SlotReport:
    """In a task: one slot of several flows that read the same records."""
    with slot_run(works, slot, slot) as run:
        # What stays out of one route may be in another: each takes its own part.
        for batch in run.decoded(ranges, replace(works[0], route="")):
            run.share(batch)
    return run.report


def _send(
    work: SlotWork, cut: int, count: int, slot: int, ranges: Sequence[OffsetRange]
) -> Iterator[tuple[int, bytes]]:
    """Read one slot up to the dedupe and give its rows out by key, with the slot's report at the end."""
    with slot_run([work], slot) as run:
        rows = transformed(run.decoded(ranges), work.transforms[:cut], run.report)
        yield from _by_key(work, cut, count, rows, run.report)
    yield slot, pickle.dumps(run.report)


def _forwarder(
    work: SlotWork, cut: int, following: int, count: int, first_side: int
) -> Callable[[int, Iterable[tuple[int, bytes]]], Iterator[tuple[int, bytes]]]:
    """Take the rows of some keys from one dedupe up to the next one, and give them out by the keys of that."""

    def forward(bucket: int, items: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        with slot_run([work], first_side + bucket) as run:
            blocks, reports = _sorted_out(items)
            yield from ((bucket, one) for one in reports)
            rows = transformed(blocks, work.transforms[cut:following], run.report)
            yield from _by_key(work, following, count, rows, run.report)
        yield bucket, pickle.dumps(run.report)

    return forward


def _receiver(
    work: SlotWork, cut: int, first_side: int
) -> Callable[[int, Iterable[tuple[int, bytes]]], Iterator[SlotReport]]:
    """Take the rows of some keys from the last dedupe on, and stage them."""

    def receive(bucket: int, items: Iterable[tuple[int, bytes]]) -> Iterator[SlotReport]:
        with slot_run([work], first_side + bucket, bucket) as run:
            blocks, reports = _sorted_out(items)
            yield from map(pickle.loads, reports)
            run.stage(transformed(blocks, work.transforms[cut:], run.report))
        yield run.report

    return receive


def _by_key(
    work: SlotWork, cut: int, count: int, batches: Iterable[pa.RecordBatch], report: SlotReport
) -> Iterator[tuple[int, bytes]]:
    """The newest row of each key, for the slot that sees all rows of the key."""
    dedupe = work.transforms[cut]
    assert isinstance(dedupe, Dedupe)
    rows = joined(list(batches))
    if rows is None:
        return
    with report.timed("transform"):
        rows = dedupe.apply(rows).good
        buckets = dedupe.buckets(rows, count)
        for bucket in range(count):
            mine = rows.filter(pa.compute.equal(buckets, bucket))
            if mine.num_rows:
                yield bucket, _to_ipc(mine)


def _sorted_out(items: Iterable[tuple[int, bytes]]) -> tuple[list[pa.RecordBatch], list[bytes]]:
    """What a slot receives: rows, and the reports of the slots that sent them, still packed."""
    blocks, reports = [], []
    for _, item in items:
        if item.startswith(_IPC):
            blocks.append(_from_ipc(item))
        else:
            reports.append(item)
    return blocks, reports


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

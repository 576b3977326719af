"""How the cost of a commit grows with the commits that the table has: ten thousand small batches, one after another.

Straight through the sinks, as a run calls them for every batch: does the table hold it, stage it, commit it. No Spark
and no broker are in the way, so what grows is the table's. Where a table is looked after, Spark does it between two.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow as pa
from growth import Curve, Point

from penstock.contracts import Sink
from penstock.model import COORDINATES, COORDINATES_FIELD, BatchToken, OffsetRange, SlotAttempt
from penstock.sinks.commit import commit
from penstock.sinks.delta import DeltaSink
from penstock.sinks.iceberg import IcebergCatalog, IcebergSink
from penstock.sinks.maintenance import NoLock
from penstock.sinks.parquet import ParquetSink
from penstock.spark.session import start_session, stop_session
from penstock.spark.sql import SparkSql

PARTITIONS = 20
_ROWS_EACH = 10
_MARKS = (100, 300, 1_000, 3_000, 10_000)
_AROUND = 100
"""Commits of which each figure is the mean: among them are those that write a checkpoint of the log."""
_TEND_EVERY = 100
_KEEP = timedelta(seconds=1)
_PATIENCE = 120.0
_LONGEST_SECONDS = 2_700.0
_SCHEMA = pa.schema([pa.field("order_id", pa.int64()), pa.field("note", pa.string()), COORDINATES_FIELD])
Say = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """A sink whose table grows."""

    name: str
    make: Callable[[Path], Sink]
    tended: bool = False
    """Whether files are joined and old snapshots removed on the way, as `maintenance` does."""
    most: int = 10_000
    """Commits at most."""


TARGETS = (
    Target("delta", lambda folder: DeltaSink("orders", "out", str(folder / "delta"))),
    Target("iceberg, with maintenance", lambda folder: _iceberg(folder / "tended"), tended=True),
    Target("iceberg", lambda folder: _iceberg(folder / "left"), most=1_000),
    Target("parquet", lambda folder: ParquetSink("orders", "out", str(folder / "files"))),
)


def _iceberg(warehouse: Path) -> IcebergSink:
    return IcebergSink("orders", "out", "shop.orders", str(warehouse), catalog=IcebergCatalog())


def run_commits(folder: Path, commits: int, say: Say) -> list[Curve]:
    """Commit so many batches to each target."""
    curves = []
    for target in TARGETS:
        sink = target.make(folder)
        with _care_of(sink, folder) if target.tended else nullcontext(_nothing) as tend:
            curves.append(_grow(target, sink, folder, tend, commits, say))
    return curves


def _nothing() -> None:
    """No care at all."""


@contextmanager
def _care_of(sink: Any, folder: Path) -> Iterator[Callable[[], None]]:
    """Compaction and expiry as in a run, with a Spark of their own."""
    session = start_session("care", {"spark.sql.shuffle.partitions": "2"}, tables=True, log=folder / "care.log")
    try:
        engine, care = SparkSql(session), sink.maintenance()
        care.use(engine, engine.interrupt)

        def tend() -> None:
            care.compact(NoLock(), time.monotonic() + _PATIENCE)
            care.clean(_KEEP, NoLock(), time.monotonic() + _PATIENCE)

        yield tend
    finally:
        stop_session(session)


def _grow(target: Target, sink: Any, folder: Path, tend: Callable[[], None], commits: int, say: Say) -> Curve:
    """Before each mark a hundred commits by turns with the first hundred of a new table: the machine's moods cancel."""
    sink.prepare(_SCHEMA)
    points: list[Point] = []
    began, done = time.monotonic(), 0
    batches = _batches()
    for mark in (mark for mark in _MARKS if mark <= min(commits, target.most)):
        while done < mark - _AROUND:
            _land(sink, *next(batches))
            done += 1
            if done % _TEND_EVERY == 0:
                tend()
            if time.monotonic() - began > _LONGEST_SECONDS:
                say(f"commits: {target.name}: {done:,} commits are all that {_LONGEST_SECONDS:g} s allow")
                return _curve(target, points)
        new: Any = target.make(folder / f"new-{target.name}-{mark}")
        new.prepare(_SCHEMA)
        here, there = [], []
        for first in itertools.islice(_batches(), _AROUND):
            here.append(_land(sink, *next(batches)))
            there.append(_land(new, *first))
        done = mark
        points.append(Point(mark, mean(here) / mean(there)))
        say(
            f"commits: {target.name}: {mark:,} commits, {1000 * mean(here):.1f} ms each, "
            f"{1000 * mean(there):.1f} ms in a new table, {points[-1].cost:.2f} times"
        )
        tend()
    return _curve(target, points)


def _curve(target: Target, points: list[Point]) -> Curve:
    return Curve("commits", target.name, "commits in the table", "times a commit to a new table", points)


def _land(sink: Any, token: BatchToken, rows: pa.RecordBatch) -> float:
    """The seconds of one batch."""
    began = time.perf_counter()
    stage = sink.stage(token, SlotAttempt(0, "0"), _SCHEMA)
    stage.write(rows)
    commit(sink, token, [stage.finish()])
    return time.perf_counter() - began


def _batches() -> Iterator[tuple[BatchToken, pa.RecordBatch]]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for number in itertools.count():
        start, end = number * _ROWS_EACH, (number + 1) * _ROWS_EACH
        ranges = tuple(OffsetRange("orders", partition, start, end) for partition in range(PARTITIONS))
        rows = [
            {
                "order_id": offset * PARTITIONS + partition,
                "note": f"note {offset}",
                COORDINATES: {"topic": "orders", "partition": partition, "offset": offset, "timestamp": at},
            }
            for partition in range(PARTITIONS)
            for offset in range(start, end)
        ]
        yield BatchToken("orders", "5f0c7f3e-0000", number, ranges), pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)

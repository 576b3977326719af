"""How the cost of a commit grows with the commits that the table has: ten thousand small batches, one after another.

Straight through the sinks, as a run calls them for every batch: does the table hold it, stage it, commit it. No Spark
and no broker are in the way, so what grows is the table's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow as pa
from growth import Curve, Point

from penstock.contracts import Sink
from penstock.model import COORDINATES, COORDINATES_FIELD, BatchToken, OffsetRange, SlotAttempt
from penstock.sinks.delta import DeltaSink
from penstock.sinks.iceberg import IcebergCatalog, IcebergSink
from penstock.sinks.parquet import ParquetSink

MOST = 1.3
"""How much longer the last commit may take than the hundredth."""
PARTITIONS = 20
_ROWS_EACH = 10
_MARKS = (100, 300, 1_000, 3_000, 10_000)
_AROUND = 100
"""Commits of which each figure is the mean: among them are those that write a checkpoint of the log."""
_TEND_EVERY = 100
_KEEP = timedelta(seconds=10)
_PATIENCE = 120.0
_LONGEST_SECONDS = 900.0
_SCHEMA = pa.schema([pa.field("order_id", pa.int64()), pa.field("note", pa.string()), COORDINATES_FIELD])
Say = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """A sink whose table grows."""

    name: str
    make: Callable[[Path], Sink]
    tended: bool = False
    """Whether old snapshots are removed on the way, as `maintenance` does."""
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


class _OwnTurn:
    """Nobody else wants the table."""

    def taken(self, deadline: float) -> AbstractContextManager[bool]:
        return nullcontext(True)

    def wanted(self) -> bool:
        return False


def run_commits(folder: Path, commits: int, say: Say) -> list[Curve]:
    """Commit so many batches to each target."""
    return [_grow(target, folder, commits, say) for target in TARGETS]


def _grow(target: Target, folder: Path, commits: int, say: Say) -> Curve:
    sink: Any = target.make(folder)
    sink.prepare(_SCHEMA)
    took: list[float] = []
    started = time.monotonic()
    for token, rows in _batches(min(commits, target.most)):
        began = time.perf_counter()
        assert not sink.holds(token)
        stage = sink.stage(token, SlotAttempt(0, "0"), _SCHEMA)
        stage.write(rows)
        sink.commit(token, [stage.finish()])
        took.append(time.perf_counter() - began)
        if target.tended and len(took) % _TEND_EVERY == 0:
            care = sink.maintenance()
            care.clean(_KEEP, _OwnTurn(), time.monotonic() + _PATIENCE)
        if time.monotonic() - started > _LONGEST_SECONDS:
            say(f"commits: {target.name}: {len(took):,} commits are all that {_LONGEST_SECONDS:g} s allow")
            break
        if len(took) in _MARKS:
            say(f"commits: {target.name}: {len(took):,} commits, {1000 * mean(took[-_AROUND:]):.1f} ms each")
    marks = sorted({*(mark for mark in _MARKS if mark <= len(took)), len(took)})
    points = [Point(mark, mean(took[mark - _AROUND : mark])) for mark in marks]
    return Curve("commits", target.name, "commits in the table", "seconds a commit", points)


def _batches(count: int) -> Iterator[tuple[BatchToken, pa.RecordBatch]]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(count):
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

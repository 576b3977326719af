"""What a replay reads: the offset ranges between two points, and what of them the log no longer has.

The timestamps of their first and last records say when they were written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow.compute as pc

from penstock.checkpoint import Offsets, SparkCheckpoint
from penstock.contracts import Reader
from penstock.errors import MissingError
from penstock.kafka import LogBounds
from penstock.model import OffsetRange, TopicPartition
from penstock.ops.points import Point

_PEEKED = 20
"""So many offsets are looked at for a record's time: some of them may be holes."""


def first_times(reader: Reader, ranges: Sequence[OffsetRange]) -> dict[TopicPartition, datetime]:
    """When the first record of each range was written."""
    found: dict[TopicPartition, tuple[int, datetime]] = {}
    for rows in reader.read(_heads(ranges)):
        columns = (rows.column(name).to_pylist() for name in ("topic", "partition", "offset", "timestamp"))
        for topic, partition, offset, time in zip(*columns, strict=True):
            at = TopicPartition(topic, partition)
            if time is not None and (at not in found or offset < found[at][0]):
                found[at] = (offset, time)
    return {at: time for at, (_, time) in found.items()}


def times_of(reader: Reader, ranges: Sequence[OffsetRange]) -> tuple[datetime, datetime] | None:
    """About when the first and the last of the records were written."""
    tails = [replace(one, start=max(one.start, one.end - _PEEKED)) for one in ranges]
    found = [
        time.as_py()
        for ends in (_heads(ranges), tails)
        for rows in reader.read(ends)
        for time in pc.min_max(rows.column("timestamp")).values()
    ]
    known = [time for time in found if time is not None]
    return (min(known), max(known)) if known else None


def _heads(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    return [replace(one, end=min(one.end, one.start + _PEEKED)) for one in ranges]


Bounds = Mapping[TopicPartition, LogBounds]


@dataclass(frozen=True)
class Missing:
    """Records that were asked for and have expired. Without a start nobody can say how many."""

    at: TopicPartition
    start: int | None
    end: int
    reason: str


def choose(asked: Iterable[set[TopicPartition]], bounds: Bounds) -> list[TopicPartition]:
    """The partitions that every option which names some has named."""
    chosen = set(bounds)
    for named in asked:
        unknown = sorted(named - set(bounds))
        if unknown:
            raise MissingError(
                "PARTITION_MISSING",
                f"the source has no {', '.join(map(str, unknown[:8]))}",
                context={"partitions": ", ".join(str(at) for at in sorted(bounds)[:8])},
            )
        chosen &= named
    return sorted(chosen)


def position_of(checkpoint: SparkCheckpoint) -> Offsets | None:
    """Up to where the live run has committed: it never reads what lies before again. None where it never began."""
    done = checkpoint.last_committed()
    if done is not None:
        return checkpoint.ends(done)
    return checkpoint.starts(0) if checkpoint.last_begun() is not None else checkpoint.initial()


def lost_before(
    point: Point, starts: Offsets, ends: Offsets, log: Bounds, first_times: Mapping[TopicPartition, datetime]
) -> list[Missing]:
    """Which of the records asked for have expired. For a time only the first record left can tell."""
    found = []
    for at, start in starts.items():
        begins = log[at].start
        if point.offsets and start < begins:
            found.append(Missing(at, start, min(begins, ends[at]), f"the log begins at {begins}"))
        first = first_times.get(at)
        if point.time is not None and start == begins > 0 and first is not None and first > point.time:
            found.append(Missing(at, None, begins, f"the oldest record left, {begins}, is of {first.isoformat()}"))
    return found


def between(starts: Offsets, ends: Offsets, log: Bounds) -> list[OffsetRange]:
    """What the log has of the ranges, those without an offset left out."""
    found = []
    for at, start in sorted(starts.items()):
        low, high = max(start, log[at].start), min(ends[at], log[at].end)
        if low < high:
            found.append(OffsetRange(at.topic, at.partition, low, high))
    return found

"""What a replay reads: points in the log as people name them, and the offset ranges between two of them.

Text enters, with what the broker and the live checkpoint say; ranges leave, and what the log no longer has. When their
records were written is told by their first and last ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import pyarrow.compute as pc

from penstock.checkpoint import Offsets, SparkCheckpoint
from penstock.contracts import Reader
from penstock.errors import MissingError
from penstock.kafka import Cluster, LogBounds
from penstock.model import OffsetRange, TopicPartition

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
_NAMED = re.compile(r"(?:(?P<topic>[A-Za-z0-9._-]+):)?(?P<partition>\d+)(?:=(?P<offset>\d+))?")
_EXAMPLES = "write a time such as 2026-01-31T08:00:00Z, earliest, latest, committed, or orders:0=1500,orders:1=20"


@dataclass(frozen=True)
class Point:
    """A place in every partition: a word, a time, or an offset for each partition that is named."""

    word: str | None = None
    time: datetime | None = None
    offsets: Offsets = field(default_factory=dict)


@dataclass(frozen=True)
class Missing:
    """Records that were asked for and have expired. Without a start nobody can say how many."""

    at: TopicPartition
    start: int | None
    end: int
    reason: str


def parse_point(option: str, text: str, topics: Iterable[str]) -> Point:
    """The value of `--from` or `--to`."""
    words = {"--from": ("earliest",), "--to": ("latest", "committed")}[option]
    if text in words:
        return Point(word=text)
    if "=" in text:
        found = {at: offset for at, offset in _named(option, text, topics) if offset is not None}
        if len(found) == len(text.split(",")):
            return Point(offsets=found)
        raise _unreadable(option, text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise _unreadable(option, text) from None
    if time.tzinfo is None:
        raise _unreadable(option, text, f"the time has no zone: write {text}Z, or an offset such as +02:00")
    return Point(time=time)


def parse_partitions(text: str, topics: Iterable[str]) -> set[TopicPartition]:
    """The value of `--partitions`: `0,3` or `orders:0,orders:3`."""
    return {at for at, _ in _named("--partitions", text, topics)}


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


def resolve(
    point: Point, partitions: Iterable[TopicPartition], cluster: Cluster, log: Bounds, live: Offsets
) -> Offsets:
    """The offset that a point stands for in each partition, whether the log has it or not."""
    chosen = list(partitions)
    by_word: dict[str, Callable[[TopicPartition], int]] = {
        "earliest": lambda at: log[at].start,
        "latest": lambda at: log[at].end,
        "committed": lambda at: live.get(at, log[at].start),
    }
    if point.word is not None:
        return {at: by_word[point.word](at) for at in chosen}
    if point.time is not None:
        found = cluster.offsets_at(chosen, point.time)
        return {at: found[at] if found.get(at, -1) >= 0 else log[at].end for at in chosen}
    return {at: point.offsets[at] for at in chosen}


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


def _named(option: str, text: str, topics: Iterable[str]) -> list[tuple[TopicPartition, int | None]]:
    known, found = sorted(set(topics)), []
    for part in text.split(","):
        match = _NAMED.fullmatch(part.strip())
        topic = (match["topic"] or (known[0] if len(known) == 1 else None)) if match is not None else None
        if match is None or topic is None:
            reason = f'"{part.strip()}" names no topic, and there are several' if match is not None else None
            raise _unreadable(option, text, reason)
        offset = int(match["offset"]) if match["offset"] is not None else None
        found.append((TopicPartition(topic, int(match["partition"])), offset))
    return found


def _unreadable(option: str, text: str, reason: str | None = None) -> MissingError:
    hint = "write 0,3 or orders:0,orders:3" if option == "--partitions" else _EXAMPLES
    return MissingError(
        "REPLAY_RANGE_UNREADABLE", f"{option} cannot be read: {reason or text}", context={"given": text}, hint=hint
    )

"""Parses points in the log, for every option that takes one: a word, a time, or offsets.

Text becomes a `Point`; with the log bounds of the brokers, an offset for each partition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from penstock.checkpoint import Offsets
from penstock.errors import MissingError
from penstock.kafka import Cluster, LogBounds
from penstock.model import TopicPartition

_NAMED = re.compile(r"(?:(?P<topic>[A-Za-z0-9._-]+):)?(?P<partition>\d+)(?:=(?P<offset>\d+))?")
_WORDS = {"--from": ("earliest",), "--to": ("latest", "committed"), "--offsets": ("earliest", "latest")}
_TIME = "2026-01-31T08:00:00Z"
_EXAMPLES = {
    "--partitions": "write 0,3 or orders:0,orders:3",
    "--offsets": f"write earliest, latest, a time such as {_TIME}, or orders:0=1500,orders:1=20",
}
_OF_A_REPLAY = f"write a time such as {_TIME}, earliest, latest, committed, or orders:0=1500,orders:1=20"


@dataclass(frozen=True)
class Point:
    """A place in every partition: a word, a time, or an offset for each partition that is named."""

    word: str | None = None
    time: datetime | None = None
    offsets: Offsets = field(default_factory=dict)


def parse_point(option: str, text: str, topics: Iterable[str]) -> Point:
    """The value of `--from`, `--to` or `--offsets`."""
    if text in _WORDS[option]:
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


def resolve(
    point: Point,
    partitions: Iterable[TopicPartition],
    cluster: Cluster,
    log: Mapping[TopicPartition, LogBounds],
    live: Offsets,
) -> Offsets:
    """The offset of a point in each partition, whether the log has it or not."""
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


def _named(option: str, text: str, topics: Iterable[str]) -> list[tuple[TopicPartition, int | None]]:
    known, found = sorted(set(topics)), []
    for part in text.split(","):
        match = _NAMED.fullmatch(part.strip())
        topic = (match["topic"] or (known[0] if len(known) == 1 else None)) if match is not None else None
        if match is None or topic is None:
            reason = f'"{part.strip()}" has no topic, and there are several' if match is not None else None
            raise _unreadable(option, text, reason)
        offset = int(match["offset"]) if match["offset"] is not None else None
        found.append((TopicPartition(topic, int(match["partition"])), offset))
    return found


def _unreadable(option: str, text: str, reason: str | None = None) -> MissingError:
    return MissingError(
        "OFFSETS_UNREADABLE" if option == "--offsets" else "REPLAY_RANGE_UNREADABLE",
        f"{option} cannot be read: {reason or text}",
        context={"given": text},
        hint=_EXAMPLES.get(option, _OF_A_REPLAY),
    )

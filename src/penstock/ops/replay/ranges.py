"""What a replay reads: the offset ranges between two points, and the expired part of them.

The timestamps of their first and last records say when they were written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow.compute as pc

from penstock.assembly.build import Pipeline
from penstock.assembly.schemas import read_schema_file
from penstock.assembly.user_code import code_behind
from penstock.checkpoint import Offsets, SparkCheckpoint
from penstock.config import PipelineConfig
from penstock.contracts import Reader
from penstock.errors import MissingError, PenstockError
from penstock.kafka import LogBounds
from penstock.model import OffsetRange, TopicPartition
from penstock.ops.points import Point
from penstock.ops.replay.targets import TargetChoice, place_of

_PEEKED = 20
"""This many offsets are read to find a record's time: some of them may be holes."""


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
    """Approximately when the first and last records were written."""
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
    """Requested records that have expired. Without a start their number is unknown."""

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
    """The committed offsets of the live run, which never reads earlier records again. None if it never started."""
    done = checkpoint.last_committed()
    if done is not None:
        return checkpoint.ends(done)
    return checkpoint.starts(0) if checkpoint.last_begun() is not None else checkpoint.initial()


def lost_before(
    point: Point, starts: Offsets, ends: Offsets, log: Bounds, first_times: Mapping[TopicPartition, datetime]
) -> list[Missing]:
    """Which requested records have expired. For a time, the first remaining record shows it."""
    found = []
    for at, start in starts.items():
        begins = log[at].start
        if point.offsets and start < begins:
            found.append(Missing(at, start, min(begins, ends[at]), f"the log begins at {begins}"))
        first = first_times.get(at)
        if point.time is not None and start == begins > 0 and first is not None and first > point.time:
            found.append(
                Missing(at, None, begins, f"the oldest remaining record, {begins}, is from {first.isoformat()}")
            )
    return found


def between(starts: Offsets, ends: Offsets, log: Bounds) -> list[OffsetRange]:
    """The available part of the ranges, without empty ones."""
    found = []
    for at, start in sorted(starts.items()):
        low, high = max(start, log[at].start), min(ends[at], log[at].end)
        if low < high:
            found.append(OffsetRange(at.topic, at.partition, low, high))
    return found


# What makes two replays the same: the pipeline, the ranges, the targets, and the definition of the rows.
#
# The identity is part of the name under which the targets keep a replay's position, so that a target itself says
# whether a replay was done, also where nothing else remembers it.

_OF_SINKS = (
    *("type", "mode", "select", "where", "keys", "when_newer", "delete_when", "insert_only", "coordinates", "evolve"),
    *("key", "value", "headers", "partition"),
)
"""The settings of a sink that determine its rows. Where it writes is in the target."""
_NOT_ROWS = ("registry", "security", "catalog", "refresh", "memory")
"""Connection settings, secrets and performance settings."""
_FILES = ("schema_file", "descriptor_file", "writer_files")


def replay_id(
    live: Pipeline, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str], targets: Sequence[TargetChoice]
) -> str:
    """The same text for the same replay, and another for any other one."""
    config = live.config
    places = {sink.name: place_of(sink) for sink in config.sinks}
    body = {
        "pipeline": config.name,
        "topics": {r.topic: topic_ids.get(r.topic) for r in ranges},
        "ranges": [[r.topic, r.partition, r.start, r.end] for r in sorted(ranges)],
        "targets": [[one.sink, one.way.name, one.into or places[one.sink]] for one in targets],
        "definition": _definition(config, [one.sink for one in targets]),
        "schemas": sorted([str(place), schema.id] for place, schema in live.schemas.items()),
    }
    return digest(json.dumps(body, sort_keys=True, default=str))[:16]


def digest(text: str) -> str:
    """A text as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _definition(config: PipelineConfig, sinks: Sequence[str]) -> dict[str, Any]:
    """What decides the rows of these sinks, without secrets."""
    mine = config.model_dump(mode="json")
    return {
        **{part: _plain(mine[part]) for part in ("decode", "transforms", "routes", "tables")},
        "sinks": [
            {name: _plain(sink[name]) for name in _OF_SINKS if name in sink}
            for sink in mine["sinks"]
            if sink["name"] in sinks
        ],
        "code": sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in code_behind(config)),
    }


def _plain(part: Any) -> Any:
    if isinstance(part, list):
        return [_plain(one) for one in part]
    if not isinstance(part, dict):
        return part
    kept = {name: _plain(value) for name, value in part.items() if name not in _NOT_ROWS}
    return {name: _contents(value) if name in _FILES else value for name, value in kept.items()}


def _contents(files: Any) -> Any:
    """Files by content; by name if they cannot be read here."""
    if isinstance(files, list):
        return [_contents(file) for file in files]
    try:
        return hashlib.sha256(read_schema_file(files)).hexdigest() if isinstance(files, str) else files
    except (OSError, PenstockError):
        return files

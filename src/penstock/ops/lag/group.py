"""The consumer group beside the sinks: where the two differ, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.checkpoint import Offsets
from penstock.checkpoint.findings import usable_ends
from penstock.checkpoint.logs import CheckpointFiles
from penstock.errors import PenstockError
from penstock.kafka import KafkaSettings
from penstock.kafka.groups import GroupOffsets
from penstock.model import TopicPartition

_GROUP_SECONDS = 2.0


@dataclass(frozen=True)
class GroupView:
    """What the brokers say of the group."""

    name: str | None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    error: PenstockError | None = None


def ask_group(settings: KafkaSettings, name: str | None, partitions: Iterable[TopicPartition]) -> GroupView:
    """Look at the group, where the pipeline has one."""
    if name is None:
        return GroupView(None)
    try:
        with closing(GroupOffsets(settings, name, _GROUP_SECONDS)) as group:
            return GroupView(name, group.committed(partitions))
    except PenstockError as error:
        return GroupView(name, error=error)


def group_note(
    group: GroupView,
    committed: Offsets | None,
    files: CheckpointFiles,
    entries: Iterable[Mapping[str, Any]],
    *,
    running: bool,
) -> str | None:
    """Why the group does not say what the sinks say; none where it does. `committed` is None before the first run."""
    if group.name is None:
        return "no consumer group is told how far this is: source.group is false"
    if group.error is not None:
        return f"consumer group {group.name} cannot be asked: {group.error.code} {group.error.line}"
    if committed is None:
        return (
            f"consumer group {group.name} has offsets, and this pipeline has committed none: someone else wrote them, "
            "or its checkpoint is not the one that it had"
            if group.offsets
            else None
        )
    differs = sorted(at for at, offset in committed.items() if group.offsets.get(at) != offset)
    if not differs:
        return None
    if group.offsets:
        places = ", ".join(_sides(at, group.offsets, committed) for at in differs[:3])
        more = f" and {len(differs) - 3} more" if len(differs) > 3 else ""
        told = f"consumer group {group.name} differs from the sinks in {places}{more}: "
    else:
        told = f"consumer group {group.name} has no offsets: "
    return told + (_failure(entries, running=running) or _reason(group.offsets, committed, files, running=running))


def _sides(at: TopicPartition, held: Mapping[TopicPartition, int], committed: Offsets) -> str:
    return f"{at} ({f'{held[at]:,}' if at in held else 'none'}, they have {committed[at]:,})"


def _failure(entries: Iterable[Mapping[str, Any]], *, running: bool) -> str | None:
    """What the last run noted when it failed to commit, unless it has worked since."""
    last: Mapping[str, Any] | None = None
    for entry in entries:
        if entry["event"] in ("started", "group"):
            last = entry
    if last is None or not last.get("error"):
        return None
    when = f"{datetime.fromisoformat(last['at']):%Y-%m-%d %H:%M:%S} UTC"
    return f"{f'committing to it fails since {when}' if running else f'the last run failed at {when}'}: {last['error']}"


def _reason(held: Mapping[TopicPartition, int], committed: Offsets, files: CheckpointFiles, *, running: bool) -> str:
    if not held:
        return "no batch was committed to it yet" if running else "no run committed to it, or Kafka has forgotten them"
    theirs, ours = _batch_at(held, files), _batch_at(committed, files)
    if theirs is None:
        return "its offsets are of no batch in the checkpoint: someone else moved it, or it is of an older run"
    sides = f"it is at batch {theirs}, the sinks at {f'batch {ours}' if ours is not None else 'none'}"
    if any(offset > committed.get(at, offset) for at, offset in held.items()):
        return f"{sides}: a sink was put back, or the checkpoint was"
    return f"{sides}: it follows in a moment" if running else f"{sides}: the last run ended before it was told"


def _batch_at(offsets: Mapping[TopicPartition, int], files: CheckpointFiles) -> int | None:
    """The newest batch that ends where these offsets are."""
    for batch in sorted(files.offsets, reverse=True):
        ends = usable_ends(files, batch)
        if ends and all(offsets[at] == ends[at] for at in offsets.keys() & ends.keys()):
            return batch
    return None

"""A replay on disk: `<checkpoint>-replays/<id>/` with its plan, its progress, and its final result.

The plan is written before the first batch and never changed. A replay without a summary was killed or stopped: the same
request continues it. Whether a replay was done, and how far it came, its targets say: what is here may be missing or of
an earlier life of a target.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.errors import MissingError
from penstock.metrics.history import folder_beside
from penstock.model import OffsetRange, replay_of
from penstock.ops.replay.ranges import digest
from penstock.ops.replay.targets import TargetChoice, Way
from penstock.supervision.job_folder import PLAN, PROGRESS, Ranges, StoredJob

_GATHERED = "gathered"


@dataclass(frozen=True)
class ReplayRequest:
    """The request as written on the command line. The same text is the same request."""

    start: str
    end: str
    partitions: str | None = None
    sinks: tuple[str, ...] = ()
    into: tuple[str, ...] = ()
    accept_missing: bool = field(default=False, compare=False)
    again: bool = field(default=False, compare=False)
    """Whether to write again what the targets already have."""


@dataclass(frozen=True)
class StoredReplay(StoredJob):
    """A replay as its plan has it."""

    END = "summary.json"

    id: str
    query_id: str
    planned_at: str
    request: ReplayRequest
    ranges: Ranges
    batch_offsets: int
    targets: tuple[TargetChoice, ...]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The ids that the topics had when the ranges were chosen."""

    def pipeline(self, live: str) -> str:
        """The name under which the targets keep its position."""
        return replay_of(live, self.id)

    @property
    def sinks(self) -> list[str]:
        """The sinks that it writes to."""
        return [one.sink for one in self.targets]

    @property
    def into(self) -> dict[str, str | None]:
        """For each of them the target that `--into` gave."""
        return {one.sink: one.into for one in self.targets}

    @property
    def at_once(self) -> bool:
        """Whether everything appears in one commit at the end."""
        return any(one.way is Way.REPLACED for one in self.targets)

    @property
    def in_place(self) -> bool:
        """Whether it writes to the pipeline's own targets."""
        return all(one.way is not Way.INTO for one in self.targets)

    def write(self) -> None:
        """Write the plan to disk unless it is there, and forget that it was ever done."""
        if self.finished:
            for name in (self.END, PROGRESS):
                (self.folder / name).unlink(missing_ok=True)
        if not (self.folder / PLAN).exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.write_plan(self.folder)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Note what it did, and remove what was only needed while it ran."""
        self.note_end(summary)
        shutil.rmtree(self.folder / _GATHERED, ignore_errors=True)


def replays_of(checkpoint: str) -> Path:
    """The folder of the replays of a pipeline: next to its checkpoint, not in it."""
    return folder_beside(checkpoint, "replays")


def new_replay(
    checkpoint: str,
    name: str,
    request: ReplayRequest,
    ranges: tuple[OffsetRange, ...],
    batch_offsets: int,
    targets: tuple[TargetChoice, ...],
    topic_ids: Mapping[str, str] | None = None,
) -> StoredReplay:
    """The replay of this id as it is on disk, or as it would be."""
    known = next((one for one in _stored(checkpoint) if one.id == name), None)
    if known is not None:
        return known
    folder, now = replays_of(checkpoint) / name, datetime.now(UTC).isoformat()
    query_id = digest(name)[:32]
    return StoredReplay(folder, name, query_id, now, request, ranges, batch_offsets, targets, topic_ids or {})


def unfinished(checkpoint: str, request: ReplayRequest, targets: tuple[TargetChoice, ...]) -> StoredReplay | None:
    """The newest replay of this very request, into these targets, that was begun and is not done."""
    same = (one for one in _stored(checkpoint) if one.request == request and one.targets == targets)
    return next((one for one in same if not one.finished), None)


def replay_called(checkpoint: str, name: str) -> StoredReplay:
    """The replay with this id. Raises if there is none."""
    there = _stored(checkpoint)
    for one in there:
        if one.id == name:
            return one
    raise MissingError(
        "REPLAY_UNKNOWN",
        f"there is no replay {name}",
        context={
            "looked in": replays_of(checkpoint),
            "not finished": ", ".join(one.id for one in there if not one.finished) or "none",
        },
    )


def _stored(checkpoint: str) -> list[StoredReplay]:
    """The replays that were started, the newest first."""
    return sorted(StoredReplay.all_in(replays_of(checkpoint)), key=lambda one: one.planned_at, reverse=True)

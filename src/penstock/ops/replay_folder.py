"""A replay on disk: `<checkpoint>-replays/<id>/` with its plan, how far it is, and at the end what it did.

The plan is written before the first batch and never changed. A replay without a summary was killed or stopped: the
same request goes on with it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from penstock.checkpoint.whole import put_whole
from penstock.errors import MissingError
from penstock.metrics.history import folder_beside
from penstock.model import OffsetRange
from penstock.ops.replay_targets import TargetChoice, Way

_PLAN, _SUMMARY, _GATHERED = "plan.json", "summary.json", "gathered"


@dataclass(frozen=True)
class ReplayRequest:
    """What was asked for, as it was written on the command line. The same text is the same request."""

    start: str
    end: str
    partitions: str | None = None
    sinks: tuple[str, ...] = ()
    into: tuple[str, ...] = ()
    accept_missing: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class StoredReplay:
    """A replay as its plan has it."""

    id: str
    folder: Path
    query_id: str
    request: ReplayRequest
    ranges: tuple[OffsetRange, ...]
    batch_offsets: int
    targets: tuple[TargetChoice, ...]
    planned_at: str

    @property
    def finished(self) -> bool:
        """Whether it is done."""
        return (self.folder / _SUMMARY).exists()

    def write(self) -> None:
        """Put the plan on disk, whole, unless it is there."""
        if (self.folder / _PLAN).exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        body = {
            "id": self.id,
            "query_id": self.query_id,
            "planned_at": self.planned_at,
            "request": asdict(self.request),
            "ranges": [[r.topic, r.partition, r.start, r.end] for r in self.ranges],
            "batch_offsets": self.batch_offsets,
            "targets": [{"sink": one.sink, "way": one.way.name, "into": one.into} for one in self.targets],
        }
        put_whole(self.folder / _PLAN, json.dumps(body, indent=1).encode())

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Note what it did, and let go what was only needed on the way."""
        body = {"finished_at": datetime.now(UTC).isoformat(), **summary}
        put_whole(self.folder / _SUMMARY, json.dumps(body, indent=1).encode())
        shutil.rmtree(self.folder / _GATHERED, ignore_errors=True)


def replays_of(checkpoint: str) -> Path:
    """Where the replays of a pipeline are: beside its checkpoint, not in it."""
    return folder_beside(checkpoint, "replays")


def new_replay(
    checkpoint: str,
    request: ReplayRequest,
    ranges: tuple[OffsetRange, ...],
    batch_offsets: int,
    targets: tuple[TargetChoice, ...],
) -> StoredReplay:
    """A replay with an id of its own, not on disk yet."""
    now = datetime.now(UTC)
    name = f"{now:%Y%m%d-%H%M%S}-{uuid4().hex[:4]}"
    folder = replays_of(checkpoint) / name
    return StoredReplay(name, folder, str(uuid4()), request, ranges, batch_offsets, targets, now.isoformat())


def unfinished(checkpoint: str, request: ReplayRequest, targets: tuple[TargetChoice, ...]) -> StoredReplay | None:
    """The newest replay of this very request, into these targets, that was begun and is not done."""
    same = (one for one in _stored(checkpoint) if one.request == request and one.targets == targets)
    return next((one for one in same if not one.finished), None)


def replay_called(checkpoint: str, name: str) -> StoredReplay:
    """The replay with this id. Raises where there is none."""
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
    """The replays that were begun, the newest first."""
    return [_read(path) for path in sorted(replays_of(checkpoint).glob(f"*/{_PLAN}"), reverse=True)]


def _read(path: Path) -> StoredReplay:
    body = json.loads(path.read_text())
    asked = body["request"]
    return StoredReplay(
        id=body["id"],
        folder=path.parent,
        query_id=body["query_id"],
        request=ReplayRequest(**{**asked, "sinks": tuple(asked["sinks"]), "into": tuple(asked["into"])}),
        ranges=tuple(OffsetRange(*parts) for parts in body["ranges"]),
        batch_offsets=body["batch_offsets"],
        targets=tuple(TargetChoice(one["sink"], Way[one["way"]], one["into"]) for one in body["targets"]),
        planned_at=body["planned_at"],
    )

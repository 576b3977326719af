"""A run's log of what it did, for other commands: a line of JSON for each batch, decision and restart; small and local.

Written next to the checkpoint while the pipeline runs, read by `lag`, `diagnose`, `simulate` and the dashboard. No
guarantee depends on it: entries that cannot be written are dropped, and so are lines that cannot be read. Each kind of
entry is a class; its fields are the keys of the line.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json

from penstock.metrics.batch import BatchMetrics
from penstock.model import TopicPartition
from penstock.storage import is_local

NAME = ".penstock.history"
Lists = dict[str, list[int | None]]
"""Offsets in entries: for each topic a list by partition number; None for a missing partition."""
_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run's query has started."""

    lane: str | None = None
    partitions: int | None = None
    cores: int | None = None
    """How many tasks run at once."""
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A run has ended."""

    error: str | None = None
    """The code of the error that ended it; none if it was stopped, or had read everything."""


@dataclass(frozen=True, slots=True)
class StateKept:
    """The state kept by stateful steps after a batch, as Spark counts it."""

    batch_id: int
    rows: int
    size_bytes: int
    watermark: str | None = None
    """The watermark of the next batch, RFC 3339."""

    @property
    def watermark_at(self) -> datetime | None:
        """The same as a time."""
        return datetime.fromisoformat(self.watermark) if self.watermark is not None else None


@dataclass(frozen=True, slots=True)
class FlowChanged:
    """The cap of the following batches has changed."""

    batch_id: int | None
    """The batch after which it was decided; none before the first."""
    cap: int
    before: int | None
    reason: str
    """One of `flow.REASONS`."""
    text: str


@dataclass(frozen=True, slots=True)
class AlertNoted:
    """An alert fires, or is resolved."""

    rule: str
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class RetryNoted:
    """A transient fault, which the run retries."""

    code: str
    summary: str = ""
    attempt: int = 1
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Notice:
    """Something worth knowing that stops nothing."""

    text: str


@dataclass(frozen=True, slots=True)
class GroupNoted:
    """Committing to the consumer group failed, or works again."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class LagNoted:
    """Where the logs ended, and how far the sinks were."""

    committed: Lists
    ends: Lists
    total: int = 0
    behind_seconds: float | None = None


Fact = (
    BatchMetrics
    | RunStarted
    | RunEnded
    | StateKept
    | FlowChanged
    | AlertNoted
    | RetryNoted
    | Notice
    | GroupNoted
    | LagNoted
)
_EVENTS: Mapping[str, type[Fact]] = {
    "batch": BatchMetrics,
    "started": RunStarted,
    "ended": RunEnded,
    "state": StateKept,
    "flow": FlowChanged,
    "alert": AlertNoted,
    "retry": RetryNoted,
    "notice": Notice,
    "group": GroupNoted,
    "lag": LagNoted,
}
_NAMES = {kind: name for name, kind in _EVENTS.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: a fact and its time."""

    at: datetime
    fact: Fact


class History:
    """The log, in two files: a full file replaces the older one."""

    def __init__(self, path: Path, most_bytes: int = _MOST_BYTES) -> None:
        self.path = path
        self._most_bytes = most_bytes

    @property
    def older(self) -> Path:
        """The previous file."""
        return self.path.with_name(f"{self.path.name}.1")

    def add(self, fact: Fact) -> None:
        """Write one entry. Never raises."""
        try:
            self._append(_line(fact))
        except (OSError, ValueError, TypeError):
            return

    def read(self, *kinds: type[Fact], since: datetime | None = None) -> list[Entry]:
        """The entries since a time, of these kinds or of all, oldest first."""
        entries = (entry for path in (self.older, self.path) for entry in _entries(path, kinds))
        return [entry for entry in entries if since is None or entry.at >= since]

    def _append(self, line: bytes) -> None:
        # One write to a file opened for appending: lines of two processes do not mix.
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line)
            if os.fstat(handle).st_size >= self._most_bytes:
                self._rotate(handle)
        finally:
            os.close(handle)

    def _rotate(self, handle: int) -> None:
        """Rename the full file, unless another process has done so and there is a new one of this name."""
        fcntl.flock(handle, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), self.path.stat()):
                self.path.replace(self.older)


def history_of(checkpoint: str) -> History:
    """The history of a pipeline: in the folder of its checkpoint, or in the user's state folder if that is remote."""
    if is_local(checkpoint):
        return History(Path(checkpoint.removeprefix("file://")) / NAME)
    return History(_state_home() / "history" / f"{_as_name(checkpoint)}.jsonl")


def folder_beside(checkpoint: str, what: str) -> Path:
    """A local folder next to a checkpoint, or in the user's state folder if the checkpoint is remote."""
    if is_local(checkpoint):
        return Path(f"{checkpoint.removeprefix('file://').rstrip('/')}-{what}")
    return _state_home() / what / _as_name(checkpoint)


def _as_name(checkpoint: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", checkpoint.rstrip("/"))


def _state_home() -> Path:
    """The state folder of the XDG specification: for files that are kept between runs and could be lost."""
    if own := os.environ.get("PENSTOCK_HOME"):
        return Path(own).expanduser().absolute()
    xdg = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".local" / "state") / "penstock"


def parse_entry(line: bytes, kinds: Sequence[type[Fact]] = ()) -> Entry | None:
    """One line as an entry; none if it is malformed, or of another kind."""
    try:
        body = from_json(line)
        if kinds and _EVENTS[body["event"]] not in kinds:
            return None
        return Entry(datetime.fromisoformat(body["at"]).astimezone(UTC), _parser(body["event"]).validate_python(body))
    except (ValueError, TypeError, KeyError):
        return None


@cache
def _parser(event: str) -> TypeAdapter[Fact]:
    return TypeAdapter(_EVENTS[event])


def _line(fact: Fact) -> bytes:
    body: dict[str, Any] = {"at": datetime.now(UTC).isoformat(), "event": _NAMES[type(fact)]}
    if isinstance(fact, BatchMetrics):
        body |= fact.as_json()
    else:
        body |= {field.name: getattr(fact, field.name) for field in fields(fact)}
    return f"{json.dumps(body, separators=(',', ':'))}\n".encode()


def _entries(path: Path, kinds: Sequence[type[Fact]]) -> Iterator[Entry]:
    try:
        with path.open("rb") as lines:
            for line in lines:
                if (entry := parse_entry(line, kinds)) is not None:
                    yield entry
    except OSError:
        return


def in_lists(offsets: Mapping[TopicPartition, int]) -> Lists:
    """Offsets for an entry."""
    found: Lists = {}
    for at, offset in sorted(offsets.items()):
        line = found.setdefault(at.topic, [])
        line.extend([None] * (at.partition - len(line)))
        line.append(offset)
    return found


def from_lists(lists: Mapping[str, Sequence[int | None]]) -> dict[TopicPartition, int]:
    """The offsets of an entry."""
    return {
        TopicPartition(topic, partition): offset
        for topic, line in lists.items()
        for partition, offset in enumerate(line)
        if offset is not None
    }

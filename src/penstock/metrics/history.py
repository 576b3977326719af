"""A run's own log of what it did: a line of JSON for each batch, decision, restart; small, local, for other commands.

Written beside the checkpoint while the pipeline runs, read by `lag`, `diagnose`, `simulate` and the dashboard. It is no
part of any guarantee: what cannot be written is left out, and a line that was cut short is none.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.model import TopicPartition
from penstock.storage import is_local

NAME = ".penstock.history"
Lists = dict[str, list[int | None]]
"""Offsets as entries have them: for each topic a list by partition number; None for one that is not there."""
_MOST_BYTES = 4 << 20


class History:
    """The log in one file, and the one before it: when a file is full it becomes the older one."""

    def __init__(self, path: Path, most_bytes: int = _MOST_BYTES) -> None:
        self.path = path
        self._most_bytes = most_bytes

    @property
    def older(self) -> Path:
        """The file that was full."""
        return self.path.with_name(f"{self.path.name}.1")

    def add(self, event: str, **facts: Any) -> None:
        """The run: write one entry. Never raises."""
        try:
            line = json.dumps({"at": datetime.now(UTC).isoformat(), "event": event, **facts}, separators=(",", ":"))
            self._append(f"{line}\n".encode())
        except (OSError, ValueError, TypeError):
            return

    def read(self, since: datetime | None = None, events: Collection[str] | None = None) -> list[dict[str, Any]]:
        """Others: the entries from a time on, of these kinds, oldest first."""
        found = []
        for entry in (entry for path in (self.older, self.path) for entry in _entries(path)):
            if events is not None and entry["event"] not in events:
                continue
            if since is not None and datetime.fromisoformat(entry["at"]) < since:
                continue
            found.append(entry)
        return found

    def _append(self, line: bytes) -> None:
        # One write to a file that is opened for appending: lines of two processes do not mix.
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line)
            if os.fstat(handle).st_size >= self._most_bytes:
                self._rotate(handle)
        finally:
            os.close(handle)

    def _rotate(self, handle: int) -> None:
        """Rename the full file, unless another process has already done so and the name is that of a new one."""
        fcntl.flock(handle, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), self.path.stat()):
                self.path.replace(self.older)


def history_of(checkpoint: str) -> History:
    """The history of the pipeline with this checkpoint: in its folder, or in the user's own where that is not local."""
    if is_local(checkpoint):
        return History(Path(checkpoint.removeprefix("file://")) / NAME)
    return History(_state_home() / "history" / f"{_as_name(checkpoint)}.jsonl")


def folder_beside(checkpoint: str, what: str) -> Path:
    """A folder for what is kept beside a checkpoint on a local disk: in the user's own where that is not local."""
    if is_local(checkpoint):
        return Path(f"{checkpoint.removeprefix('file://').rstrip('/')}-{what}")
    return _state_home() / what / _as_name(checkpoint)


def _as_name(checkpoint: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", checkpoint.rstrip("/"))


def _state_home() -> Path:
    """By the XDG specification: what is kept between runs and could be lost without harm."""
    if own := os.environ.get("PENSTOCK_HOME"):
        return Path(own).expanduser().absolute()
    xdg = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".local" / "state") / "penstock"


def parse_entry(line: bytes | str) -> dict[str, Any] | None:
    """One line as an entry; none where it is broken."""
    try:
        entry = json.loads(line)
        datetime.fromisoformat(entry["at"])
        return entry if isinstance(entry["event"], str) else None
    except (ValueError, TypeError, KeyError):
        return None


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as lines:
            for line in lines:
                if (entry := parse_entry(line)) is not None:
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

"""A run's history as it grows: what was written since the last look, without reading anything twice."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.metrics.history import Entry, History, parse_entry

_MOST_AT_FIRST = 3 << 20
"""How much of the past is read at the first look: 120 lines about a thousand partitions, or hours of a few."""


class HistoryTail:
    """Follows one history. A file that became the older one is read to its end first."""

    def __init__(self, history: History, most_at_first: int = _MOST_AT_FIRST) -> None:
        self._history = history
        self._most_at_first = most_at_first
        self._file: int | None = None
        self._position = 0
        self.bytes_read = 0

    def read(self) -> list[Entry]:
        """The new entries, oldest first. Nothing is opened where nothing was written."""
        found = _stat(self._history.path)
        if self._file is None:
            return self._first(found) if found is not None or _stat(self._history.older) is not None else []
        lines: list[bytes] = []
        if found is None or found.st_ino != self._file or found.st_size < self._position:
            older = _stat(self._history.older)
            if older is not None and older.st_ino == self._file:
                lines += self._lines(self._history.older, older.st_size)
            self._file, self._position = (found.st_ino if found is not None else 0), 0
        if found is not None and found.st_size > self._position:
            lines += self._lines(self._history.path, found.st_size)
        return _entries(lines)

    def _first(self, found: os.stat_result | None) -> list[Entry]:
        size = found.st_size if found is not None else 0
        older = _stat(self._history.older)
        lines: list[bytes] = []
        if older is not None and size < self._most_at_first:
            self._position = max(0, older.st_size - (self._most_at_first - size))
            lines += self._lines(self._history.older, older.st_size)
        self._file, self._position = (found.st_ino if found is not None else 0), max(0, size - self._most_at_first)
        if size:
            lines += self._lines(self._history.path, size)
        # A line that was begun in the middle is no entry, and falls out.
        return _entries(lines)

    def _lines(self, path: Path, end: int) -> list[bytes]:
        """The whole lines up to an end; a line that is still being written waits for the next look."""
        try:
            with path.open("rb") as file:
                file.seek(self._position)
                body = file.read(end - self._position)
        except OSError:
            return []
        self.bytes_read += len(body)
        whole = body.rfind(b"\n") + 1
        self._position += whole
        return body[:whole].splitlines()


def _entries(lines: list[bytes]) -> list[Entry]:
    return [entry for line in lines if (entry := parse_entry(line)) is not None]


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None

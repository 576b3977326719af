"""When expensive queries run again: never two of a kind at once, and never so often that they cost much."""

from __future__ import annotations

import threading
import time

_SHARE = 30
"""A query that takes a second runs every thirty seconds at most."""


class Schedule:
    """The queries about one thing, by their names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}
        self._began: dict[str, float] = {}
        self._periods: dict[str, float] = {}

    def take(self, name: str, period: float, now: float) -> bool:
        """Whether a query is due now. A caller that gets True runs it, and calls `done`."""
        with self._lock:
            if name in self._began or now < self._due.get(name, 0.0):
                return False
            self._began[name], self._periods[name] = time.monotonic(), period
            return True

    def done(self, name: str) -> None:
        """A query has run."""
        now = time.monotonic()
        with self._lock:
            took = now - self._began.pop(name, now)
            self._due[name] = now + max(self._periods.get(name, 0.0), _SHARE * took)

    def clear(self) -> None:
        """Something has changed: run every query again soon."""
        with self._lock:
            self._due.clear()

"""Kafka consumers between two reads: kept for the next one with the same settings, few of them, each lent to one alone.

A process reads for several pipelines: a worker one after another, the driver some at once. A consumer has threads,
sockets and what it fetched ahead, so those that were not used for longest are closed.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

MOST_IDLE = 8


class IdleConsumers:
    """Lends consumers, and keeps at most `most` that nobody has."""

    def __init__(self, most: int = MOST_IDLE) -> None:
        self._most = most
        self._idle: list[tuple[Hashable, Any]] = []
        self._changing = threading.Lock()
        atexit.register(self.close)

    @contextmanager
    def lent(self, key: Hashable, make: Callable[[], Any]) -> Iterator[Any]:
        """A consumer that nobody else has until it is given back: one that is idle, or a new one."""
        consumer = self._take(key) or make()
        try:
            yield consumer
        finally:
            consumer.unassign()
            self._keep(key, consumer)

    def close(self) -> None:
        """Close those that are idle."""
        with self._changing:
            idle, self._idle = self._idle, []
        for _, consumer in idle:
            consumer.close()

    def __len__(self) -> int:
        return len(self._idle)

    def _take(self, key: Hashable) -> Any | None:
        with self._changing:
            for at in reversed(range(len(self._idle))):
                if self._idle[at][0] == key:
                    return self._idle.pop(at)[1]
        return None

    def _keep(self, key: Hashable, consumer: Any) -> None:
        with self._changing:
            self._idle.append((key, consumer))
            over, self._idle = self._idle[: -self._most], self._idle[-self._most :]
        for _, old in over:
            old.close()

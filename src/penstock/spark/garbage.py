"""What the JVM of a session spends on its garbage."""

from __future__ import annotations

import time
from typing import Any

_ASK_SECONDS = 5.0


class Garbage:
    """Seconds since it was asked last, when called. Short batches do not ask each time: it goes to the JVM and back."""

    def __init__(self, session: Any) -> None:
        management = session.sparkContext._gateway.jvm.java.lang.management.ManagementFactory
        self._collectors = list(management.getGarbageCollectorMXBeans())
        self._before, self._asked_at = self._total(), time.monotonic()

    def __call__(self) -> float:
        """Ask, or leave it to the next batch."""
        if time.monotonic() - self._asked_at < _ASK_SECONDS:
            return 0.0
        self._asked_at = time.monotonic()
        total, before = self._total(), self._before
        self._before = total
        return total - before

    def _total(self) -> float:
        return float(sum(max(0, one.getCollectionTime()) for one in self._collectors)) / 1000

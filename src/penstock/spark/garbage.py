"""What the JVM of a session spends on its garbage."""

from __future__ import annotations

from typing import Any


class Garbage:
    """Seconds since it was called last, when called. One question a batch: each goes to the JVM and back."""

    def __init__(self, session: Any) -> None:
        management = session.sparkContext._gateway.jvm.java.lang.management.ManagementFactory
        self._collectors = list(management.getGarbageCollectorMXBeans())
        self._before = self._total()

    def __call__(self) -> float:
        """Ask."""
        total, before = self._total(), self._before
        self._before = total
        return total - before

    def _total(self) -> float:
        return float(sum(max(0, one.getCollectionTime()) for one in self._collectors)) / 1000

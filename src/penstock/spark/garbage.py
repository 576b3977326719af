"""What the JVM of a session spends on its garbage."""

from __future__ import annotations

from typing import Any


class Garbage:
    """Seconds so far, when called."""

    def __init__(self, session: Any) -> None:
        management = session.sparkContext._gateway.jvm.java.lang.management.ManagementFactory
        self._collectors = list(management.getGarbageCollectorMXBeans())

    def __call__(self) -> float:
        """Ask."""
        return float(sum(max(0, one.getCollectionTime()) for one in self._collectors)) / 1000

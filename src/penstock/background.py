"""Periodic work next to a run: heartbeats, leases, lag, alerts, metrics, backups.

Each has its own thread because each waits for another system: unavailable brokers must not delay a lease renewal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Repeating:
    """Calls `work` in a daemon thread, first after `wait` seconds.

    `work` returns the seconds until the next call, or None to stop, and must not raise. With `once_more`, it is called
    a last time on close.
    """

    def __init__(self, name: str, work: Callable[[], float | None], wait: float, *, once_more: bool = False) -> None:
        self._work, self._once_more = work, once_more
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(wait,), name=f"penstock-{name}", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Stop, and wait at most this long for a call in progress."""
        self._over.set()
        self._thread.join(seconds)

    def _run(self, wait: float) -> None:
        due: float | None = wait
        while not self._over.wait(due):
            due = self._work()
            if due is None:
                return
        if self._once_more:
            self._work()

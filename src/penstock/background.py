"""Work that a thread of its own repeats next to a run: heartbeats, leases, lag, alerts, metrics, backups.

Each waits for another system, so each has a thread: unavailable brokers must not keep a lease from being renewed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Repeating:
    """Calls `work` in a daemon thread, first after `wait` seconds and then after as many as it returned; None ends it.

    With `once_more` a last time when it is closed. `work` must not raise.
    """

    def __init__(self, name: str, work: Callable[[], float | None], wait: float, *, once_more: bool = False) -> None:
        self._work, self._once_more = work, once_more
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(wait,), name=f"penstock-{name}", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """End it, and wait so long for what it is doing."""
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

"""How long a run retries: transient errors are retried with exponential back-off, up to a limit."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from penstock.engine.listener import Listener, Retrying
from penstock.errors import TransientError, back_off

_LONGEST_DELAY = 30.0


class StopRequest:
    """Asks a run to stop after the current batch. Safe to call from a signal handler and from other threads."""

    def __init__(self) -> None:
        self._asked = False
        # Not an Event: a signal handler that sets one may meet the lock that its own thread holds in `wait`.
        self._wake: SimpleQueue[None] = SimpleQueue()

    def ask(self) -> None:
        """Request the stop."""
        self._asked = True
        self._wake.put(None)

    def asked(self, within: float = 0.0) -> bool:
        """Whether a stop was requested, waiting at most `within` seconds for one."""
        if within and not self._asked:
            with suppress(Empty):
                self._wake.get(timeout=within)
        return self._asked


@dataclass
class Retries:
    """Counts the retries of one error. Raises it when it has lasted longer than `give_up_after` seconds."""

    give_up_after: float
    listener: Listener
    stop: StopRequest
    _since: float | None = None
    _attempt: int = 0

    def wait(self, error: TransientError, *, progress: bool) -> bool:
        """Wait before the next retry; returns false if a stop was requested."""
        now = time.monotonic()
        if progress or self._since is None:
            self._since, self._attempt = now, 0
        if now - self._since > self.give_up_after:
            raise error
        self._attempt += 1
        delay = back_off(self._attempt, 1.0, _LONGEST_DELAY)
        self.listener(Retrying(error, self._attempt, delay))
        return not self.stop.asked(delay)

"""Finds an open batch without progress.

Progress is: a phase entered, a task finished, a batch handed over or done, CPU use of the run, a task on another
machine. A long batch always shows some of these. A batch without any is reported after `WARN_SECONDS` and abandoned
after `--stalled-after`.

Between Spark's offsets and the call into this process nothing takes time: a batch that stays there for
`HANDOVER_SECONDS` is lost. Its query can be restarted; a batch that hangs in this process blocks its thread, and only a
new process can continue with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.engine.listener import Listener, Notice, Stalled
from penstock.errors import TransientError
from penstock.spark.executors import Work

LOOK_SECONDS = 10.0
WARN_SECONDS = 600.0
HANDOVER_SECONDS = 300.0


@dataclass
class Watchdog:
    """Watches the batches of one query. `progressed` may be called from any thread, `look` from one."""

    stalled_after: float
    """Seconds; 0 only warns."""
    listener: Listener
    work: Callable[[], Work]
    """Polled every few seconds while a batch runs in this process."""
    clock: Callable[[], float] = time.monotonic
    _steps: int = 0
    _seen: tuple[int, int, bool] | None = None
    _since: float = field(init=False)
    _next: float = field(init=False)
    _warned: bool = False

    def __post_init__(self) -> None:
        self._since = self._next = self.clock()

    def progressed(self) -> None:
        """A batch has made progress."""
        self._steps += 1

    def look(self, is_open: Callable[[], bool], in_hand: bool, phase: str | None) -> None:
        """Check whether a batch is open, and has been handed to this process. Raises if it is abandoned."""
        now = self.clock()
        if now < self._next:
            return
        self._next = now + LOOK_SECONDS
        work = self.work() if in_hand else Work(0, False)
        seen = (self._steps, work.finished_tasks, in_hand)
        if not is_open() or work.busy or seen != self._seen:
            self._since, self._seen = now, seen
            if self._warned:
                self._warned = False
                self.listener(Stalled(None))
            return
        quiet = now - self._since
        limit = self.stalled_after if in_hand else min(self.stalled_after or HANDOVER_SECONDS, HANDOVER_SECONDS)
        running = f"in the phase {phase}" if phase else "running in this process"
        where = running if in_hand else "waiting in Spark"
        text = f"the open batch has shown no progress for {quiet:.0f} s: it is {where}"
        if not self._warned and quiet >= min(WARN_SECONDS, limit / 2 if limit else WARN_SECONDS):
            self._warned = True
            self.listener(Stalled(text))
            self.listener(Notice(text))
        if limit and quiet >= limit:
            raise TransientError(
                "BATCH_STALLED",
                text,
                context={"limit": f"{limit:g} s"},
                hint="nothing is lost: the batch is retried with the same offsets\n"
                "if batches really take that long without progress: --stalled-after SECONDS",
            )

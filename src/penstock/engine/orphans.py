"""Files staged by discarded attempts: removed when the batch is committed, and again when the attempts have certainly
ended.

A killed task runs on for a moment, and may stage after the first pass. Errors never stop a batch: leftover files only
cost space.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.contracts import Sink
from penstock.errors import PenstockError
from penstock.model import BatchToken, Manifest
from penstock.spark.executors import Attempts

_AGAIN_AFTER_SECONDS = 10.0


@dataclass(frozen=True)
class _Left:
    token: BatchToken
    manifests: Sequence[tuple[Sink, Sequence[Manifest]]]
    stages: frozenset[int]
    since: float


@dataclass
class Orphans:
    """On the driver: clears up after the batches of one query."""

    attempts: Attempts
    clock: Callable[[], float] = time.monotonic
    _left: list[_Left] = field(default_factory=list)

    def after(
        self, token: BatchToken, manifests: Sequence[tuple[Sink, Sequence[Manifest]]], stages: Collection[int]
    ) -> bool:
        """After a batch is committed: clean up lost attempts. True if there were any."""
        self.sweep()
        if not self.attempts.were_others(stages):
            return False
        left = _Left(token, manifests, frozenset(stages), self.clock())
        self._remove(left)
        self._left.append(left)
        return True

    def sweep(self) -> None:
        """Clear up again after batches that ended some time ago."""
        now = self.clock()
        due = [one for one in self._left if now - one.since > _AGAIN_AFTER_SECONDS]
        self._left = [one for one in self._left if one not in due]
        for one in due:
            self._remove(one)

    def finish(self) -> None:
        """At the end of the query: wait for what still runs, and clear up all."""
        deadline = self.clock() + _AGAIN_AFTER_SECONDS
        for one in self._left:
            while self.attempts.still_run(one.stages) and self.clock() < deadline:
                time.sleep(0.2)
            self._remove(one)
        self._left = []

    def _remove(self, left: _Left) -> None:
        for sink, manifests in left.manifests:
            with suppress(PenstockError, OSError):
                sink.discard(left.token, manifests)

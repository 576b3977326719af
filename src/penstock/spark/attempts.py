"""Tasks that ran more than once: retried, speculated, or lost with their executor. What they staged is nobody's.

Spark gives of a task's results only the one that counts. That there were others is in its own books, which are a moment
behind.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from penstock.spark.placement import Placement

_PATIENCE_MILLISECONDS = 2000


class Attempts:
    """On the driver: whether stages had more attempts than those that count."""

    def __init__(self, session: Any) -> None:
        context = session.sparkContext
        self._scala = context._jsc.sc()
        # Without a cluster a task has one attempt, unless the master says otherwise: local[4,3].
        self._possible = not Placement(context.master).is_local or "," in context.master

    def were_others(self, stages: Collection[int]) -> bool:
        """Whether an attempt of these stages failed, was killed, or still runs beside the one that counts."""
        return self._possible and any(
            stage.numFailedTasks() or stage.numKilledTasks() or stage.numActiveTasks() or stage.attemptId()
            for stage in self._told(stages)
        )

    def still_run(self, stages: Collection[int]) -> bool:
        """Whether an attempt that does not count any more still runs."""
        return self._possible and any(stage.numActiveTasks() for stage in self._told(stages))

    def _told(self, stages: Collection[int]) -> list[Any]:
        from py4j.protocol import Py4JError

        found = []
        try:
            if stages:
                self._scala.listenerBus().waitUntilEmpty(_PATIENCE_MILLISECONDS)
            for stage in stages:
                found.append(self._scala.statusStore().lastStageAttempt(stage))
        except Py4JError:
            # Its books are behind, or it has forgotten the stage: what is left over is found at the next start.
            return found
        return found

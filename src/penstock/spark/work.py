"""Whether Spark works for a query: tasks that have finished, and processors in use.

A long task reports nothing until it ends. On this machine its processes use the processor, and one that hangs does
not. For executors elsewhere that is not known: a task that runs there counts as work.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from penstock.spark.placement import Placement

_BUSY = 0.1
"""The share of one core above which processes are at work; those of an idle run use about a fiftieth."""


@dataclass(frozen=True)
class Work:
    """What was seen at one look."""

    finished_tasks: int
    busy: bool
    """Whether something works, as far as can be told from outside."""


class QueryWork:
    """On the driver: looks at the work for one query. What cannot be asked does not count as work."""

    def __init__(self, session: Any, query: Any) -> None:
        self._context = session.sparkContext
        self._group = str(query.runId)
        self._local = Placement(self._context.master).is_local
        self._used: tuple[float, float] | None = None

    def look(self) -> Work:
        """Look now."""
        finished = running = 0
        with suppress(Exception):
            tracker = self._context.statusTracker()
            for job in map(tracker.getJobInfo, tracker.getJobIdsForGroup(self._group)):
                for stage in map(tracker.getStageInfo, job.stageIds if job is not None else ()):
                    finished += stage.numCompletedTasks if stage is not None else 0
                    running += stage.numActiveTasks if stage is not None else 0
        return Work(finished, self._processor_in_use() or (running > 0 and not self._local))

    def _processor_in_use(self) -> bool:
        """Whether this process and those below it, or beside it under spark-submit, have worked since the last look."""
        before, now = self._used, (time.monotonic(), _processor_seconds())
        self._used = now
        # Processes that ended take their seconds with them: that too is work.
        return before is not None and abs(now[1] - before[1]) > _BUSY * (now[0] - before[0])


def _processor_seconds() -> float:
    own = psutil.Process()
    root = own
    with suppress(psutil.Error):
        parent = psutil.Process(os.getppid())
        root = parent if parent.name() == "java" else own
    total = 0.0
    with suppress(psutil.Error):
        for process in {own, root, *root.children(recursive=True)}:
            with suppress(psutil.Error):
                used = process.cpu_times()
                total += used.user + used.system
    return total

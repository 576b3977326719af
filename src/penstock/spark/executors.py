"""The executors of a session: their number of cores, whether they have started, whether they are busy, and which tasks
ran more than once.

The number of slots follows the cores from batch to batch. With dynamic allocation Spark requests executors for waiting
tasks: so a batch gets more slots than there are cores, up to the allowed maximum, or the cluster would never grow.

For tasks that ran more than once (retried, speculated, or lost with their executor) Spark returns only the results that
count. Other attempts appear in its status store, with a short delay. A long task reports nothing until it ends: on this
machine its processes use CPU time unless they hang; a task on another machine counts as busy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from penstock.errors import MissingError
from penstock.spark.internals import scala_context
from penstock.spark.placement import Placement

_PATIENCE_MILLISECONDS = 2000


class Attempts:
    """On the driver: whether stages had attempts whose results do not count."""

    def __init__(self, session: Any) -> None:
        context = session.sparkContext
        self._scala = scala_context(context)
        # Without a cluster a task has one attempt, unless the master says otherwise: local[4,3].
        self._possible = not Placement(context.master).is_local or "," in context.master

    def were_others(self, stages: Collection[int]) -> bool:
        """Whether an attempt of these stages failed, was killed, or still runs although another one counts."""
        return self._possible and any(
            stage.numFailedTasks() or stage.numKilledTasks() or stage.numActiveTasks() or stage.attemptId()
            for stage in self._stages(stages)
        )

    def still_run(self, stages: Collection[int]) -> bool:
        """Whether an attempt that no longer counts still runs."""
        return self._possible and any(stage.numActiveTasks() for stage in self._stages(stages))

    def _stages(self, stages: Collection[int]) -> list[Any]:
        from py4j.protocol import Py4JError

        found = []
        try:
            if stages:
                self._scala.listenerBus().waitUntilEmpty(_PATIENCE_MILLISECONDS)
            for stage in stages:
                found.append(self._scala.statusStore().lastStageAttempt(stage))
        except Py4JError:
            # The store lags, or no longer has the stage: leftovers are found at the next start.
            return found
        return found


_BUSY = 0.1
"""The share of one core above which processes are busy; those of an idle run use about a fiftieth."""


@dataclass(frozen=True)
class Work:
    """The activity at one check."""

    finished_tasks: int
    busy: bool
    """Whether anything is busy, as far as can be seen from outside."""


class QueryWork:
    """On the driver: the activity of one query. What cannot be determined counts as idle."""

    def __init__(self, session: Any, query: Any) -> None:
        self._context = session.sparkContext
        self._group = str(query.runId)
        self._local = Placement(self._context.master).is_local
        self._used: tuple[float, float] | None = None

    def look(self) -> Work:
        """Check now."""
        from py4j.protocol import Py4JError

        finished = running = 0
        # A context that was stopped meanwhile has no figures.
        with suppress(Py4JError, OSError, AttributeError):
            tracker = self._context.statusTracker()
            for job in map(tracker.getJobInfo, tracker.getJobIdsForGroup(self._group)):
                for stage in map(tracker.getStageInfo, job.stageIds if job is not None else ()):
                    finished += stage.numCompletedTasks if stage is not None else 0
                    running += stage.numActiveTasks if stage is not None else 0
        return Work(finished, self._uses_cpu() or (running > 0 and not self._local))

    def _uses_cpu(self) -> bool:
        """Whether this process and its children, or siblings under spark-submit, used CPU time since the last check."""
        before, now = self._used, (time.monotonic(), _cpu_seconds())
        self._used = now
        # Processes that ended take their seconds with them: a decrease also means activity.
        return before is not None and abs(now[1] - before[1]) > _BUSY * (now[0] - before[0])


def _cpu_seconds() -> float:
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


_FIRST_SECONDS = 120.0
_NOTICE_AFTER_SECONDS = 8.0
_ALL_SECONDS = 30.0
_SETTLED_SECONDS = 2.0
_GROWTH = 2


class Executors:
    """On the driver: how many tasks the session can run at once."""

    def __init__(self, session: Any) -> None:
        self._context = session.sparkContext
        conf = self._context._conf
        self._fixed = conf.get("spark.default.parallelism", None)
        self._dynamic = conf.get("spark.dynamicAllocation.enabled", "false") == "true"
        self._each = int(conf.get("spark.executor.cores", "1"))
        self._most = conf.get("spark.dynamicAllocation.maxExecutors", None)
        self._local: int | None = None
        if Placement(self._context.master).is_local:
            self._local = int(self._context.defaultParallelism)
        self._wanted = None if self._dynamic else _wanted(conf, self._each)

    def slots(self) -> int:
        """The maximum number of slots of the next batch."""
        if self._local is not None:
            return self._local
        if self._fixed is not None:
            return int(self._context.defaultParallelism)
        cores = max(1, self.cores())
        if not self._dynamic:
            return cores
        most = int(self._most) * self._each if self._most is not None else cores * _GROWTH
        return max(1, min(most, max(cores * _GROWTH, self._each)))

    def cores(self) -> int:
        """How many tasks could run at this moment."""
        if self._local is not None:
            return self._local
        scala = scala_context(self._context)
        # `defaultParallelism` is two if there is one core or none, and ignores `spark.task.cpus`.
        return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))

    def wait(self, tell: Callable[[str], None] = lambda text: None, patience: float = _FIRST_SECONDS) -> None:
        """Wait for the executors: until all requested ones have started, or no more do. Raises if none starts."""
        began, noticed, seen, since = time.monotonic(), False, 0, time.monotonic()
        while self._local is None:
            cores, now = self._cores_or_raise(), time.monotonic()
            if cores != seen:
                seen, since = cores, now
            enough = cores >= self._wanted if self._wanted is not None else now - since > _SETTLED_SECONDS
            if cores and (enough or self._dynamic or now - began > _ALL_SECONDS):
                return
            if not cores and now - began > patience:
                raise self._none_started(patience)
            if not noticed and now - began > _NOTICE_AFTER_SECONDS:
                noticed = True
                tell(f"waiting for executors from {self._context.master}: {cores} cores so far")
            time.sleep(0.05)

    def _cores_or_raise(self) -> int:
        from py4j.protocol import Py4JError

        try:
            return self.cores()
        except (Py4JError, AttributeError, OSError) as error:
            # A master ends an application whose executors keep failing, and the JVM ends with it.
            raise MissingError(
                "EXECUTORS_MISSING",
                "waiting for executors: the cluster has ended the application",
                context={"master": self._context.master},
                hint="its executors did not start, or ended again and again: their logs are on the master's web page",
            ) from error

    def _none_started(self, patience: float) -> MissingError:
        conf = self._context._conf
        asked = {
            name: conf.get(f"spark.executor.{name}", default) for name, default in (("cores", "all"), ("memory", "1g"))
        }
        return MissingError(
            "EXECUTORS_MISSING",
            f"waiting for executors: none started within {patience:g} seconds",
            context={
                "master": self._context.master,
                "requested": f"executors with {asked['cores']} cores and {asked['memory']} of memory",
            },
            hint="does the cluster have these resources, and are they free?  see its web page\n"
            "a worker must also be able to connect to the driver: spark.driver.host, spark.driver.port",
        )


def _wanted(conf: Any, each: int) -> int | None:
    """The number of requested cores, if the settings have it."""
    per_task = int(conf.get("spark.task.cpus", "1"))
    if (cores := conf.get("spark.cores.max", None)) is not None:
        return max(1, int(cores) // per_task)
    if (count := conf.get("spark.executor.instances", None)) is not None:
        return max(1, int(count) * (each // per_task))
    return None

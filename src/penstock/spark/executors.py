"""The executors of a session: how many cores they have now, and whether they have come.

Slots follow these cores from batch to batch. With dynamic allocation Spark asks for executors by the tasks that wait:
a batch is then given more slots than there are cores, up to the most that are allowed, or the cluster would never grow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from penstock.errors import MissingError
from penstock.spark.placement import Placement

_FIRST_SECONDS = 120.0
_TELL_AFTER_SECONDS = 8.0
_ALL_SECONDS = 30.0
_SETTLED_SECONDS = 2.0
_GROWTH = 2


class Executors:
    """On the driver: what the session can run at once."""

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
        """How many slots the next batch may have."""
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
        scala = self._context._jsc.sc()
        # `defaultParallelism` says two where there is one core or none, and knows nothing of `spark.task.cpus`.
        return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))

    def wait(self, tell: Callable[[str], None] = lambda text: None, patience: float = _FIRST_SECONDS) -> None:
        """Until the executors are there: as many as were asked for, or no more come. Raises where none comes."""
        began, told, seen, since = time.monotonic(), False, 0, time.monotonic()
        while self._local is None:
            cores, now = self._counted(), time.monotonic()
            if cores != seen:
                seen, since = cores, now
            enough = cores >= self._wanted if self._wanted is not None else now - since > _SETTLED_SECONDS
            if cores and (enough or self._dynamic or now - began > _ALL_SECONDS):
                return
            if not cores and now - began > patience:
                raise self._none(patience)
            if not told and now - began > _TELL_AFTER_SECONDS:
                told = True
                tell(f"waiting for executors from {self._context.master}: {cores} cores so far")
            time.sleep(0.05)

    def _counted(self) -> int:
        from py4j.protocol import Py4JError

        try:
            return self.cores()
        except (Py4JError, AttributeError, OSError) as error:
            # A master ends an application whose executors fail one after another; the JVM goes with it.
            raise MissingError(
                "EXECUTORS_MISSING",
                "waiting for executors: the cluster has ended the application",
                context={"master": self._context.master},
                hint="its executors did not start, or ended again and again: their logs are on the master's web page",
            ) from error

    def _none(self, patience: float) -> MissingError:
        conf = self._context._conf
        asked = {
            name: conf.get(f"spark.executor.{name}", default) for name, default in (("cores", "all"), ("memory", "1g"))
        }
        return MissingError(
            "EXECUTORS_MISSING",
            f"waiting for executors: none came within {patience:g} seconds",
            context={
                "master": self._context.master,
                "asked for": f"executors with {asked['cores']} cores and {asked['memory']} of memory",
            },
            hint="does the cluster have that to give, and is it free?  its web page tells\n"
            "a worker must also be able to connect to the driver: spark.driver.host, spark.driver.port",
        )


def _wanted(conf: Any, each: int) -> int | None:
    """The cores that were asked for, where the settings say."""
    per_task = int(conf.get("spark.task.cpus", "1"))
    if (cores := conf.get("spark.cores.max", None)) is not None:
        return max(1, int(cores) // per_task)
    if (count := conf.get("spark.executor.instances", None)) is not None:
        return max(1, int(count) * (each // per_task))
    return None

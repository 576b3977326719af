"""`penstock`, with traps: dies at a named point, as `traps` says.

The points on the driver: `offsets` (offsets/N is written, nothing read yet), `staged` (everything staged, no sink
committed but those that do so in their tasks), `checked` (a sink's position was read and the batch is next, nothing is
written), `write` (somewhere inside a sink's commit), `between` (one sink has committed, the next has not), `committed`
(every sink has committed, commits/N is not written). `write@pg` and `between@pg` are those of the sink pg alone. The
points in a task are in `task_traps`.

`PENSTOCK_TEST_BEGUN` names a file to make when the first batch begins. With `PENSTOCK_TEST_UNLOCKED` the lock on the
checkpoint is not taken, as between two machines.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash import traps

from penstock.checkpoint.lock import CheckpointLock
from penstock.cli.main import main
from penstock.engine.batch import Batch

_run_module: Any = importlib.import_module("penstock.supervision.run")
_starting_module: Any = importlib.import_module("penstock.assembly.starting")
_TRAPS = ("tests.crash.task_traps", "tests.crash.attempt_traps")
_committing: list[str] = []


def trap_batches() -> None:
    batch: Any = Batch
    run, commit = batch.run, batch._commit
    trapped: set[type] = set()

    def run_batch(self: Batch) -> Any:
        Path(os.environ[traps.BEGUN]).touch()
        traps.reach("offsets")
        return run(self)

    def commit_batch(self: Batch) -> None:
        for kind in {type(target) for target in (*self.sinks, *self.committer.targets.quarantines)} - trapped:
            trapped.add(kind)
            trap_commits(kind)
        traps.reach("staged")
        commit(self)
        traps.reach("committed")

    batch.run, batch._commit = run_batch, commit_batch


def trap_commits(kind: Any) -> None:
    original: Callable[..., None] = kind.land

    def land(self: Any, *args: Any) -> None:
        if _committing:
            # The quarantine commits through another sink: that is one commit.
            return original(self, *args)
        traps.reach("checked", self.name)
        _committing.append(self.name)
        try:
            with traps.within("write", self.name):
                original(self, *args)
        finally:
            _committing.clear()
        return traps.reach("between", self.name)

    kind.land = land


def trap_tasks() -> None:
    """Have the tasks' traps imported in Spark's workers."""
    start: Callable[..., Any] = _starting_module.start_session

    def start_session(name: str, settings: Any, *, preload: Any = (), **kwargs: Any) -> Any:
        # On a cluster the workers are no children of this process, and are told by Spark.
        passed = {k: v for k, v in os.environ.items() if k.startswith(traps.PREFIX) or k == "PYTHONPATH"}
        told = {f"spark.executorEnv.{name}": value for name, value in passed.items()}
        if traps.MASTER in os.environ:
            told |= {"spark.master": os.environ[traps.MASTER], "spark.cores.max": "2"}
        return start(name, {**told, **settings}, preload=(*preload, *_TRAPS), **kwargs)

    _starting_module.start_session = start_session


def unlocked(path: str, storage: Any, tell: Any) -> contextlib.AbstractContextManager[CheckpointLock]:
    """The lock of a checkpoint, given to everybody."""
    return contextlib.nullcontext(CheckpointLock())


if __name__ == "__main__":
    os.environ[traps.DRIVER_PID] = str(os.getpid())
    trap_batches()
    trap_tasks()
    if "PENSTOCK_TEST_UNLOCKED" in os.environ:
        _run_module.checkpoint_lock = unlocked
    main()

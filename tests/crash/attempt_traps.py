"""What can happen to an attempt of a slot on a cluster. Importing this arms it; Spark's workers preload it.

`PENSTOCK_TEST_ATTEMPTS=KIND:TIMES` says what, and how often in all; `PENSTOCK_TEST_ATTEMPTS_IN` is a folder where the
attempts leave word for each other. Of each batch slot 0 is trapped, in its first attempt, when everything is staged:

`raise`: it raises. `worker`: its Python process is killed. `executor`: its executor is killed, with all that it holds.
`twice`: it waits until a second attempt has staged as well, and then both report.
`late`: it waits until the second attempt has won, and goes on staging.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from pyspark import TaskContext

from penstock.engine.outlet import Outlet
from penstock.model import BAD_SCHEMA, Manifest

_KIND, _, _TIMES = os.environ.get("PENSTOCK_TEST_ATTEMPTS", "none:0").partition(":")
_FOLDER = Path(os.environ.get("PENSTOCK_TEST_ATTEMPTS_IN", "."))
_PATIENCE_SECONDS = 20.0
_outlet: Any = Outlet
_finish: Callable[[Outlet], list[Manifest]] = Outlet.finish
_begin: Callable[..., None] = Outlet.__init__


def _noting(self: Outlet, inlets: Any, token: Any, slot: int, schema: Any, *more: Any, **named: Any) -> None:
    # The quarantine is staged beside the rows: it is these that count.
    self.trapped = (token.batch_id, slot) if inlets and schema != BAD_SCHEMA else None  # type: ignore[attr-defined]
    _begin(self, inlets, token, slot, schema, *more, **named)


def _trapped(self: Outlet, **options: Any) -> list[Manifest]:
    task, at = TaskContext.get(), getattr(self, "trapped", None)
    if task is None or at is None or at[1] != 0 or _KIND == "none":
        return _finish(self, **options)
    word = _FOLDER / f"{_KIND}-{at[0]}"
    if task.attemptNumber() > 0:
        manifests = _finish(self, **options)
        word.with_suffix(".second").touch()
        if _KIND == "twice":
            time.sleep(0.3)
        return manifests
    if not _due(word):
        return _finish(self, **options)
    if _KIND == "late":
        _await(word.with_suffix(".second"))
    manifests = _finish(self, **options)
    word.with_suffix(".first").touch()
    _spring(word)
    return manifests


def _due(word: Path) -> bool:
    """Whether this batch is one of the first so many; each counts once, whichever stage of it comes first."""
    done = {path.stem for path in _FOLDER.glob(f"{_KIND}-*.due")}
    if word.stem in done or len(done) >= int(_TIMES):
        return False
    try:
        word.with_suffix(".due").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _spring(word: Path) -> None:
    match _KIND:
        case "raise":
            raise RuntimeError("an attempt that fails when all is staged")
        case "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        case "executor":
            # This is a worker of the daemon, which is a child of the executor.
            executor = psutil.Process(os.getppid()).parent()
            assert executor is not None
            executor.kill()
            time.sleep(_PATIENCE_SECONDS)
        case "twice":
            _await(word.with_suffix(".second"))


def _await(word: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not word.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


_outlet.__init__, _outlet.finish = _noting, _trapped

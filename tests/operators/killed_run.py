"""Runs without a JVM that `tests/crash/traps` kill: python killed_run.py FILE POINT...

Each is a process of its own, forked once everything is imported, before there is any client or thread. The points are
those of `tests/crash/driver` and `tests/crash/task_traps`; tasks run in the driver here. Prints how each run ended.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

from tests.operators.local import run_local

from penstock.config import load


def run_and_die(file: Path, point: str) -> None:
    os.environ["PENSTOCK_TEST_KILL"] = point
    os.environ["PENSTOCK_TEST_DRIVER"] = str(os.getpid())
    os.environ["PENSTOCK_TEST_BEGUN"] = str(file.with_suffix(".begun"))
    # The traps are set as they are imported.
    importlib.import_module("tests.crash.driver").trap_batches()
    importlib.import_module("tests.crash.task_traps")
    run_local(load(file))


def exit_code(file: Path, point: str) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        run_and_die(file, point)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


if __name__ == "__main__":
    print([exit_code(Path(sys.argv[1]), point) for point in sys.argv[2:]])

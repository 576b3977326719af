"""The process of a run is killed by SIGKILL after the commit of each sink, and another one goes on.

Each of the five sinks is in the pipeline, so some have the open batch and some do not. `tests/crash` does the same on
Spark, many times over.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.operators.history import SINKS, World
from tests.operators.local import run_local
from tests.operators.test_operators import new_world

KILLED_RUN = Path(__file__).with_name("killed_run.py")
POINTS = ("finished:4", *(f"between@{sink}:1" for sink in SINKS))

__all__ = ["new_world"]


def kill_runs(file: Path) -> None:
    """Run in a process of its own until it dies, once for each point."""
    path = os.pathsep.join([str(KILLED_RUN.parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(KILLED_RUN), str(file), *POINTS],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip() == str([-signal.SIGKILL.value] * len(POINTS)), done.stdout + done.stderr[-4000:]


def test_process_killed_after_the_commit_of_each_sink_leaves_each_record_once_in_every_target(
    new_world: Callable[[], World],
) -> None:
    """The second of three batches, which has a bad record: six processes die with it, each one commit later.

    Slots commit first. The one that meets the bad record waits for the quarantine, and is the fourth to be committed.
    """
    world = new_world()
    world.do(("send", "4", "0"))
    world.do(("send", "3", "1"))
    world.do(("send", "4", "0"))
    kill_runs(world.main.file)
    run_local(world.main.load())
    assert world.check() == []
    assert {sink: sum(world.targets.ids(sink).values()) for sink in SINKS} == dict.fromkeys(SINKS, 11)
    assert sum(world.quarantined()["delta"].values()) == 1

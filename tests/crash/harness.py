"""Starts the driver as a user would, kills it, and starts it again."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.crash.traps import RUN, run_processes

DRIVER = Path(__file__).with_name("driver.py")


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.05)


@dataclass
class Crashes:
    """One pipeline file, run and killed again and again."""

    file: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    within: Sequence[str] = ()
    """What the command begins with, where the driver has a host of its own."""
    seed: int = 7
    kills: list[str] = field(default_factory=list)
    _id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def kill(self, point: str, number: int) -> None:
        """One kill: at a named point, or at `random`. Every other one takes the JVM and the tasks along."""
        whom = "all" if number % 2 else "driver"
        if point == "random":
            self._kill_after(random.Random(self.seed + number).uniform(0, 3), whom)
        else:
            # A later visit of a point to die inside of: by then it is known how long that takes.
            self.kill_at(point, visit=2 if point.startswith(("write", "finishing")) else 1 + number % 2, whom=whom)

    def kill_at(self, point: str, visit: int = 1, whom: str = "driver") -> None:
        """Run until the named point kills the driver."""
        status = self.start(kill=f"{point}:{visit}", whom=whom).wait(180)
        assert status != 0, f"the run ended before kill {len(self.kills) + 1} ({point}): give it more batches"
        assert status == -9, f"the driver ended with {status} instead of by SIGKILL, see {self.log}"
        self.kills.append(point)

    def finish(self) -> float:
        """Run to the end; the seconds that it took."""
        began = time.monotonic()
        assert self.start().wait(600) == 0, self.log.read_text()[-4000:]
        return time.monotonic() - began

    def start(self, kill: str = "none:1", whom: str = "driver", **settings: str) -> subprocess.Popen[bytes]:
        """Start a run; `settings` are those of the traps, `signal="STOP"` for one."""
        self.begun.unlink(missing_ok=True)
        told = {"KILL": kill, "WHOM": whom, "BEGUN": str(self.begun), **{k.upper(): v for k, v in settings.items()}}
        traps = {f"PENSTOCK_TEST_{name}": value for name, value in told.items()}
        places = {RUN: self._id, "PYTHONPATH": str(DRIVER.parents[2])}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [
                    *self.within,
                    sys.executable,
                    str(DRIVER),
                    "run",
                    str(self.file),
                    "--available-now",
                    "--log-format",
                    "text",
                ],
                env={**os.environ, **self.environment, **traps, **places},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def log(self) -> Path:
        return self.file.with_suffix(".log")

    @property
    def begun(self) -> Path:
        """There, once the first batch of a run has begun."""
        return self.file.with_suffix(".begun")

    def batches(self) -> int:
        """How many batches Spark has committed."""
        return self._newest_commit() + 1

    def await_batches(self, more: int, driver: subprocess.Popen[bytes]) -> None:
        """Until so many more batches are committed, or the driver has ended."""
        goal = self.batches() + more
        wait_for(lambda: self.batches() >= goal or driver.poll() is not None, 240, f"{more} more batches")

    def forget_last_commit(self) -> None:
        """Leave the checkpoint as a driver does that died after all sinks had committed."""
        newest = self._newest_commit()
        (self._commits / str(newest)).unlink()
        (self._commits / f".{newest}.crc").unlink(missing_ok=True)

    @property
    def _commits(self) -> Path:
        return self.file.parent / "checkpoints/orders/commits"

    def _newest_commit(self) -> int:
        found = self._commits.iterdir() if self._commits.exists() else ()
        return max((int(entry.name) for entry in found if entry.name.isdigit()), default=-1)

    def processes(self) -> list[psutil.Process]:
        """Whatever the runs have started and is still there."""
        return list(run_processes(self._id))

    def end_all(self) -> None:
        """End what is left, after a test that went wrong."""
        left = self.processes()
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10)

    def kill_now(self, driver: subprocess.Popen[bytes], whom: str) -> None:
        """Kill a driver from outside, wherever it is."""
        family = psutil.Process(driver.pid).children(recursive=True) if whom == "all" else []
        driver.kill()
        for process in family:
            if process.is_running():
                process.kill()
        driver.wait()
        self.kills.append("random")

    def _kill_after(self, seconds: float, whom: str) -> None:
        """Kill the driver from outside, a while after its first batch began."""
        driver = self.start()
        wait_for(lambda: self.begun.exists() or driver.poll() is not None, 120, "the first batch")
        try:
            status = driver.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill_now(driver, whom)
            return
        raise AssertionError(f"the run ended with {status} before kill {len(self.kills) + 1}, see {self.log}")

"""The driver of the soak, kept up as a service manager would: one that ends is started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.crash.harness import wait_for

DRIVER = Path(__file__).with_name("driver.py")
_RESTART_SECONDS = 1.0
_START_SECONDS = 60


@dataclass(frozen=True)
class End:
    """That the driver ended: when, and how. A negative status is a signal's number."""

    at: float
    status: int
    meant: bool
    """Whether a fault of the soak was that it ends."""


@dataclass
class Supervisor:
    """`penstock run` of some pipeline files, in one driver."""

    files: Sequence[Path]
    log: Path
    environment: Mapping[str, str]
    ends: list[End] = field(default_factory=list)
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _meant: bool = False
    _closing: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._start()
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._thread.start()

    def kill(self, *, whole: bool) -> None:
        """SIGKILL: the driver alone, whose JVM then ends by itself, or both at once."""
        self._meant = True
        for process in self.processes() if whole else self.processes()[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def processes(self) -> list[psutil.Process]:
        """The driver and its JVM, as far as they are there."""
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            if self._process is not None and self._process.poll() is None:
                found = [psutil.Process(self._process.pid)]
                found += [child for child in found[0].children() if "java" in child.name()]
        return found

    def await_whole(self) -> list[psutil.Process]:
        """The driver and its JVM, once both are there."""
        wait_for(lambda: len(self.processes()) == 2, _START_SECONDS, "the driver and its JVM")
        return self.processes()

    def stop(self, seconds: float) -> int | None:
        """SIGTERM, and wait; the exit status, none where it had to be killed."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(30)
        if self._process is None:
            return None
        family = self.processes()
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.wait()
            return None

    def _start(self) -> None:
        self._meant = False
        self.starts += 1
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(DRIVER), "run", *map(str, self.files), "--log-format", "text"],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _supervise(self) -> None:
        while not self._closing.wait(0.1):
            assert self._process is not None
            status = self._process.poll()
            if status is not None:
                self.ends.append(End(time.monotonic(), status, self._meant))
                if not self._closing.wait(_RESTART_SECONDS):
                    self._start()

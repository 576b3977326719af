"""A child process and all that it starts: measured, stopped in order, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

_STOP_SECONDS = 60


class BenchError(Exception):
    """The bench cannot go on, or a job gave a wrong result."""


class Process:
    """One child in a session of its own, so that a Ctrl-C reaches the bench alone. Its output goes to files."""

    def __init__(
        self, name: str, command: Sequence[str | Path], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._output, self._errors = folder / f"{name}.out", folder / f"{name}.err"
        around = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, **(environment or {})}
        around.pop("SPARK_HOME", None)
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.started_at = time.time()
            self._child = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=folder,
                env=around,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its number."""
        return self._child.pid

    def wait(self, seconds: float) -> float:
        """Wait for its end; give the seconds that it ran."""
        try:
            status = self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{self.name} is not done after {seconds:.0f} s\n{self._last_words()}") from None
        took = time.time() - self.started_at
        if status != 0:
            raise BenchError(f"{self.name} ended with status {status}\n{self._last_words()}")
        return took

    def check_running(self) -> None:
        """Raise if it has ended."""
        if self._child.poll() is not None:
            raise BenchError(f"{self.name} ended with status {self._child.returncode}\n{self._last_words()}")

    def stop(self) -> None:
        """Ask it to end in order, and wait."""
        self._child.send_signal(signal.SIGTERM)
        self.wait(_STOP_SECONDS)

    def lines(self) -> list[str]:
        """What it has printed so far, in whole lines."""
        return self._output.read_text(encoding="utf-8").splitlines()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child.poll() is not None:
            return
        # The tree is taken down before the root is ended: orphans cannot be found by their parent.
        root = psutil.Process(self._child.pid)
        tree = [*root.children(recursive=True), root]
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._child.wait()
        psutil.wait_procs(tree, timeout=10)

    def _last_words(self) -> str:
        said = self._errors.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line[:300]}" for line in said[-15:])

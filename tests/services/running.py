"""`penstock` as a process of its own, as a user or a service manager starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import psutil

PENSTOCK = str(Path(sys.executable).with_name("penstock"))


def wait_for(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)


class Running:
    """One command in a process group of its own, with what it prints and every process that it starts."""

    def __init__(self, folder: Path, *words: str, name: str = "run") -> None:
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        self._family: dict[int, psutil.Process] = {}
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [PENSTOCK, *words],
                stdout=out,
                stderr=err,
                cwd=folder,
                env={**os.environ, "PENSTOCK_HOME": _home(), "COLUMNS": "200"},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.look_around()
        for process in (self.process, *self._family.values()):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait()

    @property
    def printed(self) -> str:
        return self.out.read_text()

    @property
    def complained(self) -> str:
        return self.err.read_text()

    def await_text(self, text: str, seconds: float = 90) -> None:
        """Until the command has printed this; fails at once where it ends first."""

        def seen() -> bool:
            if text in self.printed + self.complained:
                return True
            status = self.process.poll()
            assert status is None, f"ended with {status}: {self.printed}{self.complained}"
            return False

        wait_for(seen, repr(text), seconds)

    def look_around(self) -> list[psutil.Process]:
        """Every process below the command now; remembered, since orphans have no parent to be found by."""
        try:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self._family[child.pid] = child
        except psutil.NoSuchProcess:
            pass
        return list(self._family.values())

    def interrupt_group(self) -> None:
        """Ctrl-C: the terminal signals the whole foreground group."""
        self.look_around()
        os.killpg(self.process.pid, signal.SIGINT)

    def send(self, number: int) -> None:
        self.look_around()
        self.process.send_signal(number)

    def await_nobody_left(self, seconds: float = 10) -> None:
        """Until every process that was seen below the command is gone."""
        _, alive = psutil.wait_procs(list(self._family.values()), timeout=seconds)
        left = [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        assert not left, [" ".join(p.cmdline())[:200] for p in left]


def _home() -> str:
    from penstock.spark.cache import cache_home

    return str(cache_home())

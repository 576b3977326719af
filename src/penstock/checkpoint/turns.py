"""Turns at a table, between the stream that commits to it and a compaction that tends it: the stream comes first.

Two locks of the kernel's in the checkpoint folder, freed by a crash: whoever changes the table holds the turn, and the
stream holds the other one from when it wants the turn until it is done. A compaction that sees it wanted gives way. The
stream waits a moment for that, and no longer: what then meets is a conflict, and its commit is tried again.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

STREAM_PATIENCE = 2.0
"""Seconds that the stream waits at most for a compaction to give way."""

_POLL = 0.01


class Turns:
    """The turns at one sink's table. Implements `contracts.Turn`. Without a checkpoint on a local disk all are free."""

    def __init__(self, checkpoint: str, sink: str) -> None:
        local = "://" not in checkpoint or checkpoint.startswith("file://")
        self._folder = Path(checkpoint.removeprefix("file://")) if local else None
        mark = hashlib.sha256(sink.encode()).hexdigest()[:6]
        self._name = f"{re.sub(r'[^A-Za-z0-9_-]', '_', sink)[:40]}-{mark}"

    @contextmanager
    def stream(self) -> Iterator[None]:
        """For the stream: ask for the turn, and go on with or without it. Never raises."""
        with self._opened("wanted") as wanted, self._opened("turn") as turn:
            if wanted is not None and turn is not None:
                soon = time.monotonic() + STREAM_PATIENCE
                _await(wanted, soon)
                _await(turn, soon)
            yield

    @contextmanager
    def taken(self, deadline: float) -> Iterator[bool]:
        """For a compaction: the turn, once nobody has it or wants it."""
        with self._opened("turn") as turn:
            yield turn is None or self._take(turn, deadline)

    def wanted(self) -> bool:
        """Whether the stream wants the turn, or has it."""
        with self._opened("wanted") as wanted:
            return wanted is not None and not _held(wanted, fcntl.LOCK_SH)

    def _take(self, turn: IO[str], deadline: float) -> bool:
        while True:
            if not self.wanted() and _held(turn):
                if not self.wanted():
                    return True
                fcntl.flock(turn, fcntl.LOCK_UN)
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL)

    @contextmanager
    def _opened(self, which: str) -> Iterator[IO[str] | None]:
        """The file of a lock; none where there is no folder to have it."""
        file = None
        if self._folder is not None and self._folder.is_dir():
            with suppress(OSError):
                file = (self._folder / f".penstock.{which}.{self._name}").open("a")
        try:
            yield file
        finally:
            if file is not None:
                file.close()


def _await(file: IO[str], deadline: float) -> bool:
    while not _held(file):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL)
    return True


def _held(file: IO[str], how: int = fcntl.LOCK_EX) -> bool:
    """Try to take a lock. A file system without locks has nobody who could hold one."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True

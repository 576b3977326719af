"""One run at a time on a checkpoint: a lock that dies with its process."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from penstock.errors import MissingError

_LOCK = ".penstock.lock"
_PATIENCE_SECONDS = 0.2
"""Longer than anybody takes to look whether the lock is held, which refuses it for that moment."""


@contextmanager
def checkpoint_lock(path: str) -> Iterator[None]:
    """Hold the checkpoint at a local path; a second holder is refused. The kernel frees it at a crash."""
    folder = _local(path)
    if folder is None:
        raise MissingError(
            "NOT_IN_THIS_VERSION",
            f"checkpoint {path}: this version runs on a local checkpoint only, which it can lock",
            hint="point `checkpoint:` at a local folder",
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a+") as file:
        if not _taken(file):
            raise MissingError(
                "CHECKPOINT_IN_USE",
                f"another run holds the checkpoint {path}",
                context={"held by": _holder(file)},
                hint="stop that run first; two runs on one checkpoint would work against each other",
            )
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def held_by(path: str) -> str | None:
    """Who holds the checkpoint now, without taking it from anybody; None where nobody does, or nobody here can."""
    folder = _local(path)
    if folder is None:
        return None
    try:
        with (folder / _LOCK).open() as file:
            try:
                # Shared, so that two who look do not take each other for a holder.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(file)
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None


def _taken(file: TextIO) -> bool:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)


def _holder(file: TextIO) -> str:
    file.seek(0)
    return file.read().strip() or "an unknown process"


def _local(path: str) -> Path | None:
    return None if "://" in path and not path.startswith("file://") else Path(path.removeprefix("file://"))

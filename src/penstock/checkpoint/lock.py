"""One run at a time on a checkpoint: a lock that dies with its process, or in an object store a lease that runs out."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from penstock.checkpoint.lease import lease_holder, leased
from penstock.errors import MissingError, PenstockError
from penstock.storage import Storage, is_object_uri, local_path

_LOCK = ".penstock.lock"
_PATIENCE_SECONDS = 0.2
"""Longer than anybody takes to look whether the lock is held, which refuses it for that moment."""


class Hold(Protocol):
    """A checkpoint that is held."""

    def check(self) -> None:
        """Before anything is committed: raise unless it is held still."""
        ...

    def lost(self) -> PenstockError | None:
        """The error for a checkpoint that was taken away; none while it was not."""
        ...


class Locked:
    """One that the kernel holds for this process: it cannot be taken away."""

    def check(self) -> None:
        """It is held."""

    def lost(self) -> PenstockError | None:
        """Never."""
        return None


@contextmanager
def checkpoint_lock(
    path: str, storage: Storage = Storage(), tell: Callable[[str], None] = lambda text: None
) -> Iterator[Hold]:
    """Hold the checkpoint; a second holder is refused. At a crash the kernel frees it, or its lease runs out."""
    if is_object_uri(path):
        with leased(path, storage, tell) as lease:
            yield lease
        return
    folder = local_path(path)
    if folder is None:
        raise MissingError(
            "CHECKPOINT_NOT_LOCKABLE",
            f"checkpoint {path}: nothing there keeps two runs apart",
            hint="point `checkpoint:` at a local folder, or at s3://, gs://, abfss:// or hdfs://",
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
        yield Locked()


def held_by(path: str, storage: Storage = Storage()) -> str | None:
    """Who holds the checkpoint now, without taking it from anybody; None where nobody does, or nobody here can."""
    if is_object_uri(path):
        return lease_holder(path, storage)
    folder = local_path(path)
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

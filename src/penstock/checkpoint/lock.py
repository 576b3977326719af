"""One run at a time on a checkpoint: a lock that dies with its process."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import MissingError


@contextmanager
def checkpoint_lock(path: str) -> Iterator[None]:
    """Hold the checkpoint at a local path; a second holder is refused. The kernel frees it at a crash."""
    if "://" in path and not path.startswith("file://"):
        raise MissingError(
            "NOT_IN_THIS_VERSION",
            f"checkpoint {path}: this version runs on a local checkpoint only, which it can lock",
            hint="point `checkpoint:` at a local folder",
        )
    folder = Path(path.removeprefix("file://"))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".penstock.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise MissingError(
                "CHECKPOINT_IN_USE",
                f"another run holds the checkpoint {path}",
                context={"held by": file.read().strip() or "an unknown process"},
                hint="stop that run first; two runs on one checkpoint would work against each other",
            ) from None
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield

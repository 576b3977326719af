"""A file written so that it is there whole or not at all, whatever ends the writer."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem


def put_whole(path: Path, body: bytes, *, durable: bool = True) -> None:
    """Write a local file by a draft next to it and a rename. One that need not outlive the machine is not synced."""
    # A draft is named so that no reader of the folder takes it for a file of Spark's or of a run.
    draft = path.with_name(f".draft{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with draft.open("wb") as file:
            file.write(body)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def put_whole_at(filesystem: Any, path: str, body: bytes, *, durable: bool = True) -> None:
    """The same wherever a path is: an object store shows an object only when it is whole."""
    if isinstance(filesystem, LocalFileSystem):
        put_whole(Path(path), body, durable=durable)
    else:
        filesystem.pipe_file(path, body)

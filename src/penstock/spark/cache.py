"""The cache folder: files that Penstock fetched or generated, and can make again."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_home() -> Path:
    """`PENSTOCK_HOME`, else `penstock` in the user's cache folder. It may not exist yet."""
    if own := os.environ.get("PENSTOCK_HOME"):
        return Path(own).expanduser().absolute()
    # The XDG specification has relative paths ignored.
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "penstock"


def log_file(name: str) -> Path:
    """Where Spark's own log of a command goes."""
    return cache_home() / "logs" / f"{name}.log"


@contextmanager
def private_file(target: Path) -> Iterator[Path]:
    """Write a file atomically, readable by its owner only."""
    target.parent.mkdir(parents=True, exist_ok=True)
    made, name = tempfile.mkstemp(prefix=f"{target.name}.", dir=target.parent)
    os.close(made)
    aside = Path(name)
    try:
        yield aside
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def link_or_copy(kept: Path, target: Path) -> None:
    """Hard-link a file, or copy it if that is not possible."""
    target.unlink(missing_ok=True)
    try:
        os.link(kept, target)
    except OSError:
        shutil.copyfile(kept, target)

"""Where Penstock keeps what it fetched or generated and can make again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def cache_home() -> Path:
    """`PENSTOCK_HOME`, else `penstock` in the user's cache folder. It need not exist yet."""
    if own := os.environ.get("PENSTOCK_HOME"):
        return Path(own).expanduser().absolute()
    # The XDG specification has relative paths ignored.
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "penstock"


def link_or_copy(kept: Path, target: Path) -> None:
    """Give a file that is kept a second name, or a copy where that cannot be."""
    target.unlink(missing_ok=True)
    try:
        os.link(kept, target)
    except OSError:
        shutil.copyfile(kept, target)

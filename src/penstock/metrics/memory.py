"""The share of memory in use: of the machine, or of the control group if it has a limit."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import psutil

_GROUP = Path("/sys/fs/cgroup")


def memory_in_use() -> float:
    """From 0 to 1; memory that the system can reclaim at once counts as free. Read once a second."""
    return _in_use(int(time.monotonic()))


@lru_cache(maxsize=1)
def _in_use(second: int) -> float:
    machine = psutil.virtual_memory()
    return max(1.0 - machine.available / machine.total, _of_group(_GROUP))


def _of_group(folder: Path) -> float:
    with suppress(OSError, ValueError, KeyError):
        limit = int((folder / "memory.max").read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
        cached = int(dict(line.split() for line in lines)["inactive_file"])
        return min(1.0, (int((folder / "memory.current").read_text()) - cached) / limit)
    return 0.0

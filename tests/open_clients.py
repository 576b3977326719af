"""The Kafka clients of this process, as the system sees them."""

from __future__ import annotations

from pathlib import Path


def open_clients() -> int:
    """How many are open: each has one thread of this name."""
    return sum(one.read_text() == "rdk:main\n" for one in Path("/proc/self/task").glob("*/comm"))

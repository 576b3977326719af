"""The processor time and the memory that one hostile input may take, measured; one that never ends is ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

MIB = 1 << 20
SECONDS = 10.0
"""Of the processor, for one input of at most 10 MiB; most take milliseconds."""
GROWTH_MIB = 400
"""Beyond what the process had: a message of 10 MiB as Python values is 25 times as large."""


class NeverEndedError(Exception):
    """An input took more than three times its processor seconds."""


@contextmanager
def bounded(what: str, seconds: float = SECONDS, growth_mib: int = GROWTH_MIB) -> Iterator[None]:
    """Fail where the body takes longer, or makes this process larger, than it may."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before, began = _kib("VmRSS"), time.process_time()
    # The timer counts processor time too: wall time would fail on a busy machine.
    previous = signal.signal(signal.SIGPROF, _end)
    signal.setitimer(signal.ITIMER_PROF, 3 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
    took, grew = time.process_time() - began, (_kib("VmHWM") - before) // 1024
    assert took < seconds, f"{what} took {took:.1f} s"
    assert grew < growth_mib, f"{what} took {grew} MiB"


def _end(_number: int, _frame: FrameType | None) -> None:
    raise NeverEndedError


def _kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))

"""Whether a process grows: its memory, file handles and threads over a stretch of time in which it was left alive.

Enters: a curve, as times and values. Leaves: its first, middle and last values, its slope, and whether that is flat.
The slope is the median of those between all pairs of points (Theil and Sen), and the ends are medians of quarters: a
peak while a fault was on, or a few samples of it, decide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

MEMORY, HANDLES, THREADS, HEAP = "memory", "handles", "threads", "live heap"
MEASURES = (MEMORY, HANDLES, THREADS)
IN_BYTES = (MEMORY, HEAP)
MEGABYTE = 1 << 20
_MOST_POINTS = 240
FEWEST_POINTS = 12


@dataclass(frozen=True)
class Allowed:
    """How much a curve may rise within the stretch: so much, or a part of what it began with."""

    at_least: float
    part: float

    def of(self, first: float) -> float:
        """In the unit of the curve."""
        return max(self.at_least, self.part * first)


# Pools of threads and connections are filled on demand, each to its bound; a leak of one a batch passes these soon.
_ALLOWED = {
    (MEMORY, "python"): Allowed(48 * MEGABYTE, 0.10),
    # The heap is all there from the start, so this is what a JVM has beside it: compiled code, buffers, stacks.
    (MEMORY, "jvm"): Allowed(160 * MEGABYTE, 0.15),
    (HEAP, "jvm"): Allowed(32 * MEGABYTE, 0.10),
    (HANDLES, "python"): Allowed(6, 0.05),
    (HANDLES, "jvm"): Allowed(8, 0.05),
    (THREADS, "python"): Allowed(6, 0.05),
    (THREADS, "jvm"): Allowed(8, 0.05),
}


@dataclass(frozen=True)
class Curve:
    """One measure of one process; `role` ends with what the process is: `python` or `jvm`."""

    role: str
    measure: str
    times: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True)
class Flatness:
    """A curve as numbers. `rise` is by the slope, over the whole stretch."""

    role: str
    measure: str
    points: int
    seconds: float
    first: float
    middle: float
    last: float
    per_hour: float
    rise: float
    allowed: float
    verdict: str
    """`flat`, `rising`, or `too short` to be judged."""
    curve: Sequence[tuple[float, float]] = ()
    """Seconds from its first point, and values; for whoever looks for the cause."""

    @property
    def flat(self) -> bool:
        return self.verdict == "flat"


def judge(curve: Curve, shortest: float) -> Flatness:
    """A curve of less than `shortest` seconds, or of few points, is not judged, and that is not flat."""
    times, values = _thinned(curve.times), _thinned(curve.values)
    seconds = curve.times[-1] - curve.times[0] if curve.times else 0.0
    if len(values) < FEWEST_POINTS or seconds < shortest:
        ends = (float(values[0]), float(median(values)), float(values[-1])) if values else (0.0, 0.0, 0.0)
        return Flatness(
            curve.role, curve.measure, len(curve.values), seconds, *ends, 0.0, 0.0, 0.0, verdict="too short"
        )
    quarter = len(values) // 4
    first, last = float(median(values[:quarter])), float(median(values[-quarter:]))
    slope = theil_sen(times, values)
    rise, allowed = slope * seconds, _ALLOWED[curve.measure, curve.role.rsplit(" ", 1)[-1]].of(first)
    # A leak shows in both; a step that is made once shows in the ends alone, a wave in the slope alone.
    rising = rise > allowed and last - first > allowed / 2
    return Flatness(
        role=curve.role,
        measure=curve.measure,
        points=len(curve.values),
        seconds=seconds,
        first=first,
        middle=float(median(values[quarter:-quarter])),
        last=last,
        per_hour=slope * 3600,
        rise=rise,
        allowed=allowed,
        verdict="rising" if rising else "flat",
        curve=[(round(at - times[0], 1), value) for at, value in zip(times, values, strict=True)],
    )


def theil_sen(times: Sequence[float], values: Sequence[float]) -> float:
    """The median slope between all pairs of points, a second."""
    pairs = combinations(zip(times, values, strict=True), 2)
    return float(median((b - a) / (t - s) for (s, a), (t, b) in pairs if t > s))


def _thinned(points: Sequence[float]) -> Sequence[float]:
    step = max(1, -(-len(points) // _MOST_POINTS))
    return points[::step]

"""A simulated run as a few rows: each a stretch of it, with the most that waited in it and its last batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.flow.simulation import Simulated, Step

_ROWS = 16
_ALIKE = 0.1


@dataclass(frozen=True)
class Row:
    """A stretch of the run: the most that waited in it, and its last batch."""

    until: float
    backlog: float
    rate: float
    batch: Step | None

    def like(self, other: Row) -> bool:
        """Whether nothing happened in between."""
        return (self.batch is None) == (other.batch is None) and all(
            abs(one - two) <= _ALIKE * max(one, two) for one, two in zip(self._numbers, other._numbers, strict=True)
        )

    @property
    def _numbers(self) -> tuple[float, ...]:
        batch = (self.batch.batch.cap, self.batch.batch.offsets) if self.batch else ()
        return (self.backlog, self.rate, *batch)


def rows_of(run: Simulated, seconds: float) -> list[Row]:
    """In stretches as short as fits into a few rows, those alike being one."""
    for count in (60, 30, 20):
        if len(rows := _joined(_stretches(run, seconds, count))) <= _ROWS:
            return rows
    return _stretches(run, seconds, _ROWS)


def heights(run: Simulated, seconds: float) -> Iterator[tuple[float, float]]:
    """When the backlog was at a height, and how much waited: just before each commit, and where a burst ends."""
    yield 0.0, run.waiting
    done = 0
    for step in run.steps:
        if step.end <= seconds:
            yield step.end, run.waiting + run.arrivals.until(step.end) - done
        done += step.batch.offsets
    for burst in run.arrivals.bursts:
        end = min(burst.start + burst.seconds, seconds)
        yield end, run.backlog(end)


def _joined(rows: list[Row]) -> list[Row]:
    joined: list[tuple[Row, Row]] = []
    for row in rows:
        first = joined.pop()[0] if joined and joined[-1][0].like(row) else row
        joined.append((first, row))
    return [last for _, last in joined]


def _stretches(run: Simulated, seconds: float, count: int) -> list[Row]:
    length = seconds / count
    highest = [0.0] * count
    for time, waits in heights(run, seconds):
        at = min(count - 1, max(0, math.ceil(time / length) - 1))
        highest[at] = max(highest[at], waits)
    last: dict[int, Step] = {min(count - 1, int(step.start / length)): step for step in run.steps}
    found, came, step = list[Row](), run.arrivals.until, None
    for at in range(count):
        end, step = (at + 1) * length, last.get(at, step)
        rate = (came(end) - came(end - length)) / length
        found.append(Row(end, max(highest[at], run.backlog(end)), rate, step))
    return found

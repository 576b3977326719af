"""What the part `burst` has measured: one run of one variant as values, and the best of the fixed caps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

ADAPTIVE, BEST, HIGH, LOW = "adaptive", "best fixed cap", "4 times too high", "4 times too low"
TRIED = "another fixed cap"


@dataclass(frozen=True)
class Setting:
    """The load, the sink and the bounds of one measurement."""

    rate: int
    normal_seconds: float
    burst_seconds: float
    patience_seconds: float
    """How long a variant may take to catch up."""
    fixed_seconds: float
    rows_a_second: int
    """What the sink's commit takes: so long, and a second for so many rows."""
    target_batch: float
    max_batch: float
    caps: tuple[int, ...]
    """The fixed caps of which the best is looked for."""

    @property
    def calm(self) -> int:
        """With no more than so many events waiting a pipeline is caught up: little more than a batch of its fixed cost
        finds at the normal rate."""
        return int(2 * self.rate * (1 + self.fixed_seconds))


@dataclass(frozen=True)
class Moment:
    """A batch at its start, when it knows what waits: itself and what lies behind it. Seconds since 1970."""

    started_at: float
    finished_at: float
    waiting: int
    offsets: int
    seconds: float
    cap: int | None

    @classmethod
    def told(cls, body: dict[str, Any]) -> Moment:
        """From a line of the run's log."""
        return cls(
            started_at=datetime.fromisoformat(body["started_at"]).timestamp(),
            finished_at=datetime.fromisoformat(body["finished_at"]).timestamp(),
            waiting=body["lag"] + body["offsets"],
            offsets=body["offsets"],
            seconds=body["seconds"],
            cap=body["cap"],
        )


@dataclass(frozen=True)
class Decided:
    """A change of the cap."""

    at: float
    cap: int
    reason: str
    text: str

    @classmethod
    def told(cls, body: dict[str, Any]) -> Decided:
        """From a line of the run's log."""
        return cls(datetime.fromisoformat(body["at"]).timestamp(), body["cap"], body["reason"], body["text"])


@dataclass(frozen=True)
class BurstRun:
    """One variant, once. `memory` is what the driver, its JVM and the workers hold, over time."""

    variant: str
    cap: int | None
    sent: int
    burst_began: float
    burst_ended: float
    caught_up_at: float | None
    moments: list[Moment]
    decisions: list[Decided]
    memory: list[tuple[float, int]]

    @property
    def catch_up_seconds(self) -> float | None:
        """From the end of the burst until the lag is back; none where the bench did not wait for it."""
        return None if self.caught_up_at is None else self.caught_up_at - self.burst_ended

    @property
    def longest_batch(self) -> float:
        """Of all batches, the first ones too."""
        return max(one.seconds for one in self.moments)

    @property
    def most_waiting(self) -> int:
        """The largest lag that a batch found."""
        return max(one.waiting for one in self.moments)

    @property
    def memory_before(self) -> int:
        """The most before the burst."""
        return self._most(0.0, self.burst_began)

    @property
    def memory_burst(self) -> int:
        """The most during the burst."""
        return self._most(self.burst_began, self.burst_ended)

    @property
    def memory_after(self) -> int:
        """The most from the end of the burst on."""
        return self._most(self.burst_ended, math.inf)

    @property
    def memory_peak(self) -> int:
        """The most from the burst on."""
        return self._most(self.burst_began, math.inf)

    @property
    def memory_growth(self) -> float:
        """By what the most behind the burst is above the most in it: a backlog that is held in memory shows there."""
        return self.memory_after / self.memory_burst

    def _most(self, since: float, until: float) -> int:
        return max(held for at, held in self.memory if since <= at < until)


def best_of(runs: Sequence[BurstRun], setting: Setting) -> BurstRun:
    """The one that catches up first, of those without a batch over `max_batch`."""
    late = setting.patience_seconds
    return min(runs, key=lambda run: (run.longest_batch > setting.max_batch, run.catch_up_seconds or late))

"""A simulated pipeline: records arrive, batches process them at a given cost, and a control decides their size.

Pure: the same arguments give the same run, noise included. Used by the tests of the controller, `penstock simulate` and
the chart in the docs. Time is in seconds from the beginning.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.config.operation import FlowConfig
from penstock.flow.controller import Decision, decide
from penstock.flow.cost import REMEMBERED, Observed

_IDLE_SECONDS = 0.1
_PARTS = 20

Control = Callable[[Sequence[Observed]], Decision]
"""Decides the cap of the next batch."""


@dataclass(frozen=True)
class Burst:
    """A higher rate for a while."""

    rate: float
    start: float
    seconds: float


@dataclass(frozen=True)
class Arrivals:
    """Records per second, and bursts with other rates."""

    rate: float
    bursts: tuple[Burst, ...] = ()

    def until(self, time: float) -> float:
        """How many records have arrived by this time."""
        more = sum((one.rate - self.rate) * min(max(time - one.start, 0.0), one.seconds) for one in self.bursts)
        return self.rate * time + more


@dataclass(frozen=True)
class Work:
    """What a batch costs: `fixed` seconds, and `per_offset` seconds of one core for each offset.

    The offsets are distributed over the cores. A partition is read by one core, unless `split` lets several share it.
    """

    fixed: float
    per_offset: float
    cores: int = 1
    partitions: int = 200
    hot: float = 1.0
    """How much more than the others the first partition gets."""
    split: bool = False
    noise: float = 0.0
    """The spread of a batch's time around what it should be: 0.2 is about 20 %."""
    load: Callable[[float], tuple[float, float]] | None = None
    """Factors of the fixed cost and the cost per offset over time: a slow sink, a drift."""
    record_bytes: float = 200.0
    memory_bytes: float = math.inf
    """The size of the memory, in which a batch has all its bytes at once."""

    @property
    def busiest(self) -> float:
        """The share of a batch's offsets that the busiest core has."""
        if self.split:
            return 1 / self.cores
        rounds = math.ceil(self.partitions / self.cores)
        return max(rounds / self.partitions, self.hot / (self.hot + self.partitions - 1))

    def seconds(self, offsets: float, time: float, dice: random.Random) -> float:
        """How long a batch takes."""
        exact = self._exact(self.per_offset * offsets * self.busiest, time)
        return exact * math.exp(dice.gauss(0.0, self.noise)) if self.noise else exact

    def _exact(self, work: float, time: float) -> float:
        if self.load is None:
            return work + self.fixed
        # A change in the middle of a batch meets what is left of it, and the commit at its end.
        now = time
        for _ in range(_PARTS):
            now += work / _PARTS * self.load(now)[1]
        return now + self.fixed * self.load(now)[0] - time


@dataclass(frozen=True)
class Step:
    """One batch of a simulated run, and the decision that gave it its cap."""

    start: float
    batch: Observed
    decision: Decision

    @property
    def end(self) -> float:
        """When it was committed."""
        return self.start + self.batch.seconds


@dataclass(frozen=True)
class Simulated:
    """A simulated run."""

    arrivals: Arrivals
    waiting: float
    """The backlog at the beginning."""
    steps: tuple[Step, ...]
    _ends: tuple[float, ...] = field(repr=False, default=())
    _done: tuple[int, ...] = field(repr=False, default=())

    def backlog(self, time: float) -> float:
        """How many offsets had arrived by this time and were not committed."""
        at = bisect_right(self._ends, time)
        return self.waiting + self.arrivals.until(time) - (self._done[at - 1] if at else 0)

    def caught_up(self, after: float, below: float) -> float | None:
        """Seconds from a time until a commit leaves at most `below` waiting; none if that never happens."""
        for end in self._ends:
            if end >= after and self.backlog(end) <= below:
                return end - after
        return None

    @property
    def longest(self) -> float:
        """Seconds of the longest batch."""
        return max((step.batch.seconds for step in self.steps), default=0.0)

    @property
    def changes(self) -> list[Step]:
        """The batches whose cap differs from the one before."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return [later for earlier, later in pairs if later.batch.cap != earlier.batch.cap]


def adaptive(flow: FlowConfig, cores: int = 1) -> Control:
    """The controller, as a run has it."""
    return lambda history: decide(flow, history, cores)


def fixed(cap: int) -> Control:
    """Always the same cap."""
    return lambda history: Decision(cap, "fixed", f"{cap:,} offsets, as the file says")


def simulate(
    work: Work,
    arrivals: Arrivals,
    control: Control,
    seconds: float,
    *,
    waiting: float = 0.0,
    trigger: float = 0.0,
    history: Sequence[Observed] = (),
    seed: int = 0,
) -> Simulated:
    """Simulate this many seconds. `waiting` is the initial backlog, `history` is of an earlier run."""
    dice = random.Random(seed)
    seen, steps, done, time = list(history), list[Step](), list[int](), 0.0
    while time < seconds:
        # Spark takes from each partition in proportion to its backlog, so the shares stay constant.
        lag = int(waiting + arrivals.until(time)) - (done[-1] if done else 0)
        if lag < 1:
            time += max(trigger, _IDLE_SECONDS)
            continue
        decision = control(seen[-REMEMBERED:])
        offsets = min(lag, decision.cap)
        took = work.seconds(offsets, time, dice)
        size = round(offsets * work.record_bytes)
        pressure = min(1.0, 0.3 + 0.7 * size / work.memory_bytes)
        seen.append(Observed(len(seen), offsets, offsets, took, size, lag - offsets, decision.cap, pressure))
        steps.append(Step(time, seen[-1], decision))
        done.append(offsets + (done[-1] if done else 0))
        time = max(time + took, _next_trigger(time, trigger))
    return Simulated(arrivals, waiting, tuple(steps), tuple(step.end for step in steps), tuple(done))


def _next_trigger(time: float, trigger: float) -> float:
    return (math.floor(time / trigger) + 1) * trigger if trigger else time

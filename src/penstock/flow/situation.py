"""What the rules of the controller depend on: the target, the bounds, the present cap, and the history."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from penstock.config.operation import FlowConfig
from penstock.flow.cost import FAR_LONGER, MOST_OFFSETS, SPREAD, Cost, Observed, certain, explained, telling

_START = 10_000
_LARGEST_RECORD_BYTES = 1 << 20
"""Kafka's default limit: the first batch fits into the memory even if every record has this size."""
_AUTO_BYTES_A_CORE = 1 << 30
_MARGIN, _LEAST_SHARE, _WORST = 0.8, 0.4, 0.95
_TIMES_FIXED = 15
_TIMES_SPREAD = 3
_FULL = 0.5
_REMEMBERED = 100
_PATIENCE = 3


@dataclass(frozen=True)
class Situation:
    """Facts derived from the batches before. No decisions are made here."""

    flow: FlowConfig
    history: Sequence[Observed]
    cores: int
    sharing: int = 1
    """How many pipelines share the memory."""

    @cached_property
    def seen(self) -> list[Observed]:
        """The informative batches, oldest first."""
        return telling(self.history)

    @cached_property
    def last(self) -> Observed:
        """The last one of them."""
        return self.seen[-1]

    @cached_property
    def cap(self) -> int:
        """The cap of the last batch; without one, the largest of the last few, or the start."""
        if self.history and self.history[-1].cap > 0:
            return self.within_bounds(self.history[-1].cap)
        return self.within_bounds(max([self.start, *(one.offsets for one in self.seen[-8:])]))

    @cached_property
    def start(self) -> int:
        """The cap of a pipeline without history."""
        return self.within_bounds(min(_START, self.bytes // _LARGEST_RECORD_BYTES))

    @cached_property
    def bytes(self) -> int:
        """How many bytes of messages a batch may hold."""
        return _bytes(self.flow, self.cores, self.sharing)

    @cached_property
    def record_bytes(self) -> float:
        """The size of a record in the last batches, or in the last one if records are larger there."""
        few = self.seen[-10:]
        mean = sum(max(0, one.bytes_in) for one in few) / sum(one.offsets for one in few)
        return max(mean, self.last.bytes_in / self.last.offsets) if self.last.offsets >= self.cap / 10 else mean

    @cached_property
    def held(self) -> float:
        """How many offsets fit into the memory, by their bytes."""
        return self.bytes / self.record_bytes if self.record_bytes > 0 else math.inf

    @cached_property
    def full(self) -> bool:
        """Whether the last batch was about as large as its cap allowed, so that the cap determined its duration."""
        return self.last.offsets >= _FULL * self.cap

    @property
    def short(self) -> bool:
        """Whether the last batch was shorter than any aim: a quick check that settles most cases."""
        least = _LEAST_SHARE * self.flow.max_batch.total_seconds()
        return self.last.seconds <= min(self.flow.target_batch.total_seconds(), least)

    @cached_property
    def limit(self) -> float:
        """The most seconds that a batch should take: `max_batch` minus a margin, wider if durations vary."""
        full = [one for one in self.batches if one.offsets >= _FULL * self.cap]
        squares = sum((one.seconds / self.cost.of(one.offsets) - 1) ** 2 for one in full)
        spread = math.sqrt(squares / max(1, len(full)))
        share = max(_LEAST_SHARE, min(_MARGIN, 1 / (1 + _TIMES_SPREAD * spread)))
        return share * self.flow.max_batch.total_seconds()

    @cached_property
    def target(self) -> float:
        """`target_batch` in seconds, or the limit if that is less."""
        return min(self.flow.target_batch.total_seconds(), self.limit)

    @cached_property
    def aim(self) -> float:
        """How many seconds a full batch should take: longer than the target if much of that would be fixed cost."""
        return _aim(self.target, self.cost, self.limit)

    @cached_property
    def batches(self) -> list[Observed]:
        """The newest batches that have one cost, newest first."""
        return explained(self.history)

    @cached_property
    def cost(self) -> Cost:
        """That cost."""
        return certain(self.batches)

    @cached_property
    def surprise(self) -> float:
        """The last batch's actual duration over the expected one, if that is a change rather than noise; else 1."""
        before = explained(self.seen[:-1])
        times = self.last.seconds / certain(before).of(self.last.offsets) if before else 1.0
        return times if times > FAR_LONGER else 1.0

    @cached_property
    def largest(self) -> Observed:
        """The largest of these batches."""
        return max(self.batches, key=lambda one: one.offsets)

    @cached_property
    def safe(self) -> float:
        """The offsets that fit into `max_batch` even if the largest batches had no fixed cost."""
        large = [one for one in self.batches[:8] if one.offsets >= 0.7 * self.largest.offsets] or [self.largest]
        return _WORST * self.flow.max_batch.total_seconds() / max(one.seconds / one.offsets for one in large)

    @cached_property
    def sizes_differ(self) -> bool:
        """Whether these batches differ enough in size to separate the fixed cost from the cost per offset."""
        sizes = [one.offsets for one in self.batches]
        return max(sizes) >= SPREAD * min(sizes)

    @cached_property
    def shrunk(self) -> int | None:
        """How many batches ago the cap last shrank, within the remembered history."""
        return next((ago for ago, change in enumerate(reversed(self._changes)) if change < 0), None)

    @cached_property
    def patience(self) -> int:
        """For how many more batches the cap stays after it shrank: longer with every reversal."""
        return max(0, _PATIENCE * 2 ** max(0, self.turns - 1) - self.shrunk) if self.shrunk is not None else 0

    @cached_property
    def turns(self) -> int:
        """How often the cap shrank after it had grown."""
        signs = [change > 0 for change in self._changes if change]
        return sum(not later and earlier for earlier, later in zip([True, *signs], signs, strict=False))

    @cached_property
    def _changes(self) -> list[int]:
        caps = [one.cap for one in self.history[-_REMEMBERED:] if one.cap > 0]
        return [later - earlier for earlier, later in pairwise(caps)]

    def within_bounds(self, offsets: float) -> int:
        """The nearest cap that the file allows."""
        return _within_bounds(self.flow, offsets)


def settled(flow: FlowConfig, cost: Cost, cores: int, record_bytes: float) -> int:
    """The cap at which a pipeline with a backlog settles if every batch has exactly this cost."""
    limit = _MARGIN * flow.max_batch.total_seconds()
    held = _bytes(flow, cores) / record_bytes if record_bytes > 0 else math.inf
    aim = _aim(min(flow.target_batch.total_seconds(), limit), cost, limit)
    return _within_bounds(flow, min(cost.offsets_in(aim), held))


def _aim(target: float, cost: Cost, limit: float) -> float:
    return min(max(target, _TIMES_FIXED * cost.fixed), limit)


def _bytes(flow: FlowConfig, cores: int, sharing: int = 1) -> int:
    return flow.memory or _AUTO_BYTES_A_CORE * max(1, cores) // max(1, sharing)


def _within_bounds(flow: FlowConfig, offsets: float) -> int:
    high = min(flow.max_offsets or MOST_OFFSETS, MOST_OFFSETS)
    return int(max(min(flow.min_offsets, high), min(high, offsets)))

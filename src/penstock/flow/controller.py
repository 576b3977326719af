"""The size of the next batch, from the batches before: a pure function, without a clock.

In: the target and the bounds of the file, and the finished batches, including those of an earlier run. Out: the cap,
the reason, and a sentence about it. Guaranteed: the cap is within the bounds of the file; it grows only while more
waits than fits into a batch, and never beyond what would end within `max_batch` if all the time of the largest batch so
far were due to its offsets. One batch that took far longer than expected makes the next one smaller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median

from penstock.config.operation import FlowConfig
from penstock.flow.cost import FAR_LONGER, MOST_OFFSETS, SPREAD, Cost, Observed, certain, explained, telling
from penstock.wording import size

REASONS: Mapping[str, str] = {
    "start": "nothing is known yet: a small batch",
    "learning": "more waits than a batch holds, and little is known: growing fast",
    "behind": "more waits than a batch holds, and batches are shorter than they should be: growing",
    "slow": "batches take longer than they should: smaller ones",
    "memory": "memory is filling up, or the batch would exceed the allowed bytes: smaller batches, or no larger ones",
    "steady": "batches take what they should",
    "caught_up": "what waits fits into a batch: left alone",
    "bound": "`min_offsets`, `max_offsets` or `memory` allow no more, or no less",
}
"""Each reason, and what it means."""

_DEAD_BAND, _FINE_BAND = 0.2, 0.1
"""Relative changes too small to make; finer while the cap has only grown, as it cannot oscillate then."""
_GROWTH = 10.0
_GROWTH_AFTER_SHRINKING = 2.0
_EARLY = 8
_SPREAD = 4
_ENOUGH = 3.5
_HALVE_AT, _HOLD_AT = 0.9, 0.8
_HELPED = 0.02
_MOST_SURPRISE = 3.0

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


@dataclass(frozen=True, slots=True)
class Decision:
    """The cap of the next batch. `reason` is one of `REASONS`; the text is for people."""

    cap: int
    reason: str
    text: str


def decide(flow: FlowConfig, history: Sequence[Observed], cores: int = 1, sharing: int = 1) -> Decision:
    """The cap of the next batch: the present one, unless there is a reason to change it.

    Without a configured memory limit, the pipelines that are `sharing` the memory get equal parts.
    """
    now = Situation(flow, history, cores, sharing)
    if not now.seen:
        return Decision(now.cap, "start", f"nothing is known yet: {_n(now.cap)} offsets")
    for rule in (
        _full_memory,
        _too_many_bytes,
        _probe_fixed_cost,
        _slow,
        _slow_while_caught_up,
        _caught_up,
        _hold,
        _grow,
    ):
        if (decision := rule(now)) is not None:
            return decision
    return Decision(now.cap, "steady", f"{_took(now.last)}, {_aim_text(now)}: {_n(now.cap)} stay")


def _full_memory(now: Situation) -> Decision | None:
    if not now.full or now.last.pressure <= _HALVE_AT:
        return None
    why = f"memory was {now.last.pressure:.0%} full with {_n(now.last.offsets)} offsets"
    larger = [one for one in now.seen[-10:] if one.offsets >= 3.5 * now.last.offsets]
    if larger and min(one.pressure for one in larger) <= now.last.pressure + _HELPED:
        return Decision(now.cap, "memory", f"{why}, as with larger batches: it is not they that fill it; no change")
    return _change(now, now.cap / 2, "memory", why)


def _too_many_bytes(now: Situation) -> Decision | None:
    if now.cap <= now.held:
        return None
    full = size(now.cap * now.record_bytes)
    why = f"records of {size(now.record_bytes)}: {_n(now.cap)} would be {full}, and {size(now.bytes)} is the most"
    return _change(now, now.held * (1 - _DEAD_BAND / 2), "memory", why)


def _probe_fixed_cost(now: Situation) -> Decision | None:
    """Slow small batches: only larger ones can show how much of their time is fixed cost."""
    few = now.cap < SPREAD * now.start
    slow = (1 - _DEAD_BAND) * now.target <= now.last.seconds <= now.limit
    behind = now.full and now.last.backlog >= now.cap and now.last.pressure <= _HOLD_AT
    if now.sizes_differ or not (few and slow and behind) or now.patience:
        return None
    worst = now.limit * now.last.offsets / now.last.seconds
    enough = _ENOUGH * min(one.offsets for one in now.batches)
    chosen = min(enough, worst, now.safe, now.held * (1 - _DEAD_BAND / 2))
    if chosen < now.cap * (1 + _DEAD_BAND):
        return None
    why = f"{_took(now.last)}, {_n(now.last.backlog)} wait, and a larger batch tells how much of it is fixed cost"
    return _change(now, chosen, "learning", why)


def _slow(now: Situation) -> Decision | None:
    if not now.full or now.short or now.last.seconds <= now.aim:
        return None
    wanted = now.cost.offsets_in(now.aim)
    if wanted >= now.cap * (1 - _DEAD_BAND):
        return None
    if now.cost.fixed >= now.limit:
        return Decision(now.cap, "slow", f"{_took(now.last)}, and smaller batches take as long: {_n(now.cap)} stay")
    # If the slow-down came in the middle of the batch, the present cost is even higher than its average.
    return _change(now, wanted / min(now.surprise, _MOST_SURPRISE), "slow", f"{_took(now.last)}, {_aim_text(now)}")


def _slow_while_caught_up(now: Situation) -> Decision | None:
    """Small batches became so slow that a full one, when a burst comes, might take too long."""
    small = [one.seconds for one in now.seen if one.offsets < now.cap / 10]
    large = [one.seconds * now.cap / one.offsets for one in now.seen if one.offsets >= now.cap / 2]
    if now.full or len(small) < 6 or not large:
        return None
    factor = min(small[-3:]) / median(small[:-3])
    if factor * large[-1] <= now.flow.max_batch.total_seconds():
        return None
    why = f"{_took(now.last)}, {factor:.0f} times as long as before: a full batch might take {_s(factor * large[-1])}"
    return _change(now, now.cap * now.target / (factor * large[-1]), "slow", why)


def _caught_up(now: Situation) -> Decision | None:
    if now.last.backlog >= now.cap:
        return None
    return Decision(now.cap, "caught_up", f"{_n(now.last.backlog)} offsets wait, a batch holds {_n(now.cap)}")


def _hold(now: Situation) -> Decision | None:
    if now.last.pressure > _HOLD_AT:
        return Decision(now.cap, "memory", f"memory is {now.last.pressure:.0%} full: {_n(now.cap)} stay")
    if now.patience:
        return Decision(
            now.cap, "steady", f"made smaller {_times(now.turns)} of late: {_n(now.cap)} stay for {now.patience} more"
        )
    return None


def _grow(now: Situation) -> Decision | None:
    early = len(now.seen) < _EARLY
    wanted = now.cost.offsets_in(now.aim)
    reason = "behind"
    if early and now.largest.offsets < _SPREAD * min(one.offsets for one in now.batches):
        wanted, reason = max(wanted, 2 * now.target * now.largest.offsets / now.largest.seconds), "learning"
    step = _growth(now) * min(now.cap, 2 * now.largest.offsets)
    if early and step < wanted:
        reason = "learning"
    filled = [one.offsets for one in now.seen if one.pressure > _HALVE_AT]
    memory = min([now.held * (1 - _DEAD_BAND / 2), *(0.75 * offsets for offsets in filled)])
    chosen = min(wanted, step, now.safe, memory)
    if chosen >= now.cap * (1 + (_FINE_BAND if now.shrunk is None else _DEAD_BAND)):
        return _change(now, chosen, reason, f"{_took(now.last)}, {_aim_text(now)}, {_n(now.last.backlog)} wait")
    if memory < now.cap * (1 + _DEAD_BAND) <= min(wanted, step, now.safe):
        return Decision(
            now.cap, "bound", f"{_n(now.last.backlog)} offsets wait; memory lets a batch hold {_n(now.cap)}"
        )
    return None


def _growth(now: Situation) -> float:
    """The factor by which the cap may grow: smaller after it shrank, and smaller the fuller the memory is."""
    most = _GROWTH_AFTER_SHRINKING if now.shrunk is not None else _GROWTH
    room = min(1.0, max(0.0, (_HALVE_AT - now.last.pressure) / 0.6))
    return 1 + (most - 1) * room**2


def _change(now: Situation, offsets: float, reason: str, why: str) -> Decision:
    cap = now.within_bounds(_round(offsets))
    if cap == now.cap:
        return Decision(cap, "bound", f"{why}: {_n(cap)} is the bound of the file")
    return Decision(cap, reason, f"{why}: {_n(cap)}")


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


def _round(offsets: float) -> float:
    """Rounded down to two significant digits."""
    if not 1 <= offsets < math.inf:
        return offsets
    unit = 10.0 ** max(0, math.floor(math.log10(offsets)) - 1)
    return math.floor(offsets / unit) * unit


def _took(batch: Observed) -> str:
    return f"{_n(batch.offsets)} offsets took {_s(batch.seconds)}"


def _aim_text(now: Situation) -> str:
    if now.aim > now.target:
        return f"the aim is {_s(now.aim)}, {_s(now.cost.fixed)} being fixed cost"
    return f"the aim is {_s(now.aim)}"


def _times(count: int) -> str:
    return "once" if count <= 1 else f"{count} times"


def _n(offsets: float) -> str:
    return f"{offsets:,.0f}"


def _s(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:,.0f} s"

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
from statistics import median

from penstock.config.operation import FlowConfig
from penstock.flow.cost import SPREAD, Observed
from penstock.flow.situation import Situation
from penstock.wording import size

REASONS: Mapping[str, str] = {
    "start": "nothing is known yet: a small batch",
    "learning": "more waits than a batch holds, and little is known: growing fast",
    "behind": "more waits than a batch holds, and batches are shorter than they should be: growing",
    "slow": "batches take longer than they should: smaller ones",
    "memory": "the memory fills, or so many bytes are not allowed: smaller ones, or none larger",
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
    return Decision(now.cap, "steady", f"{_took(now.last)}, {_aim(now)}: {_n(now.cap)} stay")


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
    return _change(now, wanted / min(now.surprise, _MOST_SURPRISE), "slow", f"{_took(now.last)}, {_aim(now)}")


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
        return _change(now, chosen, reason, f"{_took(now.last)}, {_aim(now)}, {_n(now.last.backlog)} wait")
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


def _round(offsets: float) -> float:
    """Rounded down to two significant digits."""
    if not 1 <= offsets < math.inf:
        return offsets
    unit = 10.0 ** max(0, math.floor(math.log10(offsets)) - 1)
    return math.floor(offsets / unit) * unit


def _took(batch: Observed) -> str:
    return f"{_n(batch.offsets)} offsets took {_s(batch.seconds)}"


def _aim(now: Situation) -> str:
    if now.aim > now.target:
        return f"the aim is {_s(now.aim)}, {_s(now.cost.fixed)} being fixed cost"
    return f"the aim is {_s(now.aim)}"


def _times(count: int) -> str:
    return "once" if count <= 1 else f"{count} times"


def _n(offsets: float) -> str:
    return f"{offsets:,.0f}"


def _s(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:,.0f} s"

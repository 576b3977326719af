"""What a batch costs, learned from the ones before: a fixed part, and a part for each offset.

A line, `fixed + per_offset * offsets`, is fitted through the newest batches that it explains. Going back from the
newest, an outlier is skipped; two in a row mean that the cost was different before, and nothing older counts. So a
hiccup is ignored, and a change is accepted when it is seen twice, or at once if a batch took twice as long as expected.
The slope of the line comes from all these batches, its level from the last few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST_OFFSETS = 10**12
"""More than any batch has: stands for no bound."""
REMEMBERED = 50
"""How many batches are used."""
_LEAST_SECONDS, _MOST_SECONDS = 0.001, 10.0**7


@dataclass(frozen=True, slots=True)
class Observed:
    """One finished batch."""

    batch_id: int
    offsets: int
    rows: int
    seconds: float
    bytes_in: int
    backlog: int
    """How many offsets were left waiting when the batch was planned."""
    cap: int
    """Its cap in offsets; 0 for none, or an unknown one."""
    pressure: float = 0.0
    """The share of the memory that was in use, from 0 to 1."""
    skipped: bool = False


def telling(history: Sequence[Observed]) -> list[Observed]:
    """The batches that say something about cost: they had records, and took time."""
    return [
        batch
        for batch in history
        if not batch.skipped and 0 < batch.offsets <= MOST_OFFSETS and _LEAST_SECONDS <= batch.seconds <= _MOST_SECONDS
    ]


_NEWEST = 30
_HALF_LIFE = 8
_TOLERANCE = 0.5
_SLACK = 0.5
"""Random variation in seconds: much for a batch of half a second, nothing for one of twenty."""
_SHORTEST = 0.25
FAR_LONGER = 2.0
"""A batch that takes this many times as long as expected is accepted at once."""
_LEAST_ERROR = 0.1
SPREAD = 3.0
"""The ratio of sizes needed to separate the two parts; below it a slow drift looks like a fixed cost."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a batch: a fixed part, and a part per offset."""

    fixed: float
    per_offset: float

    def of(self, offsets: float) -> float:
        """The seconds of a batch with this many offsets."""
        return self.fixed + self.per_offset * offsets

    def offsets_in(self, seconds: float) -> float:
        """How many offsets fit into a batch of this many seconds."""
        if seconds <= self.fixed:
            return 0.0
        return (seconds - self.fixed) / self.per_offset if self.per_offset > 0 else math.inf


def estimate(history: Sequence[Observed]) -> Cost | None:
    """The present cost of a batch; none without informative batches."""
    batches = explained(history)
    return _adjusted(line_through(batches)[0], batches) if batches else None


def certain(batches: Sequence[Observed]) -> Cost:
    """A cost that is safe to act on: only what is certain is attributed to the fixed part.

    So larger batches are not assumed to be cheap before batches of different sizes were seen.
    """
    line, error = line_through(batches)
    sizes = [batch.offsets for batch in batches]
    fixed = max(0.0, line.fixed - 2 * error) if max(sizes) >= SPREAD * min(sizes) else 0.0
    weights = [max(batch.seconds, _SHORTEST) ** -2 * batch.offsets for batch in batches]
    each = sum(w * (b.seconds - fixed) for w, b in zip(weights, batches, strict=True))
    total = sum(w * b.offsets for w, b in zip(weights, batches, strict=True))
    return _adjusted(Cost(fixed, max(0.0, each / total)), batches)


def explained(history: Sequence[Observed]) -> list[Observed]:
    """The newest batches that one line explains, newest first."""
    newest = _relevant(_since_change(telling(history))[::-1])
    chosen = _explained(newest)
    if len(chosen) > 2 or len(newest) < 3:
        return chosen
    before = _explained(newest[1:])
    if len(before) <= len(chosen) or newest[0].seconds > FAR_LONGER * certain(before).of(newest[0].offsets) + _SLACK:
        return chosen
    return before


def _since_change(seen: Sequence[Observed]) -> list[Observed]:
    """The batches after the one that became slow, and after which the cap shrank.

    That batch mixes the former cost and the new one, and is left out. If the cost afterwards is the former one, it was
    a hiccup, and older batches count too.
    """
    for at in range(len(seen) - 2, 0, -1):
        before, turn, after = seen[at - 1 : at + 2]
        if after.cap < turn.cap and _far_longer(before, turn):
            old, new = _since_change(seen[:at]), list(seen[at + 1 :])
            line, few = certain(explained(old)), new[:3]
            hiccup = _alike(sum(line.of(one.offsets) for one in few), sum(one.seconds for one in few))
            return [*old, *new] if hiccup else new
    # For the first batch the former cost is unknown.
    return list(seen[1:] if len(seen) > 1 and seen[1].cap < seen[0].cap else seen)


def _far_longer(before: Observed, batch: Observed) -> bool:
    return batch.seconds > FAR_LONGER * before.seconds * max(1.0, batch.offsets / before.offsets) + _SLACK


def _relevant(newest: Sequence[Observed]) -> list[Observed]:
    """The newest batches, and older ones of very different size, which separate the two parts."""
    size = newest[0].offsets if newest else 0
    others = [one for one in newest[_NEWEST : 2 * _NEWEST] if not size / SPREAD < one.offsets < size * SPREAD]
    return [*newest[:_NEWEST], *others]


def _explained(newest: Sequence[Observed]) -> list[Observed]:
    chosen: list[Observed] = []
    missed = 0
    for batch in newest:
        more = [*chosen, batch]
        line, _ = line_through(more)
        if all(_alike(line.of(one.offsets), one.seconds) for one in more):
            chosen, missed = more, 0
        elif (missed := missed + 1) == 2:
            break
    return chosen


def _alike(foreseen: float, seconds: float) -> bool:
    less, more = sorted((foreseen, seconds))
    return more <= less * (1 + _TOLERANCE) + _SLACK


def line_through(batches: Sequence[Observed]) -> tuple[Cost, float]:
    """The line of least relative errors, with neither part negative; and the standard error of its fixed part."""
    weight = offsets = squares = seconds = products = 0.0
    for batch in batches:
        one = max(batch.seconds, _SHORTEST) ** -2
        weight += one
        offsets += one * batch.offsets
        squares += one * batch.offsets**2
        seconds += one * batch.seconds
        products += one * batch.offsets * batch.seconds
    spread = weight * squares - offsets**2
    if spread <= 1e-9 * weight * squares:
        return Cost(0.0, products / squares), math.inf
    line = Cost((squares * seconds - offsets * products) / spread, (weight * products - offsets * seconds) / spread)
    if line.per_offset <= 0:
        line = Cost(seconds / weight, 0.0)
    elif line.fixed <= 0:
        line = Cost(0.0, products / squares)
    errors = [(one.seconds - line.of(one.offsets)) / max(one.seconds, _SHORTEST) for one in batches]
    variance = max(_LEAST_ERROR**2, sum(error**2 for error in errors) / max(1, len(errors) - 2))
    return line, math.sqrt(variance * squares / spread)


def _adjusted(line: Cost, batches: Sequence[Observed]) -> Cost:
    """The line scaled to the level of the newest batches."""
    ratios = [(one.seconds + _SLACK) / (line.of(one.offsets) + _SLACK) for one in batches]
    weights = [0.5 ** (age / _HALF_LIFE) for age in range(len(ratios))]
    level = sum(w * r for w, r in zip(weights, ratios, strict=True)) / sum(weights)
    return Cost(line.fixed * level, line.per_offset * level)

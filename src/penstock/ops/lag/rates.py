"""How lag moves: looks at several moments enter, offsets a second leave. Pure, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any

from penstock.checkpoint import Offsets
from penstock.metrics.history import from_lists
from penstock.model import TopicPartition

_WINDOW, _LONGEST_WINDOW = timedelta(minutes=2), timedelta(minutes=15)
_OLDEST = timedelta(hours=1)
_SHORTEST = timedelta(seconds=1)
_BATCHES_COVERED = 4


@dataclass(frozen=True)
class Sample:
    """Where the logs ended and what was read of them at one moment."""

    at: datetime
    ends: Mapping[TopicPartition, int]
    positions: Mapping[TopicPartition, int]

    @property
    def lags(self) -> dict[TopicPartition, int]:
        """The offsets that waited, by partition."""
        return {at: max(0, end - self.positions[at]) for at, end in self.ends.items() if at in self.positions}


@dataclass(frozen=True)
class Rates:
    """Offsets a second; none where it takes a second look to tell."""

    growth: float | None = None
    incoming: float | None = None
    processing: float | None = None
    partitions: Mapping[TopicPartition, float] = field(default_factory=dict)
    """The growth of each partition."""


def samples_in(entries: Iterable[Mapping[str, Any]]) -> list[Sample]:
    """The looks that a run noted in its history."""
    return [
        Sample(datetime.fromisoformat(entry["at"]), from_lists(entry["ends"]), from_lists(entry["committed"]))
        for entry in entries
        if entry["event"] == "lag" and "ends" in entry and "committed" in entry
    ]


def looks_in_run(entries: Sequence[Mapping[str, Any]], last: Sample | None) -> list[Sample]:
    """What a run that goes on is compared with: the looks since it began, for before that nobody read."""
    began = max((at for at, entry in enumerate(entries) if entry["event"] == "started"), default=0)
    return [*samples_in(entries[began:]), *([last] if last is not None else [])]


def looks_at_rest(entries: Iterable[Mapping[str, Any]], last: Sample | None, positions: Offsets) -> list[Sample]:
    """The same while nobody reads: the last look. The run may have read on behind it: only its log ends still hold."""
    looked = [last] if last is not None else samples_in(entries)[-1:]
    return [replace(one, positions=positions) for one in looked]


def window_of(batches: Sequence[Mapping[str, Any]]) -> timedelta:
    """How far to look back: over several batches, since lag falls when one commits and rises in between."""
    longest = max((one.get("seconds", 0.0) + one.get("waited", 0.0) for one in batches), default=0.0)
    return min(max(_WINDOW, timedelta(seconds=_BATCHES_COVERED * longest)), _LONGEST_WINDOW)


def rates_of(samples: Sequence[Sample], now: Sample, window: timedelta = _WINDOW) -> Rates:
    """What the looks in the window say; where there are none in it, the newest one within an hour."""
    earlier = sorted((one for one in samples if now.at - one.at >= _SHORTEST), key=lambda one: one.at)
    used = [one for one in earlier if now.at - one.at <= window] or earlier[-1:]
    if not used or now.at - used[0].at > _OLDEST:
        return Rates()
    series = [*used, now]
    shares = _shares([(one.at - used[0].at).total_seconds() for one in series])
    lags = [one.lags for one in series]
    growth = _slope(shares, [sum(one.values()) for one in lags])
    incoming = max(0.0, _slope(shares, [sum(one.ends[at] for at in one.lags) for one in series]))
    everywhere = lags[-1].keys() & set.intersection(*(set(one) for one in lags))
    partitions = {at: _slope(shares, [one[at] for one in lags]) for at in everywhere}
    return Rates(growth, incoming, max(0.0, incoming - growth), partitions)


def _shares(moments: Sequence[float]) -> list[float]:
    """What each value counts in the slope of the line through all of them, by least squares."""
    centre = fmean(moments)
    spread = sum((one - centre) ** 2 for one in moments)
    return [(one - centre) / spread for one in moments]


def _slope(shares: Sequence[float], values: Sequence[int]) -> float:
    return round(sum(share * value for share, value in zip(shares, values, strict=True)), 6)

"""What a pipeline costs on one core, out of the history of its runs. A config and a history enter, numbers leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from penstock.flow.batches import Observed, observed_in, telling
from penstock.flow.cost import Cost

_MOST = 1000
_APART = 6.0
"""By how much the sizes of batches must differ to tell a fixed cost from one for each offset."""


@dataclass(frozen=True)
class Measured:
    """The cost of a batch as it was measured, and on what."""

    fixed: float
    """Seconds of a batch before its first offset and after its last one."""
    per_offset: float
    """Seconds of one core for each offset."""
    batches: int
    first: datetime
    last: datetime
    cores: int
    partitions: int | None
    largest: int
    """The offsets of the largest batch."""
    apart: bool
    """Whether batches of several sizes were seen, so that the two parts could be told apart."""
    record_bytes: float


def measure(entries: Sequence[Mapping[str, Any]]) -> Measured | None:
    """What the batches say that were run on as many cores as the last one; none where there are none.

    Flow control asks what the next batch costs, and trusts the newest ones. Here large batches are foreseen, maybe from
    the history of a stream that keeps up: so all of them count, and the large ones tell the cost of a row.
    """
    runs = list(_with_cores(entries))
    cores, partitions = runs[-1][1:] if runs else (1, None)
    seen = [
        _Sample(datetime.fromisoformat(entry["at"]), batch, max(1.0, batch.offsets * _busiest(entry, cores)))
        for entry, had, _ in runs[-_MOST:]
        if had == cores
        for batch in telling(observed_in([entry]))
    ]
    if not seen:
        return None
    cost, apart = _cost(seen)
    offsets = [one.batch.offsets for one in seen]
    return Measured(
        fixed=cost.fixed,
        per_offset=cost.per_offset,
        batches=len(seen),
        first=seen[0].at,
        last=seen[-1].at,
        cores=cores,
        partitions=partitions,
        largest=max(offsets),
        apart=apart,
        record_bytes=sum(one.batch.bytes_in for one in seen) / sum(offsets),
    )


@dataclass(frozen=True)
class _Sample:
    at: datetime
    batch: Observed
    share: float
    """The offsets of its busiest core: a batch is as long as that one is at work."""


def _cost(seen: Sequence[_Sample]) -> tuple[Cost, bool]:
    """The line through a large batch and a small one as they usually are, and whether there were both."""
    most = max(one.share for one in seen)
    large, small = _usual(seen, most / 2, most), _usual(seen, 0.0, most / _APART)
    assert large is not None, "the largest is one of them"
    if small is not None and large[1] > small[1]:
        each = (large[1] - small[1]) / (large[0] - small[0])
        return Cost(max(0.0, small[1] - each * small[0]), each), True
    return Cost(0.0, large[1] / large[0]), False


def _usual(seen: Sequence[_Sample], least: float, most: float) -> tuple[float, float] | None:
    """The median offsets and seconds of the batches of such a size: a hiccup or a first batch does not move them."""
    chosen = [one for one in seen if least <= one.share <= most]
    return (median(one.share for one in chosen), median(one.batch.seconds for one in chosen)) if chosen else None


def _with_cores(entries: Iterable[Mapping[str, Any]]) -> Iterable[tuple[Mapping[str, Any], int, int | None]]:
    cores: int | None = None
    partitions: int | None = None
    for entry in entries:
        if entry["event"] == "started":
            cores, partitions = entry.get("cores") or None, entry.get("partitions") or None
        elif entry["event"] == "batch":
            yield entry, cores or max(1, int(entry.get("slots") or 1)), partitions


def _busiest(entry: Mapping[str, Any], cores: int) -> float:
    """The share of the rows that the busiest core had."""
    rows = [count for count in entry.get("slot_rows") or () if isinstance(count, int)]
    if sum(rows) > 0:
        return max(1 / cores, max(rows) / sum(rows))
    return 1 / max(1, min(cores, int(entry.get("slots") or cores)))

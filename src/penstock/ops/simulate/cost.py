"""What a pipeline costs on one core, out of the history of its runs. A config and a history enter, numbers leave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from penstock.flow.cost import Cost, Observed, line_through, telling
from penstock.metrics import BatchMetrics
from penstock.metrics.history import Entry, RunStarted
from penstock.supervision.flow_control import observed

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


def measure(entries: Iterable[Entry]) -> Measured | None:
    """What the batches say that were run on as many cores as the last one; none where there are none.

    Flow control asks what the next batch costs, and trusts the newest ones. Here large batches are foreseen, maybe from
    the history of a stream that keeps up: so all of them count, and the large ones tell the cost of a row.
    """
    runs = list(_with_cores(entries))
    cores, partitions = runs[-1][1:] if runs else (1, None)
    same = [batch for batch, had, _ in runs[-_MOST:] if had == cores and telling([observed(batch)])]
    if not same:
        return None
    cost, apart = _cost([(max(1.0, one.offsets * _busiest(one, cores)), one.seconds) for one in same])
    offsets = [one.offsets for one in same]
    return Measured(
        fixed=cost.fixed,
        per_offset=cost.per_offset,
        batches=len(same),
        first=same[0].finished_at,
        last=same[-1].finished_at,
        cores=cores,
        partitions=partitions,
        largest=max(offsets),
        apart=apart,
        record_bytes=sum(one.bytes_in for one in same) / sum(offsets),
    )


def _cost(seen: Sequence[tuple[float, float]]) -> tuple[Cost, bool]:
    """The line through a large batch and a small one as they usually are, and whether there were both.

    Of each batch the offsets of its busiest core, which is at work as long as the batch is, and its seconds.
    """
    most = max(offsets for offsets, _ in seen)
    large = _usual([one for one in seen if one[0] >= most / 2])
    small = [one for one in seen if one[0] <= most / _APART]
    cost, _ = line_through([large, _usual(small)] if small else [large])
    if small and cost.per_offset > 0:
        return cost, True
    return Cost(0.0, large.seconds / large.offsets), False


def _usual(batches: Sequence[tuple[float, float]]) -> Observed:
    """The median of both: a hiccup or a first batch does not move it."""
    offsets = round(median(offsets for offsets, _ in batches))
    return Observed(0, offsets, offsets, median(seconds for _, seconds in batches), 0, 0, 0)


def _with_cores(entries: Iterable[Entry]) -> Iterator[tuple[BatchMetrics, int, int | None]]:
    run = RunStarted()
    for entry in entries:
        match entry.fact:
            case RunStarted():
                run = entry.fact
            case BatchMetrics() as batch:
                yield batch, run.cores or max(1, batch.slots), run.partitions


def _busiest(batch: BatchMetrics, cores: int) -> float:
    """The share of the rows that the busiest core had."""
    if (total := sum(batch.slot_rows)) > 0:
        return max(1 / cores, max(batch.slot_rows) / total)
    return 1 / max(1, min(cores, batch.slots or cores))

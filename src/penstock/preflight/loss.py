"""Data loss, found before a row is read: what a batch asks for against what the brokers still have.

Holes inside a log (compaction, aborted transactions) are no loss. A log start that has passed the batch's
start, a log end that moved back, or a partition that is gone is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.checkpoint import Offsets, ranges_between
from penstock.errors import TerminalError
from penstock.kafka import LogBounds
from penstock.model import OffsetRange, TopicPartition
from penstock.quarantine import Gap


@dataclass(frozen=True)
class BatchRanges:
    """What a batch covers by the checkpoint, and the gaps that the checkpoint itself shows."""

    ranges: tuple[OffsetRange, ...]
    gaps: tuple[Gap, ...]
    seen: frozenset[TopicPartition] = frozenset()
    """The partitions that batches before this one have read."""


def ranges_of_batch(starts: Offsets, ends: Offsets, recreated: frozenset[str] = frozenset()) -> BatchRanges:
    """The batch's ranges. A log that moved back, a topic made again, or a partition that vanished, is a gap."""
    anew = [at for at in sorted(starts.keys() & ends.keys()) if at.topic in recreated and starts[at]]
    ranges, backwards = ranges_between({at: 0 if at in anew else start for at, start in starts.items()}, ends)
    again = [Gap(at.topic, at.partition, starts[at], None, "the topic was re-created") for at in anew]
    gaps = again + [
        Gap(at.topic, at.partition, start, None, f"the log end moved back to {end}: was the topic re-created?")
        for at, start, end in backwards
    ]
    ranges += [OffsetRange(at.topic, at.partition, 0, end) for at, _, end in backwards]
    gaps += [
        Gap(at.topic, at.partition, starts[at], None, "the partition is gone")
        for at in sorted(starts.keys() - ends.keys())
    ]
    # What has other records under the same offsets by now is read as if for the first time.
    anew_or_back = {*anew, *(at for at, _, _ in backwards)}
    return BatchRanges(tuple(sorted(ranges)), tuple(gaps), frozenset(starts.keys() - anew_or_back))


def clip_to_log(batch: BatchRanges, bounds: Mapping[TopicPartition, LogBounds]) -> tuple[list[OffsetRange], list[Gap]]:
    """What can still be read of the batch, and every gap."""
    readable, gaps = [], list(batch.gaps)
    moved_back = {(g.topic, g.partition) for g in batch.gaps}
    for wanted in batch.ranges:
        if not len(wanted):
            continue
        log = bounds.get(wanted.topic_partition)
        if log is None:
            gaps.append(_gap(wanted, wanted.start, wanted.end, "the partition is gone"))
            continue
        start = min(max(wanted.start, log.start), wanted.end)
        end = max(start, min(wanted.end, log.end))
        if start > wanted.start and (wanted.topic, wanted.partition) not in moved_back:
            gaps.append(_gap(wanted, wanted.start, start, f"the log now starts at {log.start}: retention passed"))
        if end < wanted.end:
            gaps.append(_gap(wanted, end, wanted.end, f"the log now ends at {log.end}"))
        if start < end:
            readable.append(OffsetRange(wanted.topic, wanted.partition, start, end))
    return readable, gaps


def data_loss(gaps: Sequence[Gap], batch_id: int) -> TerminalError:
    """The error for `on_data_loss: fail`: every missing range, exactly."""
    return TerminalError(
        "DATA_LOSS",
        f"batch {batch_id}: {len(gaps)} range{'s' if len(gaps) > 1 else ''} cannot be read any more",
        context={f"{g.topic}[{g.partition}] {_span(g)}": g.reason for g in gaps},
        hint="restore the data, or set `on_data_loss: record` to go on and have each gap written down",
    )


def _span(gap: Gap) -> str:
    return f"{gap.start}-{gap.end}" if gap.end is not None else f"from {gap.start}"


def _gap(wanted: OffsetRange, start: int, end: int, reason: str) -> Gap:
    return Gap(wanted.topic, wanted.partition, start, end, reason)

"""What a batch covers: its ranges by Spark's log or by a list made before the run, and what the topics still have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.checkpoint import Offsets, SparkCheckpoint
from penstock.errors import TransientError
from penstock.kafka import Cluster, LogBounds
from penstock.model import BatchToken, OffsetRange, TopicPartition, lags_of
from penstock.preflight.loss import BatchRanges, clip_to_log, data_loss, ranges_of_batch
from penstock.quarantine import Gap

Bounds = dict[TopicPartition, LogBounds]
_RECENT_SECONDS = 5.0
END_PATIENCE = 120.0
"""How long a log may end before the end of the batch until this counts as data loss."""


@dataclass
class LoggedBatches:
    """The batches that Spark writes ahead into a checkpoint."""

    checkpoint: SparkCheckpoint
    cluster: Cluster
    recreated: frozenset[str] = field(default=frozenset())
    """Topics that were re-created since the checkpoint was made: the next batch starts at their beginning."""
    gone: frozenset[str] = field(default=frozenset())
    """Topics that were re-created during a batch that a sink already has: the rest of the batch is lost."""
    _starts: Offsets = field(default_factory=dict)
    _asked_at: float = 0.0

    def ranges(self, batch_id: int) -> BatchRanges:
        """The ranges of a batch, from its offsets and those of the previous one."""
        found = ranges_of_batch(self.checkpoint.starts(batch_id), self.checkpoint.ends(batch_id), self.recreated)
        return found if batch_id else replace(found, seen=frozenset())

    def bounds(self, partitions: Iterable[TopicPartition]) -> Bounds:
        """The current log bounds of the batch's topics."""
        bounds = self.cluster.bounds(at for at in partitions if at.topic not in self.gone)
        self._starts, self._asked_at = {at: log.start for at, log in bounds.items()}, time.monotonic()
        return bounds

    def recent_bounds(self, partitions: Iterable[TopicPartition]) -> Bounds:
        """The current log ends, with recent log starts: a reader notices a later start.

        That halves the requests, which for a thousand partitions are a good part of a short batch.
        """
        wanted = [at for at in partitions if at.topic not in self.gone]
        if time.monotonic() - self._asked_at < _RECENT_SECONDS and all(at in self._starts for at in wanted):
            ends = self.cluster.ends(wanted)
            if all(at in ends and ends[at] >= self._starts[at] for at in wanted):
                return {at: LogBounds(self._starts[at], ends[at]) for at in wanted}
        return self.bounds(wanted)

    def lags(self, token: BatchToken, bounds: Mapping[TopicPartition, LogBounds]) -> Offsets:
        """What the logs hold after the batch."""
        return lags_of({at: log.end for at, log in bounds.items()}, token.ends)


@dataclass(frozen=True)
class GivenBatches:
    """Batches that are known before the run starts. Without a cluster, all records are available."""

    batches: Sequence[tuple[OffsetRange, ...]]
    cluster: Cluster | None
    first: int = 0
    """The id of the first batch."""

    def ranges(self, batch_id: int) -> BatchRanges:
        """As given."""
        return BatchRanges(tuple(sorted(self.batches[batch_id - self.first])), ())

    def bounds(self, partitions: Iterable[TopicPartition]) -> Bounds:
        """The log bounds from the brokers, or exactly the requested ranges."""
        if self.cluster is not None:
            return self.cluster.bounds(partitions)
        ends = {r.topic_partition: r.end for batch in self.batches for r in batch}
        return {at: LogBounds(0, ends[at]) for at in partitions}

    def recent_bounds(self, partitions: Iterable[TopicPartition]) -> Bounds:
        """The same."""
        return self.bounds(partitions)

    def lags(self, token: BatchToken, bounds: Mapping[TopicPartition, LogBounds]) -> Offsets:
        """The batches that follow."""
        left: Offsets = {}
        for one in (r for batch in self.batches[token.batch_id - self.first + 1 :] for r in batch):
            left[one.topic_partition] = left.get(one.topic_partition, 0) + len(one)
        return left


Batches = LoggedBatches | GivenBatches


@dataclass
class BatchLog:
    """The topics under one batch: what they still have of it."""

    batches: Batches
    token: BatchToken
    covered: BatchRanges
    check_topics: Callable[[BatchToken], object]
    """Raises if a topic was re-created since the batch was planned."""
    stopped: Callable[[float], bool]
    """Waits for this many seconds; returns true if the run was asked to stop."""
    records_gaps: bool
    """Whether lost records are recorded as gaps; otherwise they stop the run."""

    def __post_init__(self) -> None:
        self._recent: Bounds = self.batches.recent_bounds(self.token.ends)
        self.lags = self.batches.lags(self.token, self._recent)

    def readable(self, *, recent: bool = False) -> tuple[list[OffsetRange], list[Gap]]:
        """The readable ranges of the batch, and every gap; from the latest known bounds if `recent`."""
        readable, gaps = clip_to_log(self.covered, self._bounds(self._recent if recent else None))
        if gaps and not self.records_gaps:
            raise data_loss(gaps, self.token.batch_id)
        return readable, gaps

    def _bounds(self, bounds: Bounds | None = None) -> Bounds:
        """The log bounds, known or current. An end before the batch's own end is checked repeatedly: after a broker
        failure, the next leader of a partition learns the high watermark with a delay, and existing records would count
        as lost.

        A stop request ends the wait, and the batch with it.
        """
        token, deadline = self.token, time.monotonic() + END_PATIENCE
        while True:
            bounds = self.batches.bounds(token.ends) if bounds is None else bounds
            short = {at: end for at, end in token.ends.items() if at in bounds and bounds[at].end < end}
            if not short or time.monotonic() > deadline:
                return bounds
            self.check_topics(token)
            if self.stopped(0.5):
                raise TransientError(
                    "LOG_ENDS_EARLY",
                    f"batch {token.batch_id}: the log ends before the end of the batch, and the run was asked to stop",
                    context={str(at): f"ends at {bounds[at].end}, the batch at {end}" for at, end in short.items()},
                    hint="the next run checks again",
                )
            bounds = None


def grown(before: Sequence[Gap], now: Sequence[Gap]) -> list[Gap]:
    """What of the gaps of a batch was not a gap yet when they were last looked for."""
    ends = {(gap.topic, gap.partition, gap.start): gap.end for gap in before}
    found = []
    for gap in now:
        end = ends.get((gap.topic, gap.partition, gap.start), gap.start)
        if end is not None and end != gap.end:
            found.append(replace(gap, start=end))
    return found

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
        """What a batch covers, by its offsets and those of the one before."""
        found = ranges_of_batch(self.checkpoint.starts(batch_id), self.checkpoint.ends(batch_id), self.recreated)
        return found if batch_id else replace(found, seen=frozenset())

    def bounds(self, partitions: Iterable[TopicPartition]) -> Bounds:
        """Where the logs begin and end now, of the topics that the batch is of."""
        bounds = self.cluster.bounds(at for at in partitions if at.topic not in self.gone)
        self._starts, self._asked_at = {at: log.start for at, log in bounds.items()}, time.monotonic()
        return bounds

    def recent_bounds(self, partitions: Iterable[TopicPartition]) -> Bounds:
        """Where the logs end now, and began a moment ago: a reader notices where they begin later by now.

        That is half of the questions, which for a thousand partitions is a good part of a short batch.
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
    """Batches that are known before the run begins. Without a cluster all of them are there."""

    batches: Sequence[tuple[OffsetRange, ...]]
    cluster: Cluster | None
    first: int = 0
    """The id of the first batch."""

    def ranges(self, batch_id: int) -> BatchRanges:
        """As given."""
        return BatchRanges(tuple(sorted(self.batches[batch_id - self.first])), ())

    def bounds(self, partitions: Iterable[TopicPartition]) -> Bounds:
        """As the brokers say, or all that is asked for."""
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
        """What can still be read of the batch, and every gap; by what was asked a moment ago if it is `recent`."""
        readable, gaps = clip_to_log(self.covered, self._bounds(self._recent if recent else None))
        if gaps and not self.records_gaps:
            raise data_loss(gaps, self.token.batch_id)
        return readable, gaps

    def _bounds(self, bounds: Bounds | None = None) -> Bounds:
        """Where the logs begin and end, asked before or now. An end before the batch's own is not believed at once.

        When a broker is lost, the next leader of a partition learns a little later how far readers may go. Taken at
        its word, records that are there would count as lost. A request to stop ends the wait, and the batch with it.
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

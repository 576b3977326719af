"""What a diagnosis goes by: the run's history, the checkpoint, the brokers, the tables, the registries, the file.

A value that was collected once. What could not be looked at is absent, and a cause that needs it is not found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from penstock.checkpoint import Offsets
from penstock.checkpoint.presence import RunStatus
from penstock.config import PipelineConfig
from penstock.kafka import LogBounds
from penstock.metrics import BatchMetrics
from penstock.metrics.history import RetryNoted, StateKept
from penstock.model import TopicPartition, lag_of
from penstock.model.upkeep import TableFigures
from penstock.ops.diagnosis.figures import middle
from penstock.ops.simulate.splitting import whole_partitions

_FEWEST = 2
_LONGER = 1.5


@dataclass(frozen=True)
class CheckpointFacts:
    """How far the checkpoint is."""

    begun: int | None = None
    begun_at: datetime | None = None
    committed: int | None = None
    position: Offsets = field(default_factory=dict)
    """Where the next batch begins."""
    maintained_at: datetime | None = None

    @property
    def open_batch(self) -> int | None:
        """The batch that has begun and is not committed."""
        if self.begun is None or (self.committed is not None and self.committed >= self.begun):
            return None
        return self.begun


@dataclass(frozen=True)
class BrokerFacts:
    """What the brokers say, and how long one answer took."""

    bounds: Mapping[TopicPartition, LogBounds]
    seconds: float


@dataclass(frozen=True)
class TableFacts:
    """A table that the pipeline writes."""

    name: str
    target: str
    figures: TableFigures


@dataclass(frozen=True)
class RegistryFacts:
    """A registry, and how long one answer took."""

    url: str
    seconds: float


@dataclass(frozen=True)
class Evidence:
    """Everything that was seen at one moment."""

    config: PipelineConfig
    at: datetime
    run: RunStatus = field(default_factory=lambda: RunStatus("none", None, None))
    batches: tuple[BatchMetrics, ...] = ()
    """The last ones, oldest first."""
    before: tuple[BatchMetrics, ...] = ()
    """Those before them, as far as the history goes back."""
    states: tuple[StateKept, ...] = ()
    retries: tuple[RetryNoted, ...] = ()
    arrived: Mapping[TopicPartition, int] = field(default_factory=dict)
    """How much each log grew during the last batches."""
    checkpoint: CheckpointFacts = field(default_factory=CheckpointFacts)
    brokers: BrokerFacts | None = None
    waiting_since: datetime | None = None
    """The time of the oldest record that waits; only looked for where nobody reads."""
    tables: tuple[TableFacts, ...] = ()
    registries: tuple[RegistryFacts, ...] = ()
    cores: int | None = None
    """How many tasks can run side by side."""

    @property
    def file(self) -> str:
        """The pipeline file as a command names it."""
        return str(self.config.file or "FILE")

    @cached_property
    def lags(self) -> dict[TopicPartition, int]:
        """The offsets that wait in each partition now; empty where the brokers could not be asked."""
        bounds = self.brokers.bounds if self.brokers is not None else {}
        return {at: lag_of(log.end, self.next_offset(at)) for at, log in bounds.items()}

    def next_offset(self, at: TopicPartition) -> int:
        """What is read next of a partition that the brokers have."""
        assert self.brokers is not None
        log = self.brokers.bounds[at]
        # A first run that begins elsewhere than at the beginning has nothing waiting that anybody could count.
        first = log.start if self.checkpoint.begun is not None or self.config.source.start == "earliest" else log.end
        return self.checkpoint.position.get(at, first)

    @property
    def lag(self) -> int:
        """The offsets that wait: now, or as the last batch saw them."""
        return sum(self.lags.values()) if self.brokers is not None else self.batches[-1].lag if self.batches else 0

    @cached_property
    def behind(self) -> bool:
        """Whether more waits than a batch takes, and did so before: a pipeline that keeps up is not behind."""
        if len(self.batches) < _FEWEST:
            return False
        last = self.batches[-1]
        return all(batch.lag > 0 for batch in self.batches[-_FEWEST:]) and min(last.lag, self.lag) >= last.offsets

    @property
    def slow(self) -> bool:
        """Whether it is behind, or keeps up with batches that take longer than the file asks for."""
        return self.behind or self.typical_seconds > _LONGER * self.config.flow.target_batch.total_seconds()

    @property
    def seconds(self) -> float:
        """The batches' own time in all."""
        return sum(batch.seconds for batch in self.batches)

    @property
    def cycle(self) -> float:
        """The time of the batches and between them."""
        return sum(batch.cycle for batch in self.batches)

    @property
    def input_rate(self) -> float | None:
        """Offsets a second that came while the last batches ran."""
        span, taken = self._span, sum(batch.offsets for batch in self.batches[1:])
        return (taken + self.batches[-1].lag - self.batches[0].lag) / span if span else None

    @property
    def processing_rate(self) -> float | None:
        """Offsets a second that the last batches took."""
        span, taken = self._span, sum(batch.offsets for batch in self.batches[1:])
        return taken / span if span else None

    @property
    def _span(self) -> float:
        if len(self.batches) < _FEWEST:
            return 0.0
        return (self.batches[-1].began_at - self.batches[0].began_at).total_seconds()

    @property
    def typical_seconds(self) -> float:
        """How long a batch takes."""
        return middle(batch.seconds for batch in self.batches)

    @property
    def last_batches(self) -> str:
        """For the evidence: which batches it is about."""
        first, last = self.batches[0], self.batches[-1]
        one = first.batch_id == last.batch_id
        return f"batch {last.batch_id}" if one else f"batches {first.batch_id} to {last.batch_id}"

    @cached_property
    def whole_partitions(self) -> str | None:
        """Why one task reads a partition whole, where it does; elsewhere large ones are split."""
        return whole_partitions(self.config)

    def age(self, when: datetime) -> timedelta:
        """How long ago something was."""
        return self.at - when

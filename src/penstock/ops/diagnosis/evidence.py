"""The evidence of a diagnosis: the run's history, the checkpoint, the brokers, the tables, the registries, the file.

A value that was collected once. Unavailable evidence is absent, and a cause that needs it is not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from statistics import median
from typing import Any

from penstock.checkpoint import Offsets
from penstock.checkpoint.logs import open_batch
from penstock.checkpoint.presence import RunStatus
from penstock.config import PipelineConfig
from penstock.kafka import LogBounds
from penstock.metrics import BatchMetrics
from penstock.metrics.history import Entry, LagNoted, RetryNoted, RunStarted, StateKept, from_lists
from penstock.model import TopicPartition, lag_of
from penstock.model.upkeep import TableFigures
from penstock.ops.simulate import whole_partitions
from penstock.ops.snapshot import Brokers

_FEWEST = 2
_LONGER = 1.5


@dataclass(frozen=True)
class CheckpointFacts:
    """How far the checkpoint is."""

    begun: int | None = None
    begun_at: datetime | None = None
    committed: int | None = None
    position: Offsets = field(default_factory=dict)
    """The start of the next batch."""
    maintained_at: datetime | None = None

    @property
    def open_batch(self) -> int | None:
        """The open batch."""
        return open_batch(self.begun, self.committed)


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
    """The last batches, oldest first."""
    before: tuple[BatchMetrics, ...] = ()
    """The batches before them, as far as the history goes back."""
    states: tuple[StateKept, ...] = ()
    retries: tuple[RetryNoted, ...] = ()
    arrived: Mapping[TopicPartition, int] = field(default_factory=dict)
    """How much each log grew during the last batches."""
    checkpoint: CheckpointFacts = field(default_factory=CheckpointFacts)
    brokers: Brokers | None = None
    """What the brokers reported, if reachable."""
    waiting_since: datetime | None = None
    """The time of the oldest unread record; only determined while no run is active."""
    tables: tuple[TableFacts, ...] = ()
    registries: tuple[RegistryFacts, ...] = ()
    cores: int | None = None
    """How many tasks can run in parallel."""
    unreachable: tuple[str, ...] = ()
    """What could not be checked, and why."""

    @property
    def file(self) -> str:
        """The pipeline file as a command names it."""
        return str(self.config.file or "FILE")

    @property
    def bounds(self) -> Mapping[TopicPartition, LogBounds]:
        """The bounds of each log; empty if the brokers were unreachable."""
        return (self.brokers.bounds if self.brokers is not None else None) or {}

    @cached_property
    def lags(self) -> dict[TopicPartition, int]:
        """The current lag of each partition; empty if the brokers were unreachable."""
        return {at: lag_of(log.end, self.next_offset(at)) for at, log in self.bounds.items()}

    def next_offset(self, at: TopicPartition) -> int:
        """What is read next of a partition that the brokers have."""
        return self.checkpoint.position.get(at, self.bounds[at].start)

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
        """Whether it is behind, or keeps up only with batches longer than configured."""
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
        """Why a partition is read by one task, if so; otherwise large ones are split."""
        return whole_partitions(self.config)

    def age(self, when: datetime) -> timedelta:
        """How long ago something was."""
        return self.at - when


# The result of a diagnosis: causes, most likely first, each with its evidence and the one thing to change.


@dataclass(frozen=True)
class Cause:
    """One likely reason why a pipeline is slow or stuck."""

    code: str
    weight: float
    """From 0 to 1: how much of the problem it explains. What is stuck comes first, general causes last."""
    summary: str
    evidence: tuple[str, ...]
    """The figures, with both sides of each."""
    change: str
    """The one thing to change: a key of the file with its value, or a command."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "code": self.code,
            "weight": round(self.weight, 2),
            "summary": self.summary,
            "evidence": list(self.evidence),
            "change": self.change,
        }


@dataclass(frozen=True)
class Diagnosis:
    """What was found at one moment. Without causes: what was checked, and its state."""

    pipeline: str
    at: datetime
    causes: tuple[Cause, ...]
    looked: tuple[str, ...] = field(default=())
    notes: tuple[str, ...] = field(default=())
    """What could not be checked, and other notes for the reader."""
    idle: str | None = None
    """Since when a pipeline that ended cleanly has not run, and what waits; None while it runs, or if this is a cause.
    """

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "pipeline": self.pipeline,
            "at": self.at.isoformat(),
            "causes": [cause.as_json() for cause in self.causes],
            "idle": self.idle,
            "looked": list(self.looked),
            "notes": list(self.notes),
        }


# A run's history as far as a diagnosis needs it: its last batches, what its steps remember, what came in.

MOST_BATCHES = 20
_FEW = 3


def wall_seconds(batch: BatchMetrics, phase: str, cores: int | None) -> float:
    """The share of a batch's time that its parallel tasks spent on a phase."""
    slots = max(1, len(batch.slot_seconds))
    return batch.phases.get(phase, 0.0) / min(slots, cores or slots)


def sink_seconds(batch: BatchMetrics, sink: str, cores: int | None) -> float:
    """The part of a batch's own time that one sink took, staging and committing."""
    return wall_seconds(batch, f"task_stage:{sink}", cores) + batch.phases.get(f"commit:{sink}", 0.0)


def batches_in(entries: Iterable[Entry]) -> list[BatchMetrics]:
    """The non-empty batches, oldest first; skipped ones are ignored."""
    found = (entry.fact for entry in entries if isinstance(entry.fact, BatchMetrics))
    return [batch for batch in found if not batch.skipped and (batch.offsets or batch.rows_in)]


def recent_batches(entries: Sequence[Entry]) -> tuple[BatchMetrics, ...]:
    """The last batches of the last run without its first, which warms up; of the runs before it where it had few."""
    last = max((at for at, entry in enumerate(entries) if isinstance(entry.fact, RunStarted)), default=0)
    own = batches_in(entries[last:])
    if len(own) > _FEW:
        own = own[1:]
    elif len(own) < _FEW:
        own = batches_in(entries)[-_FEW:]
    return tuple(own[-MOST_BATCHES:])


def states_in(entries: Iterable[Entry]) -> tuple[StateKept, ...]:
    """The state after each batch; if a batch was noted twice, the last entry counts."""
    found = {entry.fact.batch_id: entry.fact for entry in entries if isinstance(entry.fact, StateKept)}
    return tuple(found[batch_id] for batch_id in sorted(found))


def input_in(entries: Iterable[Entry], since: datetime) -> dict[TopicPartition, int]:
    """How many offsets each partition grew by, from the first look at the log ends since then to the last."""
    looks = [entry.fact.ends for entry in entries if isinstance(entry.fact, LagNoted) and entry.at >= since]
    if len(looks) < 2:
        return {}
    first, last = from_lists(looks[0]), from_lists(looks[-1])
    return {at: end - first[at] for at, end in last.items() if at in first}


def middle(figures: Iterable[float]) -> float:
    """The median; 0 of nothing."""
    found = list(figures)
    return median(found) if found else 0.0

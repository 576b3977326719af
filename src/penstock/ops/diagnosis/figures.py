"""A run's history as far as a diagnosis needs it: its last batches, what its steps remember, what came in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from statistics import median

from penstock.metrics import BatchMetrics
from penstock.metrics.history import Entry, LagNoted, RunStarted, StateKept, from_lists
from penstock.model import TopicPartition

MOST_BATCHES = 20
_FEW = 3


def wall_seconds(batch: BatchMetrics, phase: str, cores: int | None) -> float:
    """The part of a batch's own time that its tasks, side by side, spent on a phase."""
    slots = max(1, len(batch.slot_seconds))
    return batch.phases.get(phase, 0.0) / min(slots, cores or slots)


def sink_seconds(batch: BatchMetrics, sink: str, cores: int | None) -> float:
    """The part of a batch's own time that one sink took, staging and committing."""
    return wall_seconds(batch, f"task_stage:{sink}", cores) + batch.phases.get(f"commit:{sink}", 0.0)


def batches_in(entries: Iterable[Entry]) -> list[BatchMetrics]:
    """The batches with anything in them, oldest first; one that was only skipped tells nothing."""
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
    """What was remembered, batch by batch; of a batch that was told of twice the last."""
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

"""From evidence to a ranked list. A cause is a function of the evidence; none knows of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.config import PipelineConfig
from penstock.ops.diagnosis.cause import Cause, Diagnosis
from penstock.ops.diagnosis.collecting import Collected, collect
from penstock.ops.diagnosis.evidence import Evidence
from penstock.ops.diagnosis.progress import batch_stuck, cap_low, idle, input_above_rate, not_running, trigger_long
from penstock.ops.diagnosis.resources import (
    few_partitions,
    gc_pressure,
    hot_partition,
    skewed_keys,
    small_files,
    state_grows,
)
from penstock.ops.diagnosis.services import quarantine_storm, slow_broker, slow_registry, slow_sink
from penstock.wording import span

CAUSES: Sequence[Callable[[Evidence], Cause | None]] = (
    not_running,
    batch_stuck,
    quarantine_storm,
    slow_sink,
    slow_broker,
    slow_registry,
    gc_pressure,
    trigger_long,
    cap_low,
    skewed_keys,
    hot_partition,
    few_partitions,
    state_grows,
    small_files,
    input_above_rate,
)
"""In the order in which equally weighty ones are told."""


def diagnose(config: PipelineConfig) -> Diagnosis:
    """Look at everything about a pipeline and say why it is slow or stuck; no causes where it is neither."""
    return weigh(collect(config))


def weigh(looked: Collected) -> Diagnosis:
    """The causes that the evidence shows, the weightiest first."""
    evidence = looked.evidence
    found = [cause for cause in (find(evidence) for find in CAUSES) if cause is not None]
    ranked = tuple(sorted(found, key=lambda cause: -cause.weight))
    notes = (*looked.notes, *_notes(evidence))
    return Diagnosis(evidence.config.name, evidence.at, ranked, looked.looked, notes, idle(evidence))


def _notes(evidence: Evidence) -> list[str]:
    """How far the evidence carries."""
    if not evidence.batches:
        return ["the history has no batch yet: what only batches tell is not known"]
    if not evidence.run.running:
        ago = span(evidence.age(evidence.batches[-1].finished_at).total_seconds())
        return [f"what the batches tell is {ago} old"]
    processing, came = evidence.processing_rate, evidence.input_rate
    if not evidence.behind or not processing or came is None:
        return []
    if processing <= came:
        return [f"it is {evidence.lag:,} offsets behind and does not catch up"]
    needed = evidence.lag / (processing - came)
    return [f"it is {evidence.lag:,} offsets behind and catches up: at this rate in {span(needed)}"]

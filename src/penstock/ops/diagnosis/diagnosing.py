"""From evidence to a ranked list. A cause is a function of the evidence; none knows of the others."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from penstock.assembly.reaching import settings_of, storage_of
from penstock.assembly.schemas import registry_settings
from penstock.assembly.targets import build_targets
from penstock.checkpoint.presence import find_run
from penstock.config import EncodeConfig, KafkaSinkConfig, PipelineConfig, RegistryConfig, flows, reveal
from penstock.kafka.ages import first_unread
from penstock.metrics import BatchMetrics
from penstock.metrics.history import Entry, LagNoted, RetryNoted, RunStarted, StateKept, history_of
from penstock.ops.diagnosis.evidence import (
    Cause,
    CheckpointFacts,
    Diagnosis,
    Evidence,
    RegistryFacts,
    TableFacts,
    batches_in,
    input_in,
    recent_batches,
    states_in,
)
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
from penstock.ops.snapshot import Attempts, Snapshot, ask_brokers, look, place_of
from penstock.registry.exchange import Exchange
from penstock.supervision.upkeep import tables_of
from penstock.wording import counted, span

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


def diagnose(config: PipelineConfig, seen: Snapshot | None = None) -> Diagnosis:
    """Look at everything about a pipeline and say why it is slow or stuck; no causes where it is neither.

    A snapshot that was just taken, with the brokers' time to answer, is not taken again.
    """
    return weigh(collect(config, seen))


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


# Collects the evidence: every place is looked at by itself, side by side, with no JVM and with little patience.

_REGISTRY_SECONDS = 3.0
_AGE_SECONDS = 2.0


@dataclass(frozen=True)
class Collected:
    """The evidence, in words what was looked at, and what could not be."""

    evidence: Evidence
    looked: tuple[str, ...]
    notes: tuple[str, ...]


def collect(config: PipelineConfig, seen: Snapshot | None = None) -> Collected:
    """Look everywhere."""
    where, attempt = _Look(config), Attempts()
    with ThreadPoolExecutor(3) as threads:
        asking = partial(ask_brokers, timed=True)
        looked = threads.submit(attempt, "the checkpoint", lambda: seen or look(config, brokers=asking))
        tables = threads.submit(attempt, "the tables", lambda: where.tables(attempt))
        registries = threads.submit(attempt, "the registry", where.registries)
        history = attempt("the history", where.history) or []
    seen = looked.result()
    evidence = Evidence(config, datetime.now(UTC), tables=tables.result() or (), registries=registries.result() or ())
    if seen is None:
        run = attempt("the run", lambda: find_run(config.checkpoint, storage_of(config)))
        evidence = replace(evidence, run=run or evidence.run)
    else:
        if (error := seen.brokers.error) is not None:
            attempt.failed.append(("the brokers", error.code, error.line))
        evidence = replace(
            evidence,
            run=seen.run,
            brokers=seen.brokers if seen.brokers.bounds is not None else None,
            checkpoint=attempt("the checkpoint", lambda: _checkpoint_facts(seen)) or CheckpointFacts(),
        )
    evidence = _of_history(evidence, history)
    if not evidence.run.running:
        evidence = replace(evidence, waiting_since=attempt("what waits", lambda: where.waiting_since(evidence)))
    notes = tuple(f"{what} could not be looked at: {code} {why}" for what, code, why in attempt.failed)
    return Collected(evidence, tuple(_looked(evidence)), notes)


def _checkpoint_facts(seen: Snapshot) -> CheckpointFacts:
    begun = seen.files.begun
    maintained = seen.checkpoint.maintained_at()
    return CheckpointFacts(
        begun=begun,
        begun_at=seen.written_at(f"offsets/{begun}") if begun is not None else None,
        committed=seen.files.committed,
        position=place_of(seen).positions if seen.brokers.bounds else {},
        maintained_at=datetime.fromtimestamp(maintained, UTC) if maintained is not None else None,
    )


class _Look:
    def __init__(self, config: PipelineConfig) -> None:
        self._config = config
        self._settings = settings_of(config.source)

    def history(self) -> list[Entry]:
        return history_of(self._config.checkpoint).read(BatchMetrics, RunStarted, StateKept, RetryNoted, LagNoted)

    def waiting_since(self, evidence: Evidence) -> datetime | None:
        waiting = {at: evidence.next_offset(at) for at, lag in evidence.lags.items() if lag}
        return min(first_unread(self._settings, waiting, _AGE_SECONDS).values(), default=None)

    def tables(self, attempt: Attempts) -> tuple[TableFacts, ...]:
        found = []
        for table in tables_of(self._config, build_targets(self._config, self._settings)):
            figures = attempt(f"the table {table.name}", table.maintenance.figures)
            if figures is not None:
                found.append(TableFacts(table.name, table.target, figures))
        return tuple(found)

    def registries(self) -> tuple[RegistryFacts, ...]:
        return tuple(self._registry(one) for one in _registries(self._config))

    def _registry(self, registry: RegistryConfig) -> RegistryFacts:
        settings = replace(registry_settings(registry), timeout=_REGISTRY_SECONDS, retries=0)
        exchange, began = Exchange(settings), time.perf_counter()
        try:
            exchange.ask("/schemas/types")
        finally:
            exchange.close()
        return RegistryFacts(registry.url, time.perf_counter() - began)


def _registries(config: PipelineConfig) -> list[RegistryConfig]:
    """The registries that the file names, each once."""
    named: list[object] = [value for flow in flows(config) for value, _, _ in flow.decoders]
    named += [getattr(value, "key", None) for value in named]
    for sink in config.sinks:
        if isinstance(sink, KafkaSinkConfig):
            named += [one for one in (sink.value, sink.key) if isinstance(one, EncodeConfig)]
    found = (getattr(one, "registry", None) for one in named)
    return list({one.url: one for one in found if isinstance(one, RegistryConfig)}.values())


def _of_history(evidence: Evidence, entries: Sequence[Entry]) -> Evidence:
    recent = recent_batches(entries)
    first = recent[0].batch_id if recent else 0
    runs = [entry.fact for entry in entries if isinstance(entry.fact, RunStarted)]
    return replace(
        evidence,
        batches=recent,
        before=tuple(batch for batch in batches_in(entries) if batch.batch_id < first),
        states=states_in(entries),
        retries=tuple(entry.fact for entry in entries if isinstance(entry.fact, RetryNoted)),
        arrived=input_in(entries, recent[0].began_at) if recent else {},
        cores=(runs[-1].cores if runs else None) or _cores(evidence),
    )


def _cores(evidence: Evidence) -> int | None:
    """What the file says, where the history does not tell; of a run elsewhere nothing is known."""
    master = reveal(evidence.config.spark).get("spark.master", "local[*]")
    found = re.fullmatch(r"local\[(\d+|\*)\]", master)
    if found is None:
        return None
    here = evidence.run.note is None or evidence.run.note.host == socket.gethostname()
    return int(found[1]) if found[1] != "*" else os.cpu_count() if here else None


def _looked(evidence: Evidence) -> Iterator[str]:
    """What was looked at, a line for each place; shown when no cause is found."""
    if evidence.batches:
        rate = sum(batch.offsets for batch in evidence.batches) / evidence.cycle if evidence.cycle else 0.0
        yield (
            f"history: {evidence.last_batches}, {evidence.typical_seconds:.1f} s each, {rate:,.0f} offsets a second"
            " with the waits between them"
        )
    if evidence.checkpoint.begun is not None:
        done = evidence.checkpoint.committed
        yield f"checkpoint: batch {evidence.checkpoint.begun} begun, {'none' if done is None else done} committed"
    if evidence.brokers is not None:
        yield (
            f"brokers: {counted(len(evidence.bounds), 'partition')}, {evidence.lag:,} offsets wait, "
            f"an answer takes {evidence.brokers.seconds * 1000:.0f} ms"
        )
    for table in evidence.tables:
        yield f"table {table.name}: {counted(table.figures.files, 'file')}, {table.figures.small_files:,} of them small"
    for registry in evidence.registries:
        yield f"registry {registry.url}: an answer takes {registry.seconds * 1000:.0f} ms"

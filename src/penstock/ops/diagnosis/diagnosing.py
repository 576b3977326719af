"""From evidence to a ranked list. A cause is a function of the evidence; none knows of the others."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from penstock.assembly.reaching import settings_of, storage_of
from penstock.assembly.schemas import registry_settings
from penstock.assembly.targets import targets_of
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
from penstock.ops.snapshot import FailureLog, Snapshot, ask_brokers, read_position, take_snapshot
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
"""Causes of equal weight are reported in this order."""


def diagnose(config: PipelineConfig, snapshot: Snapshot | None = None) -> Diagnosis:
    """Analyse why a pipeline is slow or stuck; no causes if it is neither.

    A snapshot that was just taken, with the brokers' time to answer, is not taken again.
    """
    return rank_causes(collect(config, snapshot))


def rank_causes(evidence: Evidence) -> Diagnosis:
    """The causes that the evidence shows, the weightiest first."""
    found = [cause for cause in (find(evidence) for find in CAUSES) if cause is not None]
    ranked = tuple(sorted(found, key=lambda cause: -cause.weight))
    notes = (*evidence.unreachable, *_notes(evidence))
    return Diagnosis(evidence.config.name, evidence.at, ranked, tuple(_looked(evidence)), notes, idle(evidence))


def _notes(evidence: Evidence) -> list[str]:
    """Limits of the evidence."""
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


_REGISTRY_SECONDS = 3.0
_AGE_SECONDS = 2.0


def collect(config: PipelineConfig, snapshot: Snapshot | None = None) -> Evidence:
    """Query every service independently and in parallel, with short timeouts and no JVM."""
    attempt, history = FailureLog(), history_of(config.checkpoint)
    with ThreadPoolExecutor(3) as threads:
        asking = partial(ask_brokers, timed=True)
        looked = threads.submit(attempt, "the checkpoint", lambda: snapshot or take_snapshot(config, brokers=asking))
        tables = threads.submit(attempt, "the tables", lambda: _tables(config, attempt))
        asked = threads.submit(attempt, "the registry", lambda: tuple(map(_ask_registry, _registries(config))))
        kinds = (BatchMetrics, RunStarted, StateKept, RetryNoted, LagNoted)
        entries = attempt("the history", lambda: history.read(*kinds)) or []
    snapshot = looked.result()
    evidence = Evidence(config, datetime.now(UTC), tables=tables.result() or (), registries=asked.result() or ())
    if snapshot is None:
        run = attempt("the run", lambda: find_run(config.checkpoint, storage_of(config)))
        evidence = replace(evidence, run=run or evidence.run)
    else:
        if (error := snapshot.brokers.error) is not None:
            attempt.failed.append(("the brokers", error.code, error.line))
        evidence = replace(
            evidence,
            run=snapshot.run,
            brokers=snapshot.brokers if snapshot.brokers.bounds is not None else None,
            checkpoint=attempt("the checkpoint", lambda: _checkpoint_facts(snapshot)) or CheckpointFacts(),
        )
    evidence = _of_history(evidence, entries)
    if not evidence.run.running:
        evidence = replace(evidence, waiting_since=attempt("what waits", lambda: _waiting_since(evidence)))
    unreachable = tuple(f"{what} could not be looked at: {code} {why}" for what, code, why in attempt.failed)
    return replace(evidence, unreachable=unreachable)


def _checkpoint_facts(snapshot: Snapshot) -> CheckpointFacts:
    begun = snapshot.files.begun
    maintained = snapshot.checkpoint.maintained_at()
    return CheckpointFacts(
        begun=begun,
        begun_at=snapshot.written_at(f"offsets/{begun}") if begun is not None else None,
        committed=snapshot.files.committed,
        position=read_position(snapshot).positions if snapshot.brokers.bounds else {},
        maintained_at=datetime.fromtimestamp(maintained, UTC) if maintained is not None else None,
    )


def _waiting_since(evidence: Evidence) -> datetime | None:
    """The time of the oldest record that waits."""
    waiting = {at: evidence.next_offset(at) for at, lag in evidence.lags.items() if lag}
    return min(first_unread(settings_of(evidence.config.source), waiting, _AGE_SECONDS).values(), default=None)


def _tables(config: PipelineConfig, attempt: FailureLog) -> tuple[TableFacts, ...]:
    found = []
    for table in tables_of(config, targets_of(config)):
        figures = attempt(f"the table {table.name}", table.maintenance.figures)
        if figures is not None:
            found.append(TableFacts(table.name, table.target, figures))
    return tuple(found)


def _ask_registry(registry: RegistryConfig) -> RegistryFacts:
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
    """The value of the file, if the history has none; unknown for a run on another host."""
    master = reveal(evidence.config.spark).get("spark.master", "local[*]")
    found = re.fullmatch(r"local\[(\d+|\*)\]", master)
    if found is None:
        return None
    here = evidence.run.note is None or evidence.run.note.host == socket.gethostname()
    return int(found[1]) if found[1] != "*" else os.cpu_count() if here else None


def _looked(evidence: Evidence) -> Iterator[str]:
    """What was checked, one line each; shown when no cause is found."""
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

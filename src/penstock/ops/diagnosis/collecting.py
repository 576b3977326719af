"""Collects the evidence: every place is looked at by itself, side by side, with no JVM and with little patience."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from penstock.assembly.reaching import checkpoint_of, settings_of, storage_of
from penstock.assembly.schemas import registry_settings
from penstock.assembly.targets import build_targets
from penstock.checkpoint.logs import written_at
from penstock.checkpoint.presence import RunStatus, find_run
from penstock.config import EncodeConfig, KafkaSinkConfig, PipelineConfig, RegistryConfig, flows, reveal
from penstock.errors import PenstockError
from penstock.kafka import Cluster, Subscription
from penstock.kafka.ages import first_unread
from penstock.kafka.cluster import look_seconds
from penstock.metrics import BatchMetrics
from penstock.metrics.history import Entry, LagNoted, RetryNoted, RunStarted, StateKept, history_of
from penstock.ops.diagnosis.evidence import BrokerFacts, CheckpointFacts, Evidence, RegistryFacts, TableFacts
from penstock.ops.diagnosis.figures import batches_in, input_in, recent_batches, states_in
from penstock.registry.exchange import Exchange
from penstock.supervision.upkeep import tables_of
from penstock.wording import counted

_REGISTRY_SECONDS = 3.0
_AGE_SECONDS = 2.0
Result = TypeVar("Result")


@dataclass(frozen=True)
class Collected:
    """The evidence, in words what was looked at, and what could not be."""

    evidence: Evidence
    looked: tuple[str, ...]
    notes: tuple[str, ...]


def collect(config: PipelineConfig) -> Collected:
    """Look everywhere."""
    look = _Look(config)
    with ThreadPoolExecutor(4) as threads:
        checkpoint = threads.submit(look.attempt, "the checkpoint", look.checkpoint)
        brokers = threads.submit(look.attempt, "the brokers", look.brokers)
        tables = threads.submit(look.attempt, "the tables", look.tables)
        registries = threads.submit(look.attempt, "the registry", look.registries)
        run = look.attempt("the run", lambda: find_run(config.checkpoint, storage_of(config)))
        run = run or RunStatus("none", None, None)
        history = look.attempt("the history", look.history) or []
    evidence = _of_history(Evidence(config, datetime.now(UTC), run), history)
    evidence = replace(
        evidence,
        checkpoint=checkpoint.result() or CheckpointFacts(),
        brokers=brokers.result(),
        tables=tables.result() or (),
        registries=registries.result() or (),
    )
    if not run.running:
        evidence = replace(evidence, waiting_since=look.attempt("what waits", lambda: look.waiting_since(evidence)))
    return Collected(evidence, tuple(_looked(evidence)), tuple(look.notes))


class _Look:
    def __init__(self, config: PipelineConfig) -> None:
        self._config = config
        self._settings = settings_of(config.source)
        self.notes: list[str] = []

    def attempt(self, what: str, look: Callable[[], Result]) -> Result | None:
        """The result of a look; a failure becomes a note."""
        try:
            return look()
        except PenstockError as error:
            self.notes.append(f"{what} could not be looked at: {error.code} {error.line}")
        except Exception as error:
            told = f"{type(error).__name__}: {error}".partition("\n")[0]
            self.notes.append(f"{what} could not be looked at: {told}")
        return None

    def history(self) -> list[Entry]:
        return history_of(self._config.checkpoint).read(BatchMetrics, RunStarted, StateKept, RetryNoted, LagNoted)

    def checkpoint(self) -> CheckpointFacts:
        files = checkpoint_of(self._config)
        # The commits first: of a run that goes on meanwhile no batch is then taken for an open one that is none.
        done, begun = files.last_committed(), files.last_begun()
        position = {} if begun is None else files.starts(0) if done is None else files.ends(done)
        maintained = files.maintained_at()
        return CheckpointFacts(
            begun=begun,
            begun_at=written_at(files.path, f"offsets/{begun}", files.storage) if begun is not None else None,
            committed=done,
            position=position,
            maintained_at=datetime.fromtimestamp(maintained, UTC) if maintained is not None else None,
        )

    def brokers(self) -> BrokerFacts:
        source, cluster = self._config.source, Cluster(self._settings, look_seconds(self._settings))
        partitions = cluster.partitions(Subscription(source.topics or (), source.pattern, source.assign))
        bounds = cluster.bounds(partitions)
        began = time.perf_counter()
        # Two requests, over connections that are there by now, and of one partition however many there are.
        cluster.bounds(partitions[:1])
        return BrokerFacts(bounds, (time.perf_counter() - began) / 2)

    def waiting_since(self, evidence: Evidence) -> datetime | None:
        waiting = {at: evidence.next_offset(at) for at, lag in evidence.lags.items() if lag}
        return min(first_unread(self._settings, waiting, _AGE_SECONDS).values(), default=None)

    def tables(self) -> tuple[TableFacts, ...]:
        found = []
        for table in tables_of(self._config, build_targets(self._config, self._settings)):
            figures = self.attempt(f"the table {table.name}", table.maintenance.figures)
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
    """What was seen, place by place, for a reader who is told of no cause."""
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
            f"brokers: {counted(len(evidence.brokers.bounds), 'partition')}, {evidence.lag:,} offsets wait, "
            f"an answer takes {evidence.brokers.seconds * 1000:.0f} ms"
        )
    for table in evidence.tables:
        yield f"table {table.name}: {counted(table.figures.files, 'file')}, {table.figures.small_files:,} of them small"
    for registry in evidence.registries:
        yield f"registry {registry.url}: an answer takes {registry.seconds * 1000:.0f} ms"

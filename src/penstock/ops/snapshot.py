"""Everything that is known of a pipeline at one moment: who runs it, its checkpoint, its sinks, its brokers. No JVM.

`show`, `verify`, `repair`, `status`, `lag`, `diagnose` and the panels of the dashboard are views of it. The brokers and
the sinks are asked in parallel. While a stream runs, the order of reading matters: the sinks must hold what was
committed before they were asked, and what they hold was begun before the files are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TypeVar

from penstock.assembly.reaching import checkpoint_of, settings_of, storage_of, subscription_of
from penstock.assembly.targets import targets_of
from penstock.checkpoint import Offsets, SparkCheckpoint
from penstock.checkpoint.files import NotedSink
from penstock.checkpoint.findings import Finding, findings_in, from_error
from penstock.checkpoint.logs import CheckpointFiles, read_files, written_at
from penstock.checkpoint.presence import RunStatus, find_run
from penstock.checkpoint.state_stores import StateFiles, read_state
from penstock.config import PipelineConfig
from penstock.errors import PenstockError, one_line
from penstock.kafka import Cluster, LogBounds
from penstock.kafka.cluster import look_seconds
from penstock.model import BatchToken, Guarantee, TopicPartition
from penstock.preflight.agreement import compare_sinks
from penstock.preflight.recreated import recreated_topics
from penstock.preflight.standings import FormerName, Standing, former_names, standings


@dataclass(frozen=True)
class Brokers:
    """What the brokers say, or why they say nothing."""

    bounds: Mapping[TopicPartition, LogBounds] | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    by_time: Offsets = field(default_factory=dict)
    """The offsets of a `start` time, in partitions with a later record."""
    error: PenstockError | None = None
    seconds: float = 0.0
    """The response time, if measured."""


@dataclass(frozen=True)
class Snapshot:
    """A pipeline at one moment."""

    config: PipelineConfig
    run: RunStatus
    """The current or last run."""
    done_before: int | None
    """The last batch that was committed before the sinks were asked."""
    standings: tuple[Standing, ...]
    files: CheckpointFiles
    state: StateFiles
    brokers: Brokers
    former: tuple[FormerName, ...] = ()
    """Positions in the targets under sink names that are no longer in the file."""
    noted_sinks: Mapping[str, NotedSink] = field(default_factory=dict)
    """The sinks of the last run with this checkpoint."""

    @property
    def live(self) -> str | None:
        """The run that has the checkpoint now."""
        return self.run.holder if self.run.running else None

    @property
    def checkpoint(self) -> SparkCheckpoint:
        """The checkpoint."""
        return checkpoint_of(self.config)

    @property
    def open_batch(self) -> int | None:
        """The batch that has begun and has not committed."""
        return self.files.open_batch

    @cached_property
    def file_findings(self) -> Sequence[Finding]:
        """What is wrong with the files of the checkpoint."""
        return findings_in(self.config.checkpoint, self.files, self.state, live=self.live is not None)

    def sink_findings(self, standings: Sequence[Standing], former: Sequence[FormerName] = ()) -> list[Finding]:
        """Where these sinks contradict the checkpoint."""
        path, noted = self.config.checkpoint, self.noted_sinks
        return compare_sinks(path, self.files, standings, self.done_before, noted, former)

    @property
    def committed_by_all(self) -> bool:
        """Whether every sink has committed the open batch, so that it is not read again."""
        sinks = [one for one in self.standings if not one.sparse]
        return bool(sinks) and all(
            one.guarantee is Guarantee.EXACTLY_ONCE
            and one.torn is None
            and one.token is not None
            and one.token.query_id == self.files.query_id
            and one.token.batch_id == self.open_batch
            for one in sinks
        )

    @cached_property
    def foreign(self) -> Sequence[Finding]:
        """Targets that hold batches of this pipeline while the checkpoint is fresh: what a run would say of them."""
        if self.files.restoring is not None or self.files.begun is not None:
            return ()
        from penstock.assembly.build import build
        from penstock.preflight.checks import check_agreement

        try:
            check_agreement(build(self.config), self.checkpoint)
        except PenstockError as error:
            means = "The targets were written from another checkpoint, or the checkpoint was lost and started over."
            return (from_error(error, means=means),)
        return ()

    def written_at(self, name: str) -> datetime | None:
        """When a file of the checkpoint was written."""
        return written_at(self.config.checkpoint, name, self.checkpoint.storage)

    def starts(self, batch_id: int) -> Offsets | None:
        """Where a batch begins, if that can be read."""
        return self.files.ends(batch_id - 1) if batch_id > 0 else self.files.initial


Result = TypeVar("Result")


class FailureLog:
    """Calls that may fail, each by itself: a failure is recorded, and the next call goes on."""

    def __init__(self) -> None:
        self.failed: list[tuple[str, str, str]] = []
        """For each failure: what was requested, the error code, and the reason in one line."""

    def __call__(self, what: str, look: Callable[[], Result]) -> Result | None:
        """The result; None if the call fails."""
        try:
            return look()
        except PenstockError as error:
            self.failed.append((what, error.code, error.line))
        except Exception as error:
            self.failed.append((what, "UNEXPECTED", one_line(error)))
        return None


def ask_brokers(
    config: PipelineConfig, *, cluster: Cluster | None = None, patience: float | None = None, timed: bool = False
) -> Brokers:
    """What the brokers say of a pipeline's partitions, through a client that is kept or a new one.

    A new one waits as long as `patience` says; `timed` measures how long they take to answer.
    """
    try:
        if cluster is None:
            settings = settings_of(config.source)
            cluster = Cluster(settings, patience or look_seconds(settings))
        partitions = cluster.partitions(subscription_of(config.source))
        bounds, ids = cluster.bounds(partitions), cluster.topic_ids({at.topic for at in partitions})
        by_time = _offsets_by_time(config, bounds, cluster)
        began = time.perf_counter()
        if timed:
            # Two requests, over connections that are there by now, and of one partition however many there are.
            cluster.bounds(partitions[:1])
        return Brokers(bounds, ids, by_time, seconds=(time.perf_counter() - began) / 2)
    except PenstockError as error:
        return Brokers(error=error)


def _start_of(config: PipelineConfig, topic: str) -> object:
    """Where the file says that a topic begins."""
    sources = [source for source in config.sources.values() if topic in (source.topics or ())]
    return (sources[0] if sources else config.source).start


def _offsets_by_time(config: PipelineConfig, partitions: Iterable[TopicPartition], cluster: Cluster) -> Offsets:
    times: dict[datetime, list[TopicPartition]] = {}
    for at in partitions:
        if isinstance(start := _start_of(config, at.topic), datetime):
            times.setdefault(start, []).append(at)
    found = {at: offset for when, some in times.items() for at, offset in cluster.offsets_at(some, when).items()}
    return {at: offset for at, offset in found.items() if offset >= 0}


def take_snapshot(
    config: PipelineConfig, *, brokers: Callable[[PipelineConfig], Brokers] | None = ask_brokers, sinks: bool = True
) -> Snapshot:
    """Ask everything, or all but the brokers or the sinks; what cannot be reached is noted in its place."""
    checkpoint, storage = checkpoint_of(config), storage_of(config)
    run = find_run(config.checkpoint, storage)
    targets = targets_of(config) if sinks else None
    done = checkpoint.last_committed()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(brokers, config) if brokers is not None else None
        found = tuple(standings(targets)) if targets is not None else ()
        former: Iterable[FormerName] = ()
        noted = checkpoint.sinks_noted()
        if targets is not None:
            former = former_names(config, settings_of(config.source), targets.sinks, found, noted)
        files, state = read_files(config.checkpoint, storage), read_state(config.checkpoint, storage)
        answered = asked.result() if asked is not None else Brokers()
    return Snapshot(config, run, done, found, files, state, answered, tuple(former), noted)


@dataclass(frozen=True)
class ReadPosition:
    """How far a pipeline has read its topics."""

    committed: Offsets | None
    """What all sinks have; None if nothing was ever started."""
    positions: Offsets
    """The next offset to read of every partition on the brokers."""
    notes: tuple[str, ...] = ()


def read_position(snapshot: Snapshot) -> ReadPosition:
    """By the least of the sinks' tokens; before the first run by the file's `start`."""
    bounds = snapshot.brokers.bounds or {}
    if snapshot.files.begun is None and snapshot.files.committed is None and not snapshot.files.sources:
        positions = {at: min(_first(snapshot, at, log), log.end) for at, log in bounds.items()}
        return ReadPosition(None, positions, _never_ran(snapshot))
    committed = committed_in(snapshot)
    gone = recreated_topics(dict(snapshot.files.topic_ids), dict(snapshot.brokers.topic_ids))
    # The offsets of a topic that was made again are not its own: all of it waits.
    committed = {at: offset for at, offset in committed.items() if at.topic not in gone}
    notes = [f"topic {topic} was re-created: all of it waits" for topic in sorted(gone)]
    notes += [
        f"sink {one.sink} is at batch {token.batch_id}, behind batch {snapshot.done_before} of the checkpoint: its "
        "lag is counted from its position"
        for one in snapshot.standings
        if (token := _own(snapshot, one)) is not None
        and not one.sparse
        and token.batch_id < (snapshot.done_before or 0)
    ]
    return ReadPosition(committed, {at: committed.get(at, log.start) for at, log in bounds.items()}, tuple(notes))


def committed_in(snapshot: Snapshot) -> Offsets:
    """The least that any sink has; of one that stores no token, or cannot be asked, what the checkpoint says."""
    done = snapshot.files.committed
    noted = snapshot.files.ends(done) if done is not None else snapshot.starts(0)
    tokens = [_own(snapshot, one) for one in snapshot.standings if not one.sparse]
    held = [token.ends if token is not None else noted for token in tokens] or [noted]
    known = [ends for ends in held if ends is not None]
    if len(known) < len(held):
        finding = next((one for one in snapshot.file_findings if one.blocks), None)
        if finding is not None:
            raise finding.as_error()
        # It was whole a moment ago, or is again: what reads it now says what is wrong.
        return snapshot.checkpoint.ends(done) if done is not None else snapshot.checkpoint.starts(0)
    first, *others = known
    return {at: min(ends[at] for ends in known) for at in first if all(at in other for other in others)}


def _own(snapshot: Snapshot, one: Standing) -> BatchToken | None:
    """The token of this checkpoint's query that a sink holds."""
    token = one.token if one.guarantee is Guarantee.EXACTLY_ONCE and one.error is None else None
    return token if token is not None and token.query_id == snapshot.files.query_id else None


def _never_ran(snapshot: Snapshot) -> tuple[str, ...]:
    notes = [
        f"sink {one.sink} has batch {one.token.batch_id} of another checkpoint, and {snapshot.config.checkpoint} is "
        "empty; a run prints the options"
        for one in snapshot.standings
        if one.token is not None and not one.sparse
    ]
    return (*notes, "lag is counted from where a first run would start")


def _first(snapshot: Snapshot, at: TopicPartition, log: LogBounds) -> int:
    start = _start_of(snapshot.config, at.topic)
    if isinstance(start, dict):
        return int(start.get(at.topic, {}).get(str(at.partition), log.start))
    return log.start if start == "earliest" else snapshot.brokers.by_time.get(at, log.end)

"""Everything that is known of a pipeline at one moment: who runs it, its checkpoint, its sinks, its brokers. No JVM.

`show`, `verify`, `repair`, `status`, `lag`, `diagnose` and panels of the dashboard are views of it. The brokers and the
sinks are asked in parallel. While a stream runs, the order of reading matters: the sinks must hold what was committed
before they were asked, and what they hold was begun before the files are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TypeVar

from penstock.assembly.reaching import checkpoint_of, settings_of, storage_of, subscription_of
from penstock.assembly.targets import Targets, build_targets
from penstock.checkpoint import Offsets, SparkCheckpoint
from penstock.checkpoint.findings import Finding, from_error
from penstock.checkpoint.logs import CheckpointFiles, read_files, written_at
from penstock.checkpoint.presence import RunStatus, find_run
from penstock.checkpoint.state_stores import StateFiles, read_state
from penstock.config import PipelineConfig
from penstock.errors import PenstockError
from penstock.kafka import Cluster, KafkaSettings, LogBounds
from penstock.kafka.cluster import look_seconds
from penstock.model import Guarantee, TopicPartition
from penstock.preflight.renamed import FormerName, former_names
from penstock.preflight.standings import Standing, standings


@dataclass(frozen=True)
class Sinks:
    """The sinks of a pipeline without the rest of it: no registry is asked for a schema."""

    targets: Targets
    settings: KafkaSettings


@dataclass(frozen=True)
class Brokers:
    """What the brokers say, or why they say nothing."""

    bounds: Mapping[TopicPartition, LogBounds] | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    error: PenstockError | None = None
    seconds: float = 0.0
    """How long one answer took, where that was measured."""


@dataclass(frozen=True)
class Snapshot:
    """A pipeline at one moment."""

    config: PipelineConfig
    run: RunStatus
    """Who runs it now, or ran it last."""
    done_before: int | None
    """The last batch that was committed before the sinks were asked."""
    standings: tuple[Standing, ...]
    files: CheckpointFiles
    state: StateFiles
    brokers: Brokers
    former: tuple[FormerName, ...] = ()
    """What the targets hold under names that the file does not have any more."""

    @property
    def live(self) -> str | None:
        """Who runs on the checkpoint now."""
        return self.run.holder if self.run.running else None

    @property
    def checkpoint(self) -> SparkCheckpoint:
        """The checkpoint."""
        return checkpoint_of(self.config)

    @property
    def open_batch(self) -> int | None:
        """The batch that has begun and has not committed."""
        return self.files.open_batch

    @property
    def held_by_all(self) -> bool:
        """Whether every sink has the open batch, so that it is not read again."""
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
            means = "The checkpoint is not the one that these targets were written from, or it was lost and begun anew."
            return (from_error(error, means=means),)
        return ()

    def written_at(self, name: str) -> datetime | None:
        """When a file of the checkpoint was written."""
        return written_at(self.config.checkpoint, name, self.checkpoint.storage)

    def ends(self, batch_id: int | None) -> Offsets | None:
        """Where a batch ends, if its offsets can be read."""
        file = self.files.offsets.get(batch_id) if batch_id is not None else None
        return file.ends if file is not None else None

    def starts(self, batch_id: int) -> Offsets | None:
        """Where a batch begins, if that can be read."""
        if batch_id > 0:
            return self.ends(batch_id - 1)
        try:
            return self.checkpoint.initial()
        except PenstockError:
            return None


Result = TypeVar("Result")


class Attempts:
    """Calls that may fail, each by itself: a failure is recorded, and the next call goes on."""

    def __init__(self) -> None:
        self.failed: list[tuple[str, str, str]] = []
        """For each failure what was asked for, the error code, and the reason in one line."""

    def __call__(self, what: str, look: Callable[[], Result]) -> Result | None:
        """The result, or None if the call fails."""
        try:
            return look()
        except PenstockError as error:
            self.failed.append((what, error.code, error.line))
        except Exception as error:
            self.failed.append((what, "UNEXPECTED", f"{type(error).__name__}: {error}".partition("\n")[0]))
        return None


def sinks_of(config: PipelineConfig) -> Sinks:
    """The sinks that a pipeline file names."""
    settings = settings_of(config.source)
    return Sinks(build_targets(config, settings), settings)


def look(
    config: PipelineConfig, *, brokers: bool = True, patience: float | None = None, timed: bool = False
) -> Snapshot:
    """Look at everything; sinks and brokers that cannot be reached say so in their place.

    The brokers are waited for as long as `patience` says; `timed` measures how long they take to answer.
    """
    path, storage = config.checkpoint, storage_of(config)
    run = find_run(path, storage)
    sinks = sinks_of(config)
    done = checkpoint_of(config).last_committed()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(_ask_brokers, config, sinks.settings, patience, timed) if brokers else None
        found = tuple(standings(sinks))
        noted = checkpoint_of(config).sinks_noted()
        former = tuple(former_names(config, sinks.settings, sinks.targets.sinks, found, noted))
        files, state = read_files(path, storage), read_state(path, storage)
        told = asked.result() if asked is not None else Brokers()
    return Snapshot(config, run, done, found, files, state, told, former)


def _ask_brokers(config: PipelineConfig, settings: KafkaSettings, patience: float | None, timed: bool) -> Brokers:
    try:
        cluster = Cluster(settings, patience or look_seconds(settings))
        partitions = cluster.partitions(subscription_of(config.source))
        bounds, ids = cluster.bounds(partitions), cluster.topic_ids({at.topic for at in partitions})
        began = time.perf_counter()
        if timed:
            # Two requests, over connections that are there by now, and of one partition however many there are.
            cluster.bounds(partitions[:1])
        return Brokers(bounds, ids, seconds=(time.perf_counter() - began) / 2)
    except PenstockError as error:
        return Brokers(error=error)

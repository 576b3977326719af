"""Everything that can be seen of a checkpoint: its files, its state, what the sinks and the brokers say. No JVM.

The brokers and the sinks are asked at once. Under a running stream the order of the looks matters, and is kept: what
was committed before the sinks were asked they must have, and what they have was begun before the files are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from penstock.assembly.reaching import checkpoint_of, settings_of, storage_of
from penstock.assembly.targets import Targets, build_targets
from penstock.checkpoint import Offsets, SparkCheckpoint
from penstock.checkpoint.findings import Finding, from_error
from penstock.checkpoint.logs import CheckpointFiles, read_files
from penstock.checkpoint.presence import find_run
from penstock.checkpoint.state_stores import StateFiles, read_state
from penstock.config import PipelineConfig
from penstock.errors import PenstockError
from penstock.kafka import Cluster, KafkaSettings, LogBounds, Subscription
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


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint, its targets and its brokers, read at one time."""

    config: PipelineConfig
    live: str | None
    """Who runs on it now."""
    done_before: int | None
    """The last batch that was committed before the sinks were asked."""
    standings: tuple[Standing, ...]
    files: CheckpointFiles
    state: StateFiles
    brokers: Brokers
    former: tuple[FormerName, ...] = ()
    """What the targets hold under names that the file does not have any more."""

    @property
    def checkpoint(self) -> SparkCheckpoint:
        """The checkpoint."""
        return checkpoint_of(self.config)

    @property
    def open_batch(self) -> int | None:
        """The batch that has begun and has not committed."""
        begun, done = self.files.begun, self.files.committed
        return begun if begun is not None and (done is None or done < begun) else None

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


def sinks_of(config: PipelineConfig) -> Sinks:
    """The sinks that a pipeline file names."""
    settings = settings_of(config.source)
    return Sinks(build_targets(config, settings), settings)


def look(config: PipelineConfig, *, brokers: bool = True) -> Snapshot:
    """Look at everything; what cannot be reached says so in its place."""
    path, storage = config.checkpoint, storage_of(config)
    run = find_run(path, storage)
    sinks = sinks_of(config)
    done = read_files(path, storage).committed
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(_brokers, config, sinks.settings) if brokers else None
        found = tuple(standings(sinks))
        noted = checkpoint_of(config).sinks_noted()
        former = tuple(former_names(config, sinks.settings, sinks.targets.sinks, found, noted))
        files, state = read_files(path, storage), read_state(path, storage)
        told = asked.result() if asked is not None else Brokers()
    return Snapshot(config, run.holder if run.running else None, done, found, files, state, told, former)


def foreign_findings(seen: Snapshot) -> list[Finding]:
    """Targets that hold batches of this pipeline while the checkpoint is fresh: what a run would say of them."""
    if seen.files.restoring is not None or seen.files.begun is not None:
        return []
    from penstock.assembly.build import build
    from penstock.preflight.checks import check_agreement

    try:
        check_agreement(build(seen.config), seen.checkpoint)
    except PenstockError as error:
        means = "The checkpoint is not the one that these targets were written from, or it was lost and begun anew."
        return [from_error(error, means=means)]
    return []


def _brokers(config: PipelineConfig, settings: KafkaSettings) -> Brokers:
    source = config.source
    try:
        cluster = Cluster(settings, look_seconds(settings))
        partitions = cluster.partitions(Subscription(source.topics or (), source.pattern, source.assign))
        return Brokers(cluster.bounds(partitions), cluster.topic_ids({at.topic for at in partitions}))
    except PenstockError as error:
        return Brokers(error=error)

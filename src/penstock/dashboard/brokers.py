"""Where the logs end, asked once for all pipelines of a cluster, through a client that is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.assembly.reaching import checkpoint_of, settings_of, subscription_of
from penstock.config import PipelineConfig
from penstock.errors import PenstockError
from penstock.kafka import Cluster, LogBounds
from penstock.metrics.history import Lists, in_lists
from penstock.model import TopicPartition

_PATIENCE = 3.0


@dataclass(frozen=True)
class Asked:
    """The offsets of one pipeline: where its logs end and how far its checkpoint is, or why they are not known."""

    ends: Lists
    committed: Lists
    problem: str | None = None


def same_cluster(config: PipelineConfig) -> tuple[object, ...]:
    """What two pipelines share that can be asked about together; one whose certificates cannot be read is alone."""
    try:
        return settings_of(config.source).identity
    except PenstockError:
        return config.source.brokers, config.name


class ClusterLook:
    """One cluster."""

    def __init__(self) -> None:
        self._cluster: Cluster | None = None

    def __call__(self, configs: Mapping[str, PipelineConfig]) -> dict[str, Asked]:
        """Ask for every pipeline; a topic that is missing is the trouble of that pipeline alone."""
        wanted: dict[str, list[TopicPartition]] = {}
        found: dict[str, Asked] = {}
        try:
            cluster = self._cluster = self._cluster or Cluster(
                settings_of(next(iter(configs.values())).source), _PATIENCE
            )
            for name, config in configs.items():
                try:
                    wanted[name] = cluster.partitions(subscription_of(config.source))
                except PenstockError as error:
                    if error.code == "BROKER_UNREACHABLE":
                        raise
                    found[name] = Asked({}, {}, _told(error))
            bounds = cluster.bounds({at for some in wanted.values() for at in some})
        except PenstockError as error:
            return {name: Asked({}, {}, _told(error)) for name in configs}
        for name, partitions in wanted.items():
            found[name] = _asked(configs[name], {at: bounds[at] for at in partitions if at in bounds})
        return found


def _asked(config: PipelineConfig, bounds: Mapping[TopicPartition, LogBounds]) -> Asked:
    ends = in_lists({at: log.end for at, log in bounds.items()})
    try:
        checkpoint = checkpoint_of(config)
        done = checkpoint.last_committed()
        held = checkpoint.ends(done) if done is not None else checkpoint.initial()
    except (PenstockError, OSError) as error:
        return Asked(ends, {}, _told(error) if isinstance(error, PenstockError) else None)
    if held is None and config.source.start != "earliest":
        return Asked(ends, {})
    # A partition that the checkpoint does not have yet is read from its beginning.
    return Asked(ends, in_lists({at: (held or {}).get(at, log.start) for at, log in bounds.items()}))


def _told(error: PenstockError) -> str:
    return f"{error.code} {error.line}"

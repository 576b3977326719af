"""The parts of a file that are valid by themselves, for the checks that look at several together.

A refused part is None and is left out of those checks, so that one mistake is reported once and the others
are still found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import SecretStr

from penstock.config.alerts import AlertsConfig
from penstock.config.connections import StorageConfig
from penstock.config.ddl import Column
from penstock.config.decode import DecodeConfig
from penstock.config.operation import (
    CheckpointBackupConfig,
    ClusterConfig,
    FlowConfig,
    MaintenanceConfig,
    MetricsConfig,
)
from penstock.config.pipeline import NamedSourceConfig, QuarantineConfig, RouteConfig, TriggerConfig
from penstock.config.problems import Path
from penstock.config.sinks import SinkConfig
from penstock.config.source import KafkaSourceConfig
from penstock.config.tables import LookupConfig
from penstock.config.transforms import TransformConfig
from penstock.config.yaml_source import Source, value_at


@dataclass(slots=True)
class Parts:
    """A pipeline file in its parts."""

    file: Source
    filled: frozenset[Path]
    """The paths whose values came, wholly or in part, through a reference."""
    source: KafkaSourceConfig | None = None
    decode: DecodeConfig | None = None
    columns: dict[Path, tuple[Column, ...] | None] = field(default_factory=dict)
    """What the decoder at each place gives; None where it cannot be known or was refused."""
    sources: dict[str, NamedSourceConfig | None] = field(default_factory=dict)
    tables: dict[str, LookupConfig | None] = field(default_factory=dict)
    quarantine: QuarantineConfig | None = None
    transforms: tuple[TransformConfig | None, ...] = ()
    routes: tuple[RouteConfig | None, ...] = ()
    sinks: tuple[SinkConfig | None, ...] = ()
    checkpoint: str | None = None
    checkpoint_backup: CheckpointBackupConfig | None = None
    maintenance: MaintenanceConfig | None = None
    storage: StorageConfig | None = None
    trigger: TriggerConfig | None = None
    flow: FlowConfig | None = None
    metrics: MetricsConfig | None = None
    alerts: AlertsConfig | None = None
    spark: Mapping[str, str | SecretStr] | None = None
    cluster: ClusterConfig | None = None

    def written(self, *path: str | int) -> bool:
        """Whether the file has this key, right or wrong."""
        return value_at(self.file.data, path) is not None or path in self.file.broken

    def report(
        self,
        path: Path,
        message: str,
        *,
        context: Iterable[str] = (),
        hint: str | None = None,
        offset: int | None = None,
        at_key: bool = False,
    ) -> None:
        """Add a problem, unless its place has one of its own already."""
        if any(path[:end] in self.file.broken for end in range(1, len(path) + 1)):
            return
        if path in self.filled:
            offset = None
        problem = self.file.positions.problem(path, message, context=context, hint=hint, offset=offset, at_key=at_key)
        self.file.problems.append(problem)

    def exactly_one(self, where: Path, keys: Sequence[str]) -> None:
        """Report a part that gives none, or more than one, of some keys."""
        self.one_needed(where, keys)
        self.at_most_one(where, keys)

    def at_most_one(self, where: Path, keys: Sequence[str]) -> None:
        """Report a part that gives more than one of some keys."""
        lines = self.file.positions.keys
        given = sorted((key for key in keys if self.written(*where, key)), key=lambda key: lines[*where, key].line)
        if len(given) > 1:
            first, choice = given[0], f"{', '.join(keys[:-1])} and {keys[-1]}"
            message = f"only one of {choice} can be given; {first} is there at line {lines[*where, first].line}"
            self.report((*where, given[1]), message, hint=f"remove {' or '.join(given)}", at_key=True)

    def one_needed(self, where: Path, keys: Sequence[str]) -> None:
        """Report a part that gives none of some keys."""
        if not any(self.written(*where, key) for key in keys):
            self.report(where, f"one of {', '.join(keys[:-1])} and {keys[-1]} is needed", at_key=True)

    def need_pairs(self, where: Path, pairs: Iterable[tuple[str, str]]) -> None:
        """Report each key of a part that means nothing without another one."""
        for key, needed in pairs:
            if self.written(*where, key) and not self.written(*where, needed):
                message = f"{key} means nothing without {needed}"
                self.report((*where, key), message, hint=f"add {needed}", at_key=True)

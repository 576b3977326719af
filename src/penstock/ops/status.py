"""Pipelines at a glance: for each file who runs it, how far it is, and what is wrong. Nothing is changed, no JVM.

Every part of a line is looked at by itself: what cannot be seen is a warning, and the rest is still told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from penstock.assembly.reaching import checkpoint_of, settings_of
from penstock.assembly.targets import Targets, build_targets
from penstock.checkpoint import Offsets
from penstock.checkpoint.backup import backups_of
from penstock.checkpoint.findings import Finding, file_findings
from penstock.checkpoint.logs import written_at
from penstock.checkpoint.manifest import list_backups
from penstock.checkpoint.presence import RunStatus, find_run
from penstock.config import PipelineConfig, flows, load, remembers
from penstock.errors import DefinitionError, PenstockError
from penstock.kafka import Cluster, KafkaSettings, LogBounds, Subscription
from penstock.model import TopicPartition, lag_of
from penstock.ops.quarantine.counted import Quarantined, quarantined_since
from penstock.preflight.agreement import sink_findings
from penstock.preflight.recreated import recreated_topics
from penstock.preflight.source_agreement import log_findings, topic_findings
from penstock.preflight.standings import standings

_BROKER_SECONDS = 2.0
_OPEN_TOO_LONG = timedelta(minutes=10)
_MOST_AT_ONCE = 16
Result = TypeVar("Result")


@dataclass(frozen=True)
class Warned:
    """One thing that is wrong: a code, and what it is about in a line."""

    code: str
    text: str


@dataclass(frozen=True)
class PipelineStatus:
    """One line of `status`."""

    file: str
    pipeline: str | None = None
    run: RunStatus | None = None
    batch_id: int | None = None
    """The last batch that is committed."""
    batch_at: datetime | None = None
    open_batch: int | None = None
    """The batch that has begun and is not committed."""
    open_since: datetime | None = None
    lag: int | None = None
    quarantined: Quarantined | None = None
    """Since the day began, in UTC; none where it cannot be told."""
    backup_at: datetime | None = None
    warnings: tuple[Warned, ...] = ()
    error: PenstockError | None = field(default=None, compare=False)
    """Why the file cannot be read."""

    @property
    def state(self) -> str:
        """`running`, or how the last run ended; `not running` where none was ever noted."""
        if self.error is not None:
            return "wrong file"
        return "not running" if self.run is None or self.run.state == "none" else self.run.state

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        if self.error is not None:
            error = {"code": self.error.code, "text": str(self.error)}
            return {"file": self.file, "pipeline": None, "running": None, "error": error}
        note = self.run.note if self.run is not None else None
        return {
            "file": self.file,
            "pipeline": self.pipeline,
            "running": self.run is not None and self.run.running,
            "state": self.state,
            "doing": note.facts.doing if note is not None and self.state == "running" else None,
            "process": note.pid if note is not None else None,
            "host": note.host if note is not None else None,
            "held_by": self.run.holder if self.run is not None else None,
            "since": note.started_at.isoformat() if note is not None else None,
            "ended_at": _iso(note.ended_at) if note is not None else None,
            "ended_by": note.error if note is not None else None,
            "last_batch": self.batch_id,
            "last_batch_at": _iso(self.batch_at),
            "open_batch": self.open_batch,
            "open_since": _iso(self.open_since),
            "lag": self.lag,
            "quarantined_today": self.quarantined.records if self.quarantined is not None else None,
            "quarantined_today_exact": self.quarantined.exact if self.quarantined is not None else None,
            "last_backup": _iso(self.backup_at),
            "warnings": [{"code": one.code, "text": one.text} for one in self.warnings],
            "error": None,
        }


def find_status(files: Iterable[Path]) -> list[PipelineStatus]:
    """Look at every pipeline, several at once; in the order of the files."""
    wanted = list(files)
    with ThreadPoolExecutor(max(1, min(len(wanted), _MOST_AT_ONCE))) as threads:
        return list(threads.map(look_at, wanted))


def look_at(file: Path) -> PipelineStatus:
    """Look at one pipeline."""
    try:
        config = load(file)
    except PenstockError as error:
        return PipelineStatus(str(file), error=error)
    except Exception as error:
        return PipelineStatus(str(file), error=DefinitionError("FILE_UNUSABLE", f"{file}: {error}"))
    return _Look(str(file), config).status()


class _Look:
    def __init__(self, file: str, config: PipelineConfig) -> None:
        self._file, self._config = file, config
        self._checkpoint = checkpoint_of(config)
        self._warnings: dict[str, Warned] = {}

    @cached_property
    def _settings(self) -> KafkaSettings:
        """Certificates are read for them: what is wrong with these is a warning of this line alone."""
        return settings_of(self._config.source)

    def status(self) -> PipelineStatus:
        """Every part of the line."""
        config, files = self._config, self._checkpoint
        run = self._try(lambda: find_run(files.path, files.storage)) or RunStatus("none", None, None)
        # The commits first: of a run that goes on meanwhile no batch is then taken for an open one that is none.
        done, begun = self._try(files.last_committed), self._try(files.last_begun)
        position = self._position(begun, done)
        logs = self._try(self._ask_brokers)
        opened = begun if begun is not None and (done is None or begun > done) else None
        open_since = self._written(f"offsets/{opened}") if opened is not None else None
        self._try(lambda: self._find(run, position, logs))
        self._warn_of(run, opened, open_since)
        midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return PipelineStatus(
            file=self._file,
            pipeline=config.name,
            run=run,
            batch_id=done,
            batch_at=self._written(f"commits/{done}") if done is not None else None,
            open_batch=opened,
            open_since=open_since,
            lag=self._lag(position, logs) if logs is not None else None,
            quarantined=self._try(lambda: quarantined_since(config, self._settings, midnight, _BROKER_SECONDS)),
            backup_at=self._try(self._last_backup),
            warnings=tuple(self._warnings.values()),
        )

    def _try(self, look: Callable[[], Result]) -> Result | None:
        """The result of a look; a failure becomes a warning, once."""
        try:
            return look()
        except PenstockError as error:
            self._warn(error.code, error.line)
        except Exception as error:
            self._warn("UNEXPECTED", f"{type(error).__name__}: {error}".partition("\n")[0])
        return None

    def _warn(self, code: str, text: str) -> None:
        self._warnings.setdefault(code, Warned(code, text))

    def _warn_of(self, run: RunStatus, opened: int | None, since: datetime | None) -> None:
        if run.state == "killed":
            self._warn("RUN_KILLED", "the last run was killed; the next one repairs what it left")
        if run.state == "silent" and run.note is not None:
            self._warn("RUN_SILENT", f"{run.note.who} has not been heard of since {run.note.at:%Y-%m-%d %H:%M:%S} UTC")
        if run.state == "failed" and run.note is not None:
            self._warn(str(run.note.error), "this ended the last run")
        if run.running and run.note is not None and run.note.facts.doing.startswith("waiting"):
            self._warn(run.note.facts.doing.rpartition(" ")[2], f"the run is {run.note.facts.doing}")
        if run.running and run.note is not None and run.note.facts.stalled is not None:
            self._warn("BATCH_STALLED", run.note.facts.stalled)
        if run.running and opened is not None and since is not None and datetime.now(UTC) - since > _OPEN_TOO_LONG:
            self._warn(
                "BATCH_OPEN_LONG", f"batch {opened} began at {since:%Y-%m-%d %H:%M:%S} UTC and has not committed"
            )

    def _position(self, begun: int | None, done: int | None) -> Offsets | None:
        """Where the next batch begins; none before the first."""
        if done is not None:
            return self._try(lambda: self._checkpoint.ends(done))
        return self._try(lambda: self._checkpoint.starts(0)) if begun is not None else None

    def _ask_brokers(self) -> _Logs:
        source, cluster = self._config.source, Cluster(self._settings, _BROKER_SECONDS)
        partitions = cluster.partitions(Subscription(source.topics or (), source.pattern, source.assign))
        return _Logs(cluster.bounds(partitions), cluster.topic_ids({at.topic for at in partitions}))

    def _lag(self, position: Offsets | None, logs: _Logs) -> int | None:
        """The offsets behind the last batch; before the first only known where it begins at the earliest."""
        if position is None and self._config.source.start != "earliest":
            return None
        # The offsets of a topic that was made again are not its own: all of it waits.
        gone = recreated_topics(self._try(self._checkpoint.topic_ids) or {}, logs.topic_ids)
        known = {at: offset for at, offset in (position or {}).items() if at.topic not in gone}
        return sum(lag_of(log.end, known.get(at, log.start)) for at, log in logs.bounds.items())

    def _written(self, name: str) -> datetime | None:
        files = self._checkpoint
        return self._try(lambda: written_at(files.path, name, files.storage))

    def _last_backup(self) -> datetime | None:
        asked = self._config.checkpoint_backup
        place = asked.to if asked is not None and asked.to is not None else backups_of(self._checkpoint.path)
        copies = list_backups(place, self._checkpoint.storage)
        mine = (one for one in copies if one.kind == "backup" and one.checkpoint == self._checkpoint.path)
        return max((one.created_at for one in mine), default=None)

    def _find(self, run: RunStatus, position: Offsets | None, logs: _Logs | None) -> None:
        """Warn of what `checkpoint verify` would find that keeps a run from starting."""
        found = self._blocking(position, logs, live=run.running)
        if run.running and found:
            # A run writes while this looks: what is wrong is still wrong when looked at again.
            again = {one.code for one in self._blocking(position, logs, live=True)}
            found = [one for one in found if one.code in again]
        for one in found:
            self._warn(one.code, one.summary)

    def _blocking(self, position: Offsets | None, logs: _Logs | None, *, live: bool) -> list[Finding]:
        config, files = self._config, self._checkpoint
        found = file_findings(files, live=live)
        if position is not None and logs is not None:
            found += log_findings(position, logs.bounds, config.source.on_data_loss)
            noted = files.topic_ids()
            found += topic_findings(noted, logs.topic_ids, config.source.on_data_loss, stateful=_remembers(config))
        if not any(one.blocks for one in found) and files.last_begun() is not None:
            committed = files.last_committed()
            held = standings(_Sinks(build_targets(config, self._settings)))
            found += sink_findings(files, held, committed=committed if live else None)
        return [one for one in found if one.blocks]


@dataclass(frozen=True)
class _Logs:
    """What the brokers say of the topics."""

    bounds: dict[TopicPartition, LogBounds]
    topic_ids: dict[str, str]


@dataclass(frozen=True)
class _Sinks:
    """The sinks without the rest of the pipeline, for which a registry may have to be asked."""

    targets: Targets


def _remembers(config: PipelineConfig) -> bool:
    return any(flow.sides or any(map(remembers, flow.transforms)) for flow in flows(config))


def _iso(when: datetime | None) -> str | None:
    return when.isoformat() if when is not None else None

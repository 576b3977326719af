"""Pipelines at a glance: for each file who runs it, how far it is, and what is wrong. Nothing is changed, no JVM.

Every part of a line is determined by itself: what cannot be reached is a warning, and the rest is still shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from penstock.assembly.reaching import storage_of
from penstock.checkpoint.presence import REPAIRS, RunStatus, find_run, shown_state
from penstock.config import PipelineConfig, load
from penstock.errors import DefinitionError, PenstockError
from penstock.model import lags_of
from penstock.ops.checkpoint.backup import backups_there
from penstock.ops.checkpoint.repair import broker_findings, own_findings
from penstock.ops.quarantine.listing import QuarantineCount, midnight, quarantined_since
from penstock.ops.snapshot import FailureLog, Snapshot, ask_brokers, read_position, take_snapshot

_BROKER_SECONDS = 2.0
_ASK = partial(ask_brokers, patience=_BROKER_SECONDS)
_OPEN_TOO_LONG = timedelta(minutes=10)
_MOST_AT_ONCE = 16


@dataclass(frozen=True)
class StatusWarning:
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
    """The last committed batch."""
    batch_at: datetime | None = None
    open_batch: int | None = None
    """The open batch."""
    open_since: datetime | None = None
    lag: int | None = None
    quarantined: QuarantineCount | None = None
    """Since midnight UTC; None if unknown."""
    backup_at: datetime | None = None
    warnings: tuple[StatusWarning, ...] = ()
    error: PenstockError | None = field(default=None, compare=False)
    """Why the file cannot be read."""

    @property
    def state(self) -> str:
        """As `shown_state` says it, or that the file cannot be read."""
        if self.error is not None:
            return "wrong file"
        return shown_state(self.run)

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
        return list(threads.map(status_of, wanted))


def status_of(file: Path) -> PipelineStatus:
    """Look at one pipeline."""
    try:
        config = load(file)
    except PenstockError as error:
        return PipelineStatus(str(file), error=error)
    except Exception as error:
        return PipelineStatus(str(file), error=DefinitionError("FILE_UNUSABLE", f"{file}: {error}"))
    attempt = FailureLog()
    snapshot = attempt("the pipeline", lambda: take_snapshot(config, brokers=_ASK))
    return _status(str(file), config, snapshot, attempt)


def _status(file: str, config: PipelineConfig, snapshot: Snapshot | None, attempt: FailureLog) -> PipelineStatus:
    known: dict[str, Any] = {
        "quarantined": attempt(
            "the quarantine",
            lambda: quarantined_since(config, midnight(), _BROKER_SECONDS),
        ),
        "backup_at": attempt("the backups", lambda: _last_backup(config)),
    }
    warnings: list[StatusWarning] = []
    if snapshot is None:
        known["run"] = attempt("the run", lambda: find_run(config.checkpoint, storage_of(config)))
    else:
        done, opened = snapshot.files.committed, snapshot.open_batch
        open_since = snapshot.written_at(f"offsets/{opened}") if opened is not None else None
        known |= {
            "run": snapshot.run,
            "batch_id": done,
            "batch_at": snapshot.written_at(f"commits/{done}") if done is not None else None,
            "open_batch": opened,
            "open_since": open_since,
            "lag": attempt("the lag", lambda: _lag(snapshot)),
        }
        warnings += _about_run(snapshot.run, opened, open_since)
        warnings += attempt("the checkpoint", lambda: _blocking(snapshot)) or []
    warnings += [StatusWarning(code, why) for _, code, why in attempt.failed]
    once = {one.code: one for one in reversed(warnings)}
    return PipelineStatus(file=file, pipeline=config.name, **known, warnings=tuple(reversed(once.values())))


def _about_run(run: RunStatus, opened: int | None, since: datetime | None) -> Iterator[StatusWarning]:
    note = run.note
    if run.state == "killed":
        yield StatusWarning("RUN_KILLED", f"{run.ended_badly}; {REPAIRS}")
    if run.state == "silent":
        yield StatusWarning("RUN_SILENT", str(run.ended_badly))
    if run.state == "failed" and note is not None:
        yield StatusWarning(str(note.error), "this ended the last run")
    if not run.running or note is None:
        return
    if note.facts.doing.startswith("waiting"):
        yield StatusWarning(note.facts.doing.rpartition(" ")[2], f"the run is {note.facts.doing}")
    if note.facts.stalled is not None:
        yield StatusWarning("BATCH_STALLED", note.facts.stalled)
    if opened is not None and since is not None and datetime.now(UTC) - since > _OPEN_TOO_LONG:
        yield StatusWarning(
            "BATCH_OPEN_LONG", f"batch {opened} started at {since:%Y-%m-%d %H:%M:%S} UTC and has not committed"
        )


def _blocking(snapshot: Snapshot) -> list[StatusWarning]:
    """What `checkpoint verify` would find that keeps a run from starting."""
    found = [one for one in (*own_findings(snapshot), *broker_findings(snapshot)) if one.blocks]
    if snapshot.run.running and found and snapshot.brokers.error is None:
        # A run writes while this looks: what is wrong is still wrong when looked at again.
        again = take_snapshot(snapshot.config, brokers=_ASK)
        still = {one.code for one in (*own_findings(again), *broker_findings(again))}
        found = [one for one in found if one.code in still]
    return [StatusWarning(one.code, one.summary) for one in found]


def _lag(snapshot: Snapshot) -> int | None:
    """As `penstock lag` counts it, where the brokers answer and the checkpoint can be used."""
    bounds = snapshot.brokers.bounds
    if bounds is None or any(one.blocks for one in own_findings(snapshot)):
        return None
    return sum(lags_of({at: log.end for at, log in bounds.items()}, read_position(snapshot).positions).values())


def _last_backup(config: PipelineConfig) -> datetime | None:
    return next((one.created_at for one in backups_there(config) if one.kind == "backup"), None)


def _iso(when: datetime | None) -> str | None:
    return when.isoformat() if when is not None else None

"""Asking a running pipeline to finish its batch and stop, wherever it runs, and waiting until it is gone.

The request lies in the checkpoint, where the run looks for it. It is for the run that was found: one that begins later
does not take it for its own.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from penstock.assembly.reaching import storage_of
from penstock.checkpoint.files import SparkCheckpoint
from penstock.checkpoint.logs import describe_batches
from penstock.checkpoint.presence import Presence, RunStatus, find_run
from penstock.config import PipelineConfig
from penstock.errors import MissingError, PenstockError
from penstock.storage import Storage, is_local

Outcome = Literal["not running", "asked", "stopped", "failed", "killed", "silent", "still running"]
_BEGINS_WITHIN = 1.0
"""How many seconds a run may hold the lock without an identity."""


@dataclass(frozen=True)
class PlannedStop:
    """A pipeline and the run to be asked, if there is one."""

    pipeline: str
    checkpoint: str
    found: RunStatus
    storage: Storage = field(default_factory=Storage)


@dataclass(frozen=True)
class StopResult:
    """What became of the run."""

    pipeline: str
    outcome: Outcome
    run: str | None
    """The process and host."""
    seconds: float = 0.0
    error: str | None = None
    """The code of the error that ended the run instead."""
    doing: str | None = None
    """What a run that is still active is doing."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**vars(self), "seconds": round(self.seconds, 1)}


def plan_stop(config: PipelineConfig) -> PlannedStop:
    """Look for the run of a pipeline. Raises if the checkpoint is held by a process that is not a run."""
    deadline, storage = time.monotonic() + _BEGINS_WITHIN, storage_of(config)
    found = find_run(config.checkpoint, storage)
    while found.running and found.note is None and time.monotonic() < deadline:
        time.sleep(0.05)
        found = find_run(config.checkpoint, storage)
    if found.running and found.note is None:
        raise MissingError(
            "RUN_UNKNOWN",
            f"stopping {config.name}: the process that holds its checkpoint is not a run that can be asked to stop",
            context={"checkpoint": config.checkpoint, "held by": str(found.holder)},
            hint="it may be a restore, a repair or an older version: wait for it, or send that process a SIGTERM",
        )
    return PlannedStop(config.name, config.checkpoint, found, storage)


def ask(planned: PlannedStop) -> StopResult:
    """Put down the request, where there is a run."""
    if not planned.found.running:
        return StopResult(planned.pipeline, "not running", None)
    Presence(planned.checkpoint, planned.storage).ask_stop(f"process {os.getpid()} on {socket.gethostname()}")
    return StopResult(planned.pipeline, "asked", planned.found.holder)


def wait_until_stopped(
    planned: Sequence[PlannedStop], timeout: float, tell: Callable[[str, str], None] = lambda pipeline, text: None
) -> list[StopResult]:
    """Wait until the runs that were asked are gone, or time is up; `tell` is called with what each does meanwhile."""
    began, found = time.monotonic(), dict[int, StopResult]()
    while True:
        waited = time.monotonic() - began
        for number, one in enumerate(planned):
            if number in found:
                continue
            now = find_run(one.checkpoint, one.storage)
            if not _same_run(now, one.found):
                found[number] = _gone(one, now, waited)
                continue
            if now.note is not None and not Presence(one.checkpoint, one.storage).stop_asked():
                # The run began in the moment when it was asked, and took the request for an old one.
                ask(one)
            tell(one.pipeline, doing(one.checkpoint, now, one.storage))
            if waited >= timeout:
                what = doing(one.checkpoint, now, one.storage)
                found[number] = StopResult(one.pipeline, "still running", one.found.holder, waited, doing=what)
        if len(found) == len(planned):
            return [found[number] for number in range(len(planned))]
        time.sleep(0.1 if all(is_local(one.checkpoint) for one in planned) else 1.0)


def doing(checkpoint: str, now: RunStatus, storage: Storage = Storage()) -> str:
    """What a run does, for people."""
    parts = [now.note.facts.doing] if now.note is not None else []
    try:
        files = SparkCheckpoint(checkpoint, storage)
        begun, done = files.last_begun(), files.last_committed()
    except (PenstockError, OSError):
        return ", ".join(parts)
    if begun is not None or done is not None:
        parts.append(describe_batches(begun, done))
    if now.note is not None and now.note.facts.batch_at is not None:
        ended = (datetime.now(UTC) - datetime.fromisoformat(now.note.facts.batch_at)).total_seconds()
        parts.append(f"the last one was over {ended:.0f} s ago")
    return ", ".join(parts)


def _same_run(now: RunStatus, asked: RunStatus) -> bool:
    if not now.running:
        return False
    if now.note is not None and asked.note is not None:
        return now.note.started_at == asked.note.started_at
    return now.holder == asked.holder


def _gone(planned: PlannedStop, now: RunStatus, waited: float) -> StopResult:
    """How the run that was asked ended; another one may have begun since, and written its own note."""
    note, asked = now.note, planned.found.note
    if not planned.found.running:
        return StopResult(planned.pipeline, "not running", None)
    run = planned.found.holder
    if note is None or asked is None or note.started_at != asked.started_at:
        return StopResult(planned.pipeline, "stopped", run, waited)
    # It may have been asked once more while it ended.
    Presence(planned.checkpoint, planned.storage).withdraw_stop()
    if note.ended_at is None:
        return StopResult(planned.pipeline, "silent" if now.state == "silent" else "killed", run, waited)
    return StopResult(planned.pipeline, "failed" if note.error else "stopped", run, waited, error=note.error)

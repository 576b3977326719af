"""One pipeline, watched: its file, its run and its history every second, the expensive queries when they are due.

One thread polls. Others ask for views at any time, and wait at most for one to be made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from penstock.assembly.reaching import storage_of
from penstock.checkpoint.presence import RUN_NOTE, find_run
from penstock.config import PipelineConfig, load
from penstock.dashboard.brokers import Asked
from penstock.dashboard.facts import Facts, Panel
from penstock.dashboard.looks import (
    LagLook,
    QuarantineLook,
    attempt,
    look_at_checkpoint,
    look_at_files,
    look_for_causes,
)
from penstock.dashboard.overview import overview_row
from penstock.dashboard.recent import HistoryTail, Recent, in_utc, moment
from penstock.dashboard.views import Sent, Views
from penstock.errors import PenstockError
from penstock.metrics.history import Lists, history_of, in_lists
from penstock.model import TopicPartition
from penstock.storage import is_local

_RUN_SECONDS = 3.0
"""How long a run may be dead before it shows, whose note has not changed."""
_SILENT_SECONDS = 20.0
"""A run that tells of its lag does so every five."""
_WATCHED_SECONDS = 45.0
_PERIODS: Mapping[str, float] = {"lag": 10, "quarantine": 10, "checkpoint": 10, "diagnosis": 15}
"""How often the looks at a watched pipeline are made, at most."""
_LONGEST = 600
_Signature = tuple[int, ...] | None
Look = Callable[[PipelineConfig], dict[str, Any]]


class PipelineWatch:
    """Everything about one pipeline file."""

    def __init__(self, name: str, file: Path) -> None:
        self.facts = Facts(name, str(file))
        self._file = file
        self._file_seen: _Signature = ()
        self._run_seen: _Signature = ()
        self._run_at = self._watched_until = 0.0
        self._tail: HistoryTail | None = None
        self._files_seen: object = None
        self._lock = threading.Lock()
        self._views = Views()
        self._lag, self._quarantine = LagLook(), QuarantineLook()
        self.schedule = Schedule()

    @property
    def watched(self) -> bool:
        """Whether somebody has this pipeline on the screen."""
        return time.monotonic() < self._watched_until

    def watch(self) -> None:
        """Say that somebody has it on the screen, for a while."""
        self._watched_until = time.monotonic() + _WATCHED_SECONDS

    def poll(self) -> None:
        """Look at what is cheap. What is wrong is part of what is known."""
        self._poll_file()
        config = self.facts.config
        if config is None:
            return
        if is_local(config.checkpoint):
            self._poll_run(config)
        entries = self._tail.read() if self._tail is not None else []
        if entries:
            with self._lock:
                for entry in entries:
                    self.facts.recent.take(entry)

    def row(self, now: float) -> dict[str, Any]:
        """For the overview."""
        with self._lock:
            try:
                return overview_row(self.facts, now)
            except Exception as error:
                return overview_row(self.facts.without_run(error), now)

    def send(self, before: Sent | None = None) -> Sent | None:
        """The details that a page has not got; nothing where it has got everything."""
        with self._lock:
            try:
                return self._views.send(self.facts, before)
            except Exception as error:
                return Views().send(self.facts.without_run(error), None)

    def due(self, now: float) -> list[Callable[[], None]]:
        """The looks to be made now, each to be called once."""
        config = self.facts.config
        if config is None:
            return []
        found: list[Callable[[], None]] = []
        away = not is_local(config.checkpoint)
        if away and self.schedule.take("run", _RUN_SECONDS, now):
            # By requests to a store, which may be slow: not where all pipelines are polled.
            found.append(partial(self._poll_run, config))
        if not self.facts.running and self.schedule.take("files", 60 if away else 10, now):
            found.append(partial(self._look_at_files, config))
        looks: dict[str, Look] = {
            "lag": self._lag,
            "quarantine": self._quarantine,
            "checkpoint": look_at_checkpoint,
            "diagnosis": look_for_causes,
        }
        for name, look in looks.items() if self.watched else ():
            if self.schedule.take(name, _PERIODS[name], now):
                found.append(partial(self._look, name, look, config))
        return found

    @property
    def needs_brokers(self) -> bool:
        """Whether nobody else tells where the logs end: no run, and no look at the lag."""
        columns = self.facts.recent.columns
        fresh = bool(columns) and time.time() - moment(columns[-1].at) < _SILENT_SECONDS
        return self.facts.config is not None and not fresh and not self.watched

    def told_by_brokers(self, asked: Asked) -> None:
        """Take in what the brokers said."""
        self._keep("brokers", Panel(in_utc(datetime.now(UTC)), problem=asked.problem))
        if asked.ends:
            self._add_column(asked.ends, asked.committed, None)

    def _poll_file(self) -> None:
        seen = _signature(self._file)
        if seen == self._file_seen:
            return
        self._file_seen = seen
        before = self.facts.config
        try:
            config: PipelineConfig | None = load(self._file)
            wrong = None
        except PenstockError as error:
            config, wrong = None, str(error)[:_LONGEST]
        except Exception as error:
            config, wrong = None, f"{self._file}: {type(error).__name__}"
        with self._lock:
            self.facts = replace(self.facts, config=config, wrong=wrong)
            if config is not None and (before is None or before.checkpoint != config.checkpoint):
                self.facts = replace(self.facts, recent=Recent(), run=None, looks={})
                self._tail, self._run_seen = HistoryTail(history_of(config.checkpoint)), ()
        self.schedule.clear()

    def _poll_run(self, config: PipelineConfig) -> None:
        seen, now = _signature(Path(config.checkpoint.removeprefix("file://")) / RUN_NOTE), time.monotonic()
        if is_local(config.checkpoint) and seen == self._run_seen and now - self._run_at < _RUN_SECONDS:
            return
        self._run_seen, self._run_at = seen, now
        before, run, unseen = self.facts.state, None, None
        try:
            run = find_run(config.checkpoint, storage_of(config))
        except Exception as error:
            unseen = f"reading {config.checkpoint}: {type(error).__name__}"
        with self._lock:
            self.facts = replace(self.facts, run=run, unseen=unseen)
        if not is_local(config.checkpoint):
            self.schedule.done("run")
        if self.facts.state != before:
            self.schedule.clear()

    def _look_at_files(self, config: PipelineConfig) -> None:
        """Look at the checkpoint's files where some were written since the last time."""
        folder = Path(config.checkpoint.removeprefix("file://"))
        seen = [_signature(folder / name) for name in ("", "offsets", "commits", "sources", "metadata")]
        if is_local(config.checkpoint) and seen == self._files_seen and "files" in self.facts.looks:
            self.schedule.done("files")
            return
        self._files_seen = seen
        self._look("files", look_at_files, config)

    def _look(self, name: str, look: Look, config: PipelineConfig) -> None:
        looked = attempt(lambda: look(config))
        self.schedule.done(name)
        if self.facts.config is not config:
            return
        if name == "lag":
            self._keep("brokers", replace(looked, found=None))
            if looked.found is not None and not self.facts.running:
                ends, committed = _lists(looked.found["places"])
                self._add_column(ends, committed, looked.found["behind_seconds"])
        self._keep(name, looked)

    def _keep(self, name: str, looked: Panel) -> None:
        with self._lock:
            before = self.facts.looks.get(name)
            if before is not None and looked.problem is not None and before.problem == looked.problem:
                # The same trouble is as old as when it was first seen.
                looked = replace(looked, at=before.at)
            self.facts = replace(self.facts, looks={**self.facts.looks, name: looked})

    def _add_column(self, ends: Lists, committed: Lists, behind: float | None) -> None:
        with self._lock:
            self.facts.recent.add_column(in_utc(datetime.now(UTC)), ends, committed, behind)


def _lists(places: list[tuple[str, int, int, int]]) -> tuple[Lists, Lists]:
    at = {TopicPartition(topic, partition): (done, end) for topic, partition, done, end in places}
    return in_lists({p: end for p, (_, end) in at.items()}), in_lists({p: done for p, (done, _) in at.items()})


def _signature(path: Path) -> _Signature:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)


# When expensive queries run again: never two of a kind at once, and never so often that they cost much.

_SHARE = 30
"""A query that takes a second runs every thirty seconds at most."""


class Schedule:
    """The queries about one thing, by their names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}
        self._began: dict[str, float] = {}
        self._periods: dict[str, float] = {}

    def take(self, name: str, period: float, now: float) -> bool:
        """Whether a query is due now. A caller that gets True runs it, and calls `done`."""
        with self._lock:
            if name in self._began or now < self._due.get(name, 0.0):
                return False
            self._began[name], self._periods[name] = time.monotonic(), period
            return True

    def done(self, name: str) -> None:
        """A query has run."""
        now = time.monotonic()
        with self._lock:
            took = now - self._began.pop(name, now)
            self._due[name] = now + max(self._periods.get(name, 0.0), _SHARE * took)

    def clear(self) -> None:
        """Something has changed: run every query again soon."""
        with self._lock:
            self._due.clear()

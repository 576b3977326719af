"""One pipeline, watched: its file, its run and its history every second, the expensive queries when they are due.

One thread polls. Others ask for views at any time, and wait at most for one to be made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from penstock.assembly.reaching import storage_of
from penstock.checkpoint.presence import RUN_NOTE, find_run
from penstock.config import PipelineConfig, load
from penstock.dashboard.overview import Facts, Panel, overview_row
from penstock.dashboard.panels import (
    Found,
    QuarantineLook,
    attempt,
    checkpoint_panel,
    diagnosis_panel,
    files_panel,
    lag_panel,
    positions_panel,
)
from penstock.dashboard.recent import HistoryTail, Recent, in_utc, moment
from penstock.dashboard.views import Sent, Views
from penstock.errors import PenstockError
from penstock.metrics.history import history_of
from penstock.ops.lag import LagReport, view_lag
from penstock.ops.snapshot import Brokers, Snapshot, take_snapshot
from penstock.storage import is_local

_RUN_SECONDS = 3.0
"""How long a run may be dead before it shows, whose note has not changed."""
_SILENT_SECONDS = 20.0
"""A run that tells of its lag does so every five."""
_WATCHED_SECONDS = 45.0
_PERIODS: Mapping[str, float] = {"close": 10, "quarantine": 10, "at rest": 30}
"""How often each look is made, at most: two at a pipeline that is watched, one at any other that does not run."""
_LONGEST = 600
_Signature = tuple[int, ...] | None


class PipelineWatch:
    """Everything about one pipeline file."""

    def __init__(self, name: str, file: Path, ask: Callable[[PipelineConfig], Brokers]) -> None:
        self.facts = Facts(name, str(file))
        self._file, self._ask = file, ask
        self._file_seen: _Signature = ()
        self._run_seen: _Signature = ()
        self._run_at = self._watched_until = 0.0
        self._tail: HistoryTail | None = None
        self._lock = threading.Lock()
        self._views = Views()
        self._quarantine = QuarantineLook()
        self._lag: LagReport | None = None
        """The lag at the last close look: how it moves is told by the next."""
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
                    # One with an offset that no log can have is left out.
                    with suppress(OverflowError):
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
        if self.watched:
            if self.schedule.take("close", _PERIODS["close"], now, _SHARE_CLOSE):
                found.append(partial(self._look_closely, config))
            if self.schedule.take("quarantine", _PERIODS["quarantine"], now):
                found.append(partial(self._look_into_quarantine, config))
        elif not self._tells and self.schedule.take("at rest", _PERIODS["at rest"] * (2 if away else 1), now):
            found.append(partial(self._look_at_rest, config))
        return found

    @property
    def _tells(self) -> bool:
        """Whether a run tells of its lag, so that nobody else has to be asked."""
        columns = self.facts.recent.columns
        return self.facts.running and bool(columns) and time.time() - moment(columns[-1].at) < _SILENT_SECONDS

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
                self.facts = replace(self.facts, recent=Recent(), run=None, panels={})
                self._lag = None
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

    def _look_closely(self, config: PipelineConfig) -> None:
        """All panels that are views of a snapshot. The diagnosis is the last: it asks others too."""

        def lag(seen: Snapshot) -> Found:
            self._lag = view_lag(seen, self._lag)
            return lag_panel(self._lag)

        views = {"files": files_panel, "lag": lag, "checkpoint": checkpoint_panel, "diagnosis": diagnosis_panel}
        self._view(config, look_at=partial(take_snapshot, brokers=self._ask), views=views)
        self.schedule.done("close")

    def _look_at_rest(self, config: PipelineConfig) -> None:
        """Without the sinks: by its checkpoint and the brokers."""
        views = {"files": files_panel, "lag": positions_panel}
        self._view(config, look_at=partial(take_snapshot, brokers=self._ask, sinks=False), views=views)
        self.schedule.done("at rest")

    def _look_into_quarantine(self, config: PipelineConfig) -> None:
        self._keep(config, "quarantine", *attempt(lambda: self._quarantine(config)))
        self.schedule.done("quarantine")

    def _view(
        self,
        config: PipelineConfig,
        *,
        look_at: Callable[[PipelineConfig], Snapshot],
        views: Mapping[str, Callable[[Snapshot], Found]],
    ) -> None:
        seen, problem = attempt(lambda: look_at(config))
        for name, view in views.items():
            found: Found | None = None
            if seen is not None:
                found, problem = attempt(partial(view, seen))
            self._keep(config, name, found, problem)

    def _keep(self, config: PipelineConfig, name: str, found: Found | None, problem: str | None) -> None:
        at = in_utc(datetime.now(UTC))
        with self._lock:
            if self.facts.config is not config:
                return
            before = self.facts.panels.get(name)
            # The same trouble is as old as when it was first seen.
            since = before.at if before is not None and problem is not None and before.problem == problem else at
            self.facts = replace(self.facts, panels={**self.facts.panels, name: Panel(since, found, problem)})
            if name == "lag" and found is not None and not self._tells:
                self.facts.recent.add_column(at, found["ends"], found["committed"], found["behind_seconds"])


def _signature(path: Path) -> _Signature:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)


# When expensive queries run again: never two of a kind at once, and never so often that they cost much.

_SHARE, _SHARE_CLOSE = 30, 10
"""A query that takes a second runs every thirty seconds at most; one that serves several panels every ten."""


class Schedule:
    """The queries about one thing, by their names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}
        self._under_way: dict[str, tuple[float, float, float]] = {}
        """When each query began, its period and its share."""

    def take(self, name: str, period: float, now: float, share: float = _SHARE) -> bool:
        """Whether a query is due now. A caller that gets True runs it, and calls `done`."""
        with self._lock:
            if name in self._under_way or now < self._due.get(name, 0.0):
                return False
            self._under_way[name] = time.monotonic(), period, share
            return True

    def done(self, name: str) -> None:
        """A query has run."""
        now = time.monotonic()
        with self._lock:
            began, period, share = self._under_way.pop(name)
            self._due[name] = now + max(period, share * (now - began))

    def clear(self) -> None:
        """Something has changed: run every query again soon."""
        with self._lock:
            self._due.clear()

"""All pipelines of a dashboard: cheap checks every second in one thread, expensive queries in a few others.

A poll reads each pipeline's file, its run note and what is new in its history. Requests for views never wait for a
poll, and polls never wait for a broker: the result of an expensive query shows when it is there. A running pipeline
reports about itself in its history; for the others the brokers are asked, through one client per cluster.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from penstock.assembly.reaching import settings_of, storage_of
from penstock.checkpoint.presence import RUN_NOTE, find_run
from penstock.config import PipelineConfig, load
from penstock.dashboard.panels import (
    Found,
    QuarantineQuery,
    checkpoint_panel,
    diagnosis_panel,
    files_panel,
    lag_panel,
    positions_panel,
)
from penstock.dashboard.recent import HistoryTail, Recent, in_utc, moment
from penstock.dashboard.views import Facts, Panel, Sent, Views, overview_row
from penstock.errors import PenstockError, one_line
from penstock.kafka import Cluster
from penstock.kafka.cluster import look_seconds
from penstock.metrics.history import history_of
from penstock.ops.lag import LagReport, find_lag
from penstock.ops.snapshot import Brokers, Snapshot, ask_brokers, take_snapshot
from penstock.storage import is_local

_POLL_SECONDS = 1.0
_THREADS = 3
_UNREACHABLE_SECONDS = 30.0
"""How long brokers that did not answer are not asked again."""
_RUN_SECONDS = 3.0
"""How long a run whose note has not changed may be dead before it shows."""
_SILENT_SECONDS = 20.0
"""A run reports its lag every five seconds."""
_WATCHED_SECONDS = 45.0
_PERIODS: Mapping[str, float] = {"close": 10, "quarantine": 10, "at rest": 30}
"""Seconds between two queries of a kind, at least: two kinds for a pipeline on a screen, one for one at rest."""
_SHARE, _SHARE_CLOSE = 30, 10
"""A query that takes a second runs every thirty seconds at most; one that serves several panels every ten."""
_LONGEST_PROBLEM = 600
_Signature = tuple[int, ...] | None
Result = TypeVar("Result")


@dataclass(frozen=True)
class Overview:
    """The overview in JSON; the version counts its changes."""

    version: int
    rows: str

    @property
    def text(self) -> str:
        """With the current time."""
        return f'{{"at":"{in_utc(datetime.now(UTC))}","pipelines":{self.rows}}}'


class Watcher:
    """The pipelines of a dashboard. It only reads."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = _named(files)
        self._clusters = Clusters()
        self.watches = {name: self._watch(name, file) for name, file in self._files.items()}
        self.overview = Overview(0, "[]")
        self.ready = threading.Event()
        """Every file has been read once."""
        self._stopped = threading.Event()
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._working: set[int] = set()

    @property
    def busy(self) -> bool:
        """Whether a query is running: it may wait for a server, and nobody waits for it."""
        return bool(self._working)

    def follow(self, files: Sequence[Path]) -> None:
        """Watch these files from now on, keeping what is known of those watched before."""
        before, self._files = self._files, _named(files)
        # Replaced as a whole: other threads iterate over it.
        self.watches = {
            name: self.watches[name] if before.get(name) == file else self._watch(name, file)
            for name, file in self._files.items()
        }

    def start(self) -> None:
        """Start the threads."""
        for number in range(_THREADS):
            threading.Thread(target=self._run_queries, name=f"penstock-dashboard-{number}", daemon=True).start()
        threading.Thread(target=self._poll, name="penstock-dashboard", daemon=True).start()

    def stop(self) -> None:
        """Stop; the results of running queries are lost."""
        self._stopped.set()
        for _ in range(_THREADS):
            self._work.put(lambda: None)

    def poll(self) -> None:
        """One round over all pipelines."""
        for watch in self.watches.values():
            watch.poll()
        now = time.time()
        rows = json.dumps([watch.row(now) for watch in self.watches.values()], separators=(",", ":"))
        if rows != self.overview.rows:
            self.overview = Overview(self.overview.version + 1, rows)
        self.ready.set()
        for query in self.due():
            self._work.put(query)

    def due(self) -> list[Callable[[], None]]:
        """The expensive queries that are due now."""
        now = time.monotonic()
        return [query for watch in self.watches.values() for query in watch.due(now)]

    def _watch(self, name: str, file: Path) -> PipelineWatch:
        return PipelineWatch(name, file, self._clusters.ask)

    def _poll(self) -> None:
        while not self._stopped.is_set():
            self.poll()
            self._stopped.wait(_POLL_SECONDS)

    def _run_queries(self) -> None:
        while not self._stopped.is_set():
            query = self._work.get()
            if self._stopped.is_set():
                return
            self._working.add(threading.get_ident())
            try:
                query()
            finally:
                self._working.discard(threading.get_ident())


class PipelineWatch:
    """Everything about one pipeline file."""

    def __init__(self, name: str, file: Path, ask: Callable[[PipelineConfig], Brokers]) -> None:
        self.facts = Facts(name, str(file))
        self._file, self._ask = file, ask
        self._file_signature: _Signature = ()
        self._run_signature: _Signature = ()
        self._run_at = self._watched_until = 0.0
        self._tail: HistoryTail | None = None
        self._lock = threading.Lock()
        self._views = Views()
        self._quarantine = QuarantineQuery()
        self._lag: LagReport | None = None
        """The last report: the next one computes growth from it."""
        self.schedule = Schedule()

    @property
    def watched(self) -> bool:
        """Whether this pipeline is on somebody's screen."""
        return time.monotonic() < self._watched_until

    def watch(self) -> None:
        """Note that it is on somebody's screen."""
        self._watched_until = time.monotonic() + _WATCHED_SECONDS

    def poll(self) -> None:
        """Read the file, the run note and the history. Problems become part of the facts."""
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
                    # An entry with an impossible offset is left out.
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
        """The details that a page does not have yet; none where it has everything."""
        with self._lock:
            try:
                return self._views.send(self.facts, before)
            except Exception as error:
                return Views().send(self.facts.without_run(error), None)

    def due(self, now: float) -> list[Callable[[], None]]:
        """The queries to be made now, each to be called once."""
        config = self.facts.config
        if config is None:
            return []
        remote = not is_local(config.checkpoint)
        queries: list[tuple[str, float, float, Callable[[PipelineConfig], None]]] = []
        if remote:
            # Requests to a store may be slow: not in the thread that polls all pipelines.
            queries.append(("run", _RUN_SECONDS, _SHARE, self._poll_run))
        if self.watched:
            queries.append(("close", _PERIODS["close"], _SHARE_CLOSE, self._query_closely))
            queries.append(("quarantine", _PERIODS["quarantine"], _SHARE, self._query_quarantine))
        elif not self._reports_lag:
            queries.append(("at rest", _PERIODS["at rest"] * (2 if remote else 1), _SHARE, self._query_at_rest))
        return [
            partial(self._run_query, name, query, config)
            for name, period, share, query in queries
            if self.schedule.take(name, period, now, share)
        ]

    def _run_query(self, name: str, query: Callable[[PipelineConfig], None], config: PipelineConfig) -> None:
        try:
            query(config)
        finally:
            self.schedule.done(name)

    @property
    def _reports_lag(self) -> bool:
        """Whether a run reports its lag, so that the brokers need not be asked."""
        columns = self.facts.recent.columns
        return self.facts.running and bool(columns) and time.time() - moment(columns[-1].at) < _SILENT_SECONDS

    def _poll_file(self) -> None:
        signature = _signature(self._file)
        if signature == self._file_signature:
            return
        self._file_signature = signature
        before = self.facts.config
        try:
            config: PipelineConfig | None = load(self._file)
            wrong = None
        except PenstockError as error:
            config, wrong = None, str(error)[:_LONGEST_PROBLEM]
        except Exception as error:
            config, wrong = None, f"{self._file}: {type(error).__name__}"
        with self._lock:
            self.facts = replace(self.facts, config=config, wrong=wrong)
            if config is not None and (before is None or before.checkpoint != config.checkpoint):
                self.facts = replace(self.facts, recent=Recent(), run=None, panels={})
                self._lag = None
                self._tail, self._run_signature = HistoryTail(history_of(config.checkpoint)), ()
        self.schedule.clear()

    def _poll_run(self, config: PipelineConfig) -> None:
        signature, now = _signature(Path(config.checkpoint.removeprefix("file://")) / RUN_NOTE), time.monotonic()
        if is_local(config.checkpoint) and signature == self._run_signature and now - self._run_at < _RUN_SECONDS:
            return
        self._run_signature, self._run_at = signature, now
        before, run, unseen = self.facts.state, None, None
        try:
            run = find_run(config.checkpoint, storage_of(config))
        except Exception as error:
            unseen = f"reading {config.checkpoint}: {type(error).__name__}"
        with self._lock:
            self.facts = replace(self.facts, run=run, unseen=unseen)
        if self.facts.state != before:
            self.schedule.clear()

    def _query_closely(self, config: PipelineConfig) -> None:
        """All panels that are views of a snapshot. The diagnosis is the last: it makes queries of its own."""

        def lag(seen: Snapshot) -> Found:
            self._lag = find_lag(seen, self._lag)
            return lag_panel(self._lag)

        views = {"files": files_panel, "lag": lag, "checkpoint": checkpoint_panel, "diagnosis": diagnosis_panel}
        self._update_panels(config, views, sinks=True)

    def _query_at_rest(self, config: PipelineConfig) -> None:
        """Without the sinks: by its checkpoint and the brokers."""
        self._update_panels(config, {"files": files_panel, "lag": positions_panel}, sinks=False)

    def _query_quarantine(self, config: PipelineConfig) -> None:
        self._keep(config, "quarantine", *_attempt(lambda: self._quarantine(config)))

    def _update_panels(
        self, config: PipelineConfig, views: Mapping[str, Callable[[Snapshot], Found]], *, sinks: bool
    ) -> None:
        snapshot, problem = _attempt(lambda: take_snapshot(config, brokers=self._ask, sinks=sinks))
        for name, view in views.items():
            found: Found | None = None
            if snapshot is not None:
                found, problem = _attempt(partial(view, snapshot))
            self._keep(config, name, found, problem)

    def _keep(self, config: PipelineConfig, name: str, found: Found | None, problem: str | None) -> None:
        at = in_utc(datetime.now(UTC))
        with self._lock:
            if self.facts.config is not config:
                return
            before = self.facts.panels.get(name)
            # A problem that persists keeps the time when it first appeared.
            since = before.at if before is not None and problem is not None and before.problem == problem else at
            self.facts = replace(self.facts, panels={**self.facts.panels, name: Panel(since, found, problem)})
            if name == "lag" and found is not None and not self._reports_lag:
                self.facts.recent.add_column(at, found["ends"], found["committed"], found["behind_seconds"])


def _attempt(query: Callable[[], Result]) -> tuple[Result | None, str | None]:
    """The result of a query, or in one line why it failed: of an unexpected exception only the type, since its text may
    contain anything."""
    try:
        return query(), None
    except PenstockError as error:
        return None, one_line(error)
    except Exception as error:
        return None, f"UNEXPECTED {type(error).__name__}"


def _signature(path: Path) -> _Signature:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)


class Schedule:
    """When the queries about one pipeline run again: never two of a kind at once, nor so often that they cost much."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}
        self._running: dict[str, tuple[float, float, float]] = {}
        """When each query started, its period and its share."""

    def take(self, name: str, period: float, now: float, share: float) -> bool:
        """Whether a query is due now. The caller then runs it, and calls `done`."""
        with self._lock:
            if name in self._running or now < self._due.get(name, 0.0):
                return False
            self._running[name] = time.monotonic(), period, share
            return True

    def done(self, name: str) -> None:
        """A query has run."""
        now = time.monotonic()
        with self._lock:
            began, period, share = self._running.pop(name)
            self._due[name] = now + max(period, share * (now - began))

    def clear(self) -> None:
        """Make every query due again, because something has changed."""
        with self._lock:
            self._due.clear()


@dataclass
class _Client:
    lock: threading.Lock = field(default_factory=threading.Lock)
    cluster: Cluster | None = None
    unreachable: Brokers | None = None
    """The failed answer, until the brokers are asked again."""
    until: float = 0.0


class Clusters:
    """The brokers of all pipelines, through one client for each cluster, kept while they answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[Hashable, _Client] = {}

    def ask(self, config: PipelineConfig) -> Brokers:
        """What the brokers say of a pipeline's partitions. Unreachable ones are asked once for all pipelines."""
        try:
            settings = settings_of(config.source)
            with self._lock:
                client = self._clients.setdefault(settings.identity, _Client())
            with client.lock:
                if client.unreachable is not None and time.monotonic() < client.until:
                    return client.unreachable
                client.cluster = client.cluster or Cluster(settings, look_seconds(settings))
                found = ask_brokers(config, cluster=client.cluster, timed=True)
                client.unreachable = None
                if found.error is not None and found.error.code == "BROKER_UNREACHABLE":
                    client.cluster, client.unreachable = None, found
                    client.until = time.monotonic() + _UNREACHABLE_SECONDS
                return found
        except PenstockError as error:
            return Brokers(error=error)


def _named(files: Sequence[Path]) -> dict[str, Path]:
    """Each file by its stem; those that share one are numbered."""
    found: dict[str, Path] = {}
    for file in dict.fromkeys(files):
        stem, number = file.stem, 2
        name = stem
        while name in found:
            name, number = f"{stem}-{number}", number + 1
        found[name] = file
    return found

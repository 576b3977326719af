"""All pipelines, watched by one thread: cheap things every second, dear ones by a few others.

No request waits for a poll, and no poll for a broker: what is slow is done beside, and shows when it is there. A
pipeline that runs tells of itself in its history; brokers are asked for the others, by one client for each cluster.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue

from penstock.assembly.reaching import settings_of
from penstock.config import PipelineConfig
from penstock.dashboard.pipeline_watch import PipelineWatch
from penstock.dashboard.recent import in_utc
from penstock.errors import PenstockError
from penstock.kafka import Cluster
from penstock.kafka.cluster import look_seconds
from penstock.ops.snapshot import Brokers, ask_brokers

_EVERY = 1.0
_THREADS = 3
_AWAY_SECONDS = 30.0
"""How long brokers that did not answer are left alone."""


@dataclass(frozen=True)
class Overview:
    """The overview in JSON; the version counts up when it says something else."""

    version: int
    rows: str

    @property
    def text(self) -> str:
        """With the time of now."""
        return f'{{"at":"{in_utc(datetime.now(UTC))}","pipelines":{self.rows}}}'


class Watcher:
    """The pipelines of a dashboard. Nothing is changed anywhere."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = _named(files)
        self._clusters = Clusters()
        self.watches = {name: self._watch(name, file) for name, file in self._files.items()}
        self.overview = Overview(0, "[]")
        self.ready = threading.Event()
        """Every file has been looked at once."""
        self._over = threading.Event()
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._looking: set[int] = set()

    @property
    def busy(self) -> bool:
        """Whether a look is being made: it may wait for somebody, and is not waited for."""
        return bool(self._looking)

    def follow(self, files: Sequence[Path]) -> None:
        """Watch these files from now on; what is known of one that was watched before stays known."""
        before, self._files = self._files, _named(files)
        # In one piece: others go through it meanwhile.
        self.watches = {
            name: self.watches[name] if before.get(name) == file else self._watch(name, file)
            for name, file in self._files.items()
        }

    def start(self) -> None:
        """Begin to watch."""
        for number in range(_THREADS):
            threading.Thread(target=self._look, name=f"penstock-dashboard-{number}", daemon=True).start()
        threading.Thread(target=self._poll, name="penstock-dashboard", daemon=True).start()

    def stop(self) -> None:
        """End watching; what is being looked at comes to nothing."""
        self._over.set()
        for _ in range(_THREADS):
            self._work.put(lambda: None)

    def poll(self) -> None:
        """One round."""
        for watch in self.watches.values():
            watch.poll()
        now = time.time()
        rows = json.dumps([watch.row(now) for watch in self.watches.values()], separators=(",", ":"))
        if rows != self.overview.rows:
            self.overview = Overview(self.overview.version + 1, rows)
        self.ready.set()
        for look in self.due():
            self._work.put(look)

    def due(self) -> list[Callable[[], None]]:
        """The expensive queries that are due now."""
        now = time.monotonic()
        return [look for watch in self.watches.values() for look in watch.due(now)]

    def _watch(self, name: str, file: Path) -> PipelineWatch:
        return PipelineWatch(name, file, self._clusters.ask)

    def _poll(self) -> None:
        while not self._over.is_set():
            self.poll()
            self._over.wait(_EVERY)

    def _look(self) -> None:
        while not self._over.is_set():
            look = self._work.get()
            if self._over.is_set():
                return
            self._looking.add(threading.get_ident())
            try:
                look()
            finally:
                self._looking.discard(threading.get_ident())


@dataclass
class _Client:
    lock: threading.Lock = field(default_factory=threading.Lock)
    cluster: Cluster | None = None
    away: Brokers | None = None
    """Why the brokers did not answer, for as long as they are left alone."""
    until: float = 0.0


class Clusters:
    """The brokers of all pipelines, through one client for each cluster that is kept while they answer it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[Hashable, _Client] = {}

    def ask(self, config: PipelineConfig) -> Brokers:
        """What the brokers say of a pipeline's partitions. Those that are away are asked once for all pipelines."""
        try:
            settings = settings_of(config.source)
            with self._lock:
                client = self._clients.setdefault(settings.identity, _Client())
            with client.lock:
                if client.away is not None and time.monotonic() < client.until:
                    return client.away
                client.cluster = client.cluster or Cluster(settings, look_seconds(settings))
                found = ask_brokers(config, cluster=client.cluster, timed=True)
                client.away = None
                if found.error is not None and found.error.code == "BROKER_UNREACHABLE":
                    client.cluster, client.away = None, found
                    client.until = time.monotonic() + _AWAY_SECONDS
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

"""All pipelines, watched by one thread: cheap things every second, dear ones by a few others.

No request waits for a poll, and no poll for a broker: what is slow is done beside, and shows when it is there. A
pipeline that runs tells of itself in its history; brokers are asked for the others, once for each cluster.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from penstock.config import PipelineConfig
from penstock.dashboard.brokers import ClusterLook, same_cluster
from penstock.dashboard.pipeline_watch import PipelineWatch, Schedule
from penstock.dashboard.recent import in_utc

_EVERY = 1.0
_THREADS = 3
_BROKER_SECONDS = 30.0


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
        self.watches = {name: PipelineWatch(name, file) for name, file in self._files.items()}
        self.overview = Overview(0, "[]")
        self.ready = threading.Event()
        """Every file has been looked at once."""
        self._over = threading.Event()
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._looking: set[int] = set()
        self._clusters: dict[Hashable, ClusterLook] = {}
        self._schedule = Schedule()

    @property
    def busy(self) -> bool:
        """Whether a look is being made: it may wait for somebody, and is not waited for."""
        return bool(self._looking)

    def follow(self, files: Sequence[Path]) -> None:
        """Watch these files from now on; what is known of one that was watched before stays known."""
        before, self._files = self._files, _named(files)
        # In one piece: others go through it meanwhile.
        self.watches = {
            name: self.watches[name] if before.get(name) == file else PipelineWatch(name, file)
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
            with suppress(Exception):
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
        found = [look for watch in self.watches.values() for look in watch.due(now)]
        together: dict[Hashable, dict[str, PipelineConfig]] = {}
        for name, watch in self.watches.items():
            if watch.needs_brokers and watch.facts.config is not None:
                config = watch.facts.config
                together.setdefault(same_cluster(config), {})[name] = config
        for cluster, configs in together.items():
            if self._schedule.take(str(hash(cluster)), _BROKER_SECONDS, now):
                found.append(partial(self._ask, cluster, configs))
        return found

    def _ask(self, cluster: Hashable, configs: dict[str, PipelineConfig]) -> None:
        try:
            for name, asked in self._clusters.setdefault(cluster, ClusterLook())(configs).items():
                if (watch := self.watches.get(name)) is not None:
                    watch.told_by_brokers(asked)
        finally:
            self._schedule.done(str(hash(cluster)))

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
            with suppress(Exception):
                look()
            self._looking.discard(threading.get_ident())


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

"""The brokers, looked at every few seconds while a pipeline runs: lag is true also while a batch is long or hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from penstock.checkpoint import Offsets
from penstock.kafka import Cluster, KafkaSettings
from penstock.kafka.ages import first_unread
from penstock.model import TopicPartition

LOOK_SECONDS = 5.0
_AGES_EVERY = 4
"""Reading records for their times is dearer than asking for offsets: it is done at every fourth look, and not for a
partition whose first unread record is still the one that was read."""
_BROKER_SECONDS = 5.0


@dataclass(frozen=True)
class Seen:
    """Where the sinks and the logs are at one moment."""

    at: datetime
    committed: Offsets
    ends: Offsets
    behind: Mapping[TopicPartition, float] = field(default_factory=dict)
    """The age in seconds of the first unread record, where one is unread and could be looked at."""

    @property
    def lags(self) -> Offsets:
        """The offsets that wait in each partition."""
        return {at: max(0, end - self.committed[at]) for at, end in self.ends.items()}

    @property
    def behind_seconds(self) -> float | None:
        """The age of the worst partition; none where nothing waits."""
        return max(self.behind.values(), default=None)


class Lookout:
    """Looks from a thread of its own, first when it is woken. What cannot be seen is left out."""

    def __init__(self, settings: KafkaSettings, committed: Callable[[], Offsets], tell: Callable[[Seen], None]) -> None:
        self._settings, self._committed, self._tell = settings, committed, tell
        self._first: dict[TopicPartition, tuple[int, datetime]] = {}
        self._ages: dict[TopicPartition, float] = {}
        self._woken, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-lookout", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is something to look at."""
        self._woken.set()

    def close(self) -> None:
        """Look no longer. A look at brokers that are away is not waited for."""
        self._over.set()
        self._woken.set()
        self._thread.join(1)

    def _run(self) -> None:
        self._woken.wait()
        cluster: Cluster | None = None
        looks = 0
        while not self._over.is_set():
            with suppress(Exception):
                cluster = cluster or Cluster(self._settings, _BROKER_SECONDS)
                self._look(cluster, with_ages=looks % _AGES_EVERY == 0)
            looks += 1
            self._over.wait(LOOK_SECONDS)

    def _look(self, cluster: Cluster, *, with_ages: bool) -> None:
        committed = self._committed()
        ends = {at: bounds.end for at, bounds in cluster.bounds(committed).items()}
        unread = {at: committed[at] for at, end in ends.items() if end > committed[at]}
        now = datetime.now(UTC)
        if with_ages:
            moved = {at: start for at, start in unread.items() if self._first.get(at, (None,))[0] != start}
            found = first_unread(self._settings, moved) if moved else {}
            self._first |= {at: (moved[at], when) for at, when in found.items()}
        # The age of a record that was carried meanwhile is the last one that is known, and does not grow.
        first = {at: when for at, (start, when) in self._first.items() if unread.get(at) == start}
        ages = {**self._ages, **{at: max(0.0, (now - when).total_seconds()) for at, when in first.items()}}
        self._ages = {at: age for at, age in ages.items() if at in unread}
        self._tell(Seen(now, committed, ends, self._ages))

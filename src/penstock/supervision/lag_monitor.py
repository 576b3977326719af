"""The lag of a running pipeline, read from the brokers every few seconds, even while a batch is long or hangs."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from confluent_kafka import KafkaException

from penstock.background import Repeating
from penstock.checkpoint import Offsets
from penstock.errors import PenstockError
from penstock.kafka import Cluster, KafkaSettings
from penstock.kafka.ages import first_unread
from penstock.model import TopicPartition, lags_of

LOOK_SECONDS = 5.0
_AGES_EVERY = 4
"""Reading records for their timestamps costs more than listing offsets: it is done every fourth time, and not for a
partition whose first unread record is still the same."""
_BROKER_SECONDS = 5.0


@dataclass(frozen=True)
class LagSample:
    """The offsets of the sinks and the logs at one moment."""

    at: datetime
    committed: Offsets
    ends: Offsets
    behind: Mapping[TopicPartition, float] = field(default_factory=dict)
    """The age in seconds of the first unread record, or its upper bound; None if unknown or nothing waits."""

    @property
    def lags(self) -> Offsets:
        """The offsets that wait in each partition."""
        return lags_of(self.ends, self.committed)

    @property
    def behind_seconds(self) -> float | None:
        """The age of the worst partition; none where nothing waits."""
        return max(self.behind.values(), default=None)


class LagMonitor:
    """Samples the lag in the background once it is woken. Partitions without an answer are left out."""

    def __init__(
        self, settings: KafkaSettings, committed: Callable[[], Offsets], tell: Callable[[LagSample], None]
    ) -> None:
        self._settings, self._committed, self._tell = settings, committed, tell
        self._first: dict[TopicPartition, tuple[int, datetime]] = {}
        self._earlier: deque[tuple[datetime, Offsets]] = deque(maxlen=2 * _AGES_EVERY)
        self._cluster: Cluster | None = None
        self._looks = itertools.count()
        self._telling = threading.Lock()
        self._closed = False
        self._sampling: Repeating | None = None

    def wake(self) -> None:
        """Start sampling: there is something to measure."""
        if self._sampling is None:
            self._sampling = Repeating("lag", self._sample, 0)

    def close(self) -> None:
        """Stop sampling. A request to brokers that are away is not waited for, and its result is dropped."""
        with self._telling:
            self._closed = True
        if self._sampling is not None:
            self._sampling.close(1)
        self._cluster = None  # its client is closed with the last reference

    def _sample(self) -> float:
        with_ages = next(self._looks) % _AGES_EVERY == 0
        with suppress(PenstockError, KafkaException):
            self._cluster = self._cluster or Cluster(self._settings, _BROKER_SECONDS)
            self._look(self._cluster, with_ages=with_ages)
        if self._closed:
            self._cluster = None
        return LOOK_SECONDS

    def _look(self, cluster: Cluster, *, with_ages: bool) -> None:
        committed = self._committed()
        ends = {at: bounds.end for at, bounds in cluster.bounds(committed).items()}
        unread = {at: committed[at] for at, end in ends.items() if end > committed[at]}
        now = datetime.now(UTC)
        if with_ages:
            moved = {at: start for at, start in unread.items() if self._first.get(at, (None,))[0] != start}
            found = first_unread(self._settings, moved) if moved else {}
            self._first |= {at: (moved[at], when) for at, when in found.items()}
        since = {
            at: when
            for at, start in unread.items()
            if (when := unread_since(start, self._first.get(at), [(seen, e.get(at)) for seen, e in self._earlier]))
        }
        self._earlier.append((now, ends))
        behind = {at: max(0.0, (now - when).total_seconds()) for at, when in since.items()}
        with self._telling:
            if not self._closed:
                self._tell(LagSample(now, committed, ends, behind))


def unread_since(
    start: int, read: tuple[int, datetime] | None, ends: Iterable[tuple[datetime, int | None]]
) -> datetime | None:
    """The time of the record at `start`, or the latest that it is known to be no older than.

    `read` is the offset and time of the last record read, `ends` the log ends at earlier samples: later records are
    newer.
    """
    if read is not None and read[0] == start:
        return read[1]
    before = [seen for seen, end in ends if end is not None and end <= start]
    return max([*before, read[1]] if read is not None and read[0] < start else before, default=None)

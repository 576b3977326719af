"""What a run shows of itself: its history, its consumer group, its metrics, its alerts. Nothing here can stop it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from confluent_kafka import KafkaException

from penstock.assembly.build import Pipeline
from penstock.assembly.reaching import checkpoint_of
from penstock.checkpoint import Offsets
from penstock.config import MetricsConfig
from penstock.engine.listener import (
    AlertChanged,
    BatchDone,
    BatchPhase,
    Event,
    Listener,
    Notice,
    Retrying,
    Started,
)
from penstock.errors import PenstockError
from penstock.kafka import Cluster, KafkaSettings
from penstock.kafka.ages import first_unread
from penstock.kafka.groups import GroupCommitter
from penstock.metrics.alerts import Alert, Observation
from penstock.metrics.history import (
    AlertNoted,
    FlowChanged,
    GroupNoted,
    History,
    LagNoted,
    RetryNoted,
    RunEnded,
    RunStarted,
    StateKept,
    in_lists,
)
from penstock.metrics.otel import OtelPush
from penstock.metrics.prometheus import Exposition
from penstock.model import TopicPartition, lags_of
from penstock.supervision.alerting import Alerting


class Figures:
    """Exposes what it hears, until it is closed."""

    def __init__(self, pipeline: str, config: MetricsConfig, tell: Callable[[str], None]) -> None:
        self._exposition = Exposition(pipeline)
        self._push: OtelPush | None = None
        if config.port is not None:
            port = self._exposition.serve(config.host, config.port)
            tell(f"metrics at http://{config.host}:{port}/metrics")
        if config.otel is not None:
            self._push = OtelPush(
                self._exposition,
                config.otel.endpoint,
                config.otel.every,
                lambda failed: tell(f"metrics are not pushed: {failed}" if failed else "metrics are pushed again"),
            )

    def hear(self, event: Event) -> None:
        """Take in what happened."""
        match event:
            case Started() | BatchPhase():
                self._exposition.started()
            case BatchDone(metrics):
                self._exposition.batch(metrics)
            case StateKept():
                self._exposition.state(event.rows, event.size_bytes)
            case FlowChanged():
                self._exposition.flow(event.cap, event.reason)
            case Retrying(error):
                self._exposition.retried(error.code)

    def see(self, seen: LagSample) -> None:
        """Take in where the logs are."""
        self._exposition.lag(seen.lags, seen.behind)

    def group(self, ok: bool) -> None:
        """Take in whether the consumer group is told."""
        self._exposition.group(ok)

    def close(self) -> None:
        """Push what there is, and answer no longer."""
        if self._push is not None:
            self._push.close()
        self._exposition.close()


_OLD = timedelta(seconds=30)
"""A look at the brokers that is older says nothing about the lag of now."""


@contextmanager
def observed(pipeline: Pipeline, history: History, listener: Listener) -> Iterator[Listener]:
    """The listener of the run, which also shows what it hears."""
    error: str | None = "INTERRUPTED"
    observer = RunObserver(pipeline, history, listener)
    try:
        yield observer.hear
        error = None
    except PenstockError as fault:
        error = fault.code
        raise
    finally:
        observer.close()
        history.add(RunEnded(error))


class RunObserver:
    """Hears a run, tells its listener, and shows what others may see."""

    def __init__(self, pipeline: Pipeline, history: History, listener: Listener) -> None:
        config = pipeline.config
        self._pipeline, self._history, self._listener = pipeline, history, listener
        self._committed: Offsets = {}
        self._seen: LagSample | None = None
        self._rows_in = self._quarantined = 0
        self._last_commit_at: datetime | None = None
        self._restarts = _restarts(history, datetime.now(UTC))
        self._figures: Figures | None = None
        self._group: GroupCommitter | None = None
        self._lag: LagMonitor | None = None
        self._alerting: Alerting | None = None
        if config.metrics is not None:
            self._figures = Figures(config.name, config.metrics, self._tell)

    def hear(self, event: Event) -> None:
        """Take in what happened, and pass it on."""
        if self._figures is not None:
            self._figures.hear(event)
        match event:
            case Started():
                self._history.add(RunStarted(event.lane, event.partitions, event.cores, os.getpid()))
                self._start()
            case BatchPhase(batch_id, _) if not self._committed:
                # A pipeline that has committed nothing is where its first batch begins.
                with suppress(PenstockError):
                    self._know(checkpoint_of(self._pipeline.config).starts(batch_id))
            case BatchDone(metrics):
                self._history.add(metrics)
                self._rows_in += metrics.rows_in
                self._quarantined += metrics.quarantined
                self._last_commit_at = metrics.finished_at
                self._know(metrics.ends)
                if self._group is not None:
                    self._group.put(metrics.ends)
            case StateKept() | FlowChanged() | Notice():
                self._history.add(event)
            case AlertChanged():
                state = "firing" if event.firing else "resolved"
                self._history.add(AlertNoted(event.rule, state, event.text))
            case Retrying(error, attempt, delay):
                self._restarts += (datetime.now(UTC),)
                self._history.add(RetryNoted(error.code, error.summary, attempt, delay))
        self._listener(event)

    def close(self) -> None:
        """The run is over."""
        for part in (self._lag, self._group, self._alerting, self._figures):
            if part is not None:
                part.close()

    def _start(self) -> None:
        """Begin to look: there is something to see once the query runs."""
        config, settings = self._pipeline.config, self._pipeline.settings
        checkpoint = checkpoint_of(config)
        if config.group is not None:
            self._group = GroupCommitter(settings, config.group, self._hear_group)
        self._lag = LagMonitor(settings, lambda: self._committed, self._see)
        with suppress(PenstockError):
            if (done := checkpoint.last_committed()) is not None:
                self._know(checkpoint.ends(done))
        if config.alerts is not None:
            self._alerting = Alerting(config, settings, self._observe, self._hear_alert, self._tell)

    def _know(self, committed: Mapping[TopicPartition, int]) -> None:
        self._committed = {**self._committed, **committed}
        if self._lag is not None:
            self._lag.wake()

    def _tell(self, text: str) -> None:
        self.hear(Notice(text))

    def _hear_alert(self, alert: Alert) -> None:
        self.hear(AlertChanged(alert.rule, alert.state == "firing", alert.text))

    def _hear_group(self, failed: str | None) -> None:
        self._history.add(GroupNoted(failed))
        if self._figures is not None:
            self._figures.group(failed is None)
        group = self._pipeline.config.group
        self._tell(
            f"consumer group {group} is not told the offsets, the stream goes on: {failed}"
            if failed
            else f"consumer group {group} is told the offsets again"
        )

    def _see(self, seen: LagSample) -> None:
        self._seen = seen
        behind = seen.behind_seconds
        self._history.add(
            LagNoted(
                committed=in_lists(seen.committed),
                ends=in_lists(seen.ends),
                total=sum(seen.lags.values()),
                behind_seconds=round(behind, 1) if behind is not None else None,
            )
        )
        if self._figures is not None:
            self._figures.see(seen)

    def _observe(self) -> Observation:
        now, seen = datetime.now(UTC), self._seen
        if seen is not None and now - seen.at > _OLD:
            seen = None
        return Observation(
            at=now,
            lag=sum(seen.lags.values()) if seen is not None else None,
            behind_seconds=seen.behind_seconds if seen is not None else None,
            last_commit_at=self._last_commit_at,
            quarantined=self._quarantined,
            rows_in=self._rows_in,
            restarts=self._restarts,
        )


def _restarts(history: History, now: datetime) -> tuple[datetime, ...]:
    """When the pipeline had to be started again, within a process or after one that failed or was killed."""
    found: list[datetime] = []
    ended_well = True
    for entry in history.read(RunStarted, RunEnded, RetryNoted, since=now - timedelta(days=1)):
        match entry.fact:
            case RetryNoted():
                found.append(entry.at)
            case RunStarted() if not ended_well:
                found.append(entry.at)
        ended_well = entry.fact == RunEnded(None)
    return (*found, now) if not ended_well else tuple(found)


# The brokers, looked at every few seconds while a pipeline runs: lag is true also while a batch is long or hangs.

LOOK_SECONDS = 5.0
_AGES_EVERY = 4
"""Reading records for their times is dearer than asking for offsets: it is done at every fourth look, and not for a
partition whose first unread record is still the one that was read."""
_BROKER_SECONDS = 5.0


@dataclass(frozen=True)
class LagSample:
    """Where the sinks and the logs are at one moment."""

    at: datetime
    committed: Offsets
    ends: Offsets
    behind: Mapping[TopicPartition, float] = field(default_factory=dict)
    """The age in seconds of the first unread record, or the most that it can be; where one waits, and that is known."""

    @property
    def lags(self) -> Offsets:
        """The offsets that wait in each partition."""
        return lags_of(self.ends, self.committed)

    @property
    def behind_seconds(self) -> float | None:
        """The age of the worst partition; none where nothing waits."""
        return max(self.behind.values(), default=None)


class LagMonitor:
    """Looks from a thread of its own, first when it is woken. What cannot be seen is left out."""

    def __init__(
        self, settings: KafkaSettings, committed: Callable[[], Offsets], tell: Callable[[LagSample], None]
    ) -> None:
        self._settings, self._committed, self._tell = settings, committed, tell
        self._first: dict[TopicPartition, tuple[int, datetime]] = {}
        self._earlier: deque[tuple[datetime, Offsets]] = deque(maxlen=2 * _AGES_EVERY)
        self._woken, self._over = threading.Event(), threading.Event()
        self._telling = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="penstock-lag", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is something to look at."""
        self._woken.set()

    def close(self) -> None:
        """Stop looking. A look at brokers that are away is not waited for, and its result is dropped."""
        with self._telling:
            self._over.set()
        self._woken.set()
        self._thread.join(1)

    def _run(self) -> None:
        self._woken.wait()
        cluster: Cluster | None = None
        looks = 0
        while not self._over.is_set():
            with suppress(PenstockError, KafkaException):
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
        since = {
            at: when
            for at, start in unread.items()
            if (when := unread_since(start, self._first.get(at), [(seen, e.get(at)) for seen, e in self._earlier]))
        }
        self._earlier.append((now, ends))
        behind = {at: max(0.0, (now - when).total_seconds()) for at, when in since.items()}
        with self._telling:
            if not self._over.is_set():
                self._tell(LagSample(now, committed, ends, behind))


def unread_since(
    start: int, read: tuple[int, datetime] | None, ends: Iterable[tuple[datetime, int | None]]
) -> datetime | None:
    """The time of the record at `start`, or the latest that it is known to be no older than.

    `read` is the offset and the time of the record that was read last, `ends` where the log ended at earlier looks:
    what comes after either is newer.
    """
    if read is not None and read[0] == start:
        return read[1]
    before = [seen for seen, end in ends if end is not None and end <= start]
    return max([*before, read[1]] if read is not None and read[0] < start else before, default=None)

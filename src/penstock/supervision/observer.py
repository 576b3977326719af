"""What a run shows of itself: its history, its consumer group, its metrics, its alerts. Nothing here can stop it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

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
from penstock.kafka.groups import GroupCommitter
from penstock.metrics.alerts import Alert, Observation
from penstock.metrics.history import (
    AlertNoted,
    FlowChanged,
    GroupNoted,
    History,
    LagNoted,
    NoticeNoted,
    RetryNoted,
    RunEnded,
    RunStarted,
    StateKept,
    in_lists,
)
from penstock.metrics.otel import OtelPush
from penstock.metrics.prometheus import Exposition
from penstock.model import TopicPartition
from penstock.supervision.alerting import Alerting
from penstock.supervision.lag_monitor import LagMonitor, LagSample


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
            case StateKept() | FlowChanged():
                self._history.add(event)
            case AlertChanged():
                state = "firing" if event.firing else "resolved"
                self._history.add(AlertNoted(event.rule, state, event.text))
            case Retrying(error, attempt, delay):
                self._restarts += (datetime.now(UTC),)
                self._history.add(RetryNoted(error.code, error.summary, attempt, delay))
            case Notice(text):
                self._history.add(NoticeNoted(text))
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

"""The outside view of a run: its note in the checkpoint folder, history, consumer group, metrics and alerts.

Once the run has started, no error here can stop it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from penstock.assembly.build import Pipeline
from penstock.assembly.reaching import checkpoint_of
from penstock.checkpoint import Offsets
from penstock.checkpoint.presence import Presence, RunFacts
from penstock.config import MetricsConfig
from penstock.engine.listener import (
    AlertChanged,
    BatchDone,
    BatchPhase,
    Event,
    Listener,
    Notice,
    Retrying,
    Stalled,
    Started,
    Stopping,
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
    """Exports the metrics of a run until it is closed."""

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
        """Take in the lag."""
        self._exposition.lag(seen.lags, seen.behind)

    def group(self, ok: bool) -> None:
        """Take in whether the consumer group gets the offsets."""
        self._exposition.group(ok)

    def close(self) -> None:
        """Push the last metrics, and stop serving them."""
        if self._push is not None:
            self._push.close()
        self._exposition.close()


_OLD = timedelta(seconds=30)
"""Older lag samples say nothing about the current lag."""


@contextmanager
def observe_run(
    pipeline: Pipeline, history: History, listener: Listener, on_stop: Callable[[], None]
) -> Iterator[Listener]:
    """The listener of the run, which also shows what it hears. A stop request at the checkpoint calls `on_stop`."""
    presence = Presence(pipeline.config.checkpoint, pipeline.storage)
    presence.begin(RunFacts(pipeline=pipeline.config.name, lane=pipeline.lane.lane))
    with _ending(presence.end), presence.heartbeat(on_stop):
        observer = RunObserver(pipeline, history, presence, listener)
        with _ending(lambda error: history.add(RunEnded(error))):
            try:
                yield observer.hear
            finally:
                observer.close()


@contextmanager
def _ending(note: Callable[[str | None], None]) -> Iterator[None]:
    """Note how the work inside ended: by which error, if by one."""
    error: str | None = "INTERRUPTED"
    try:
        yield
        error = None
    except PenstockError as fault:
        error = fault.code
        raise
    finally:
        note(error)


def _after(facts: RunFacts, event: Event) -> RunFacts:
    match event:
        case Started():
            return replace(facts, doing="running")
        case Retrying():
            return replace(facts, doing=f"waiting to retry: {event.error.code}", stalled=None)
        case Stalled(text):
            return replace(facts, stalled=text)
        case Stopping():
            return replace(facts, doing="stopping")
        case BatchPhase(_, phase):
            return replace(facts, phase=phase)
        case BatchDone(metrics):
            return replace(
                facts,
                phase=None,
                stalled=None,
                doing=facts.doing if facts.doing == "stopping" else "running",
                batches=facts.batches + 1,
                batch_id=metrics.batch_id,
                batch_at=metrics.finished_at.isoformat(),
                batch_seconds=round(metrics.seconds, 3),
                rows_in=metrics.rows_in,
                rows_out=metrics.rows_out,
                quarantined=metrics.quarantined,
                lag=metrics.lag,
            )
    return facts


class RunObserver:
    """Takes the events of a run, publishes what others may see of them, and passes them on to the listener."""

    def __init__(self, pipeline: Pipeline, history: History, presence: Presence, listener: Listener) -> None:
        config = pipeline.config
        self._pipeline, self._history, self._listener = pipeline, history, listener
        self._presence, self._facts = presence, RunFacts(pipeline=config.name, lane=pipeline.lane.lane)
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
                # Before its first commit a pipeline is at the start of its first batch.
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
        facts = _after(self._facts, event)
        if facts != self._facts:
            self._facts = facts
            # A phase is over soon: it is written with the next beat.
            self._presence.beat(facts, now=not isinstance(event, BatchPhase))
        self._listener(event)

    def close(self) -> None:
        """The run is over."""
        for part in (self._lag, self._group, self._alerting, self._figures):
            if part is not None:
                part.close()

    def _start(self) -> None:
        """Start what needs a running query: consumer group, lag, alerts."""
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
            f"offsets are not committed to consumer group {group}, the stream continues: {failed}"
            if failed
            else f"offsets are committed to consumer group {group} again"
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

"""One start of the query: its batches as Spark calls for them, and the watch over it until it ends or is stopped.

Spark calls for each batch: what is due between two batches is done first, then the batch, then what follows from it. A
read limit that flow control has changed is set in the running query: that takes milliseconds, a restart of the query a
third of a second.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from penstock.assembly.build import Pipeline
from penstock.assembly.faults import checkpoint_gone, only_reporting_failed, translate_error
from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.lock import CheckpointLock
from penstock.contracts import Sink
from penstock.engine.batch import BatchRunner
from penstock.engine.batches import LoggedBatches
from penstock.engine.committer import Committer
from penstock.engine.flows import CurrentFlows
from penstock.engine.listener import (
    BatchDone,
    BatchPhase,
    Event,
    Listener,
    Notice,
    Stalled,
    Started,
    StateKept,
    Stopping,
)
from penstock.engine.orphans import Orphans
from penstock.engine.patience import StopRequest
from penstock.engine.query import BatchGate, start_query
from penstock.errors import PenstockError, TransientError
from penstock.metrics import BatchMetrics
from penstock.model import BatchToken
from penstock.preflight.checks import Agreement, StartPoint
from penstock.preflight.options import RunOptions, RunSummary
from penstock.preflight.recreated import SameTopics, TopicIds
from penstock.spark.executors import Attempts, Executors, QueryWork
from penstock.spark.internals import jvm_of, limit_batches, revive_callback_server
from penstock.supervision.flow_control import FlowControl
from penstock.supervision.upkeep import Chores, lock_of
from penstock.supervision.watchdog import Watchdog

_WITH_SPARK = ("Processing new data", "No new data but cleaning up state")
"""Spark's status messages of a query whose batch has started."""
_TELL_AGAIN_SECONDS = 60.0
_ASK_SECONDS = 5.0
_QUERY_SECONDS = 10.0


@dataclass(kw_only=True)
class RunContext:
    """What all starts of the query in one run share."""

    flows: CurrentFlows
    topics: TopicIds
    start: StartPoint
    agreed: Agreement
    options: RunOptions
    listener: Listener
    stop: StopRequest
    hold: CheckpointLock
    """The lock of the checkpoint."""
    chores: Chores
    control: FlowControl
    summary: RunSummary
    started: bool = False
    """Whether the listener was notified that the query runs."""
    revived_at: float | None = None
    """When it was last reported that Spark could not call back."""

    @property
    def pipeline(self) -> Pipeline:
        """The parts of the pipeline, with the current schemas."""
        return self.flows.pipeline

    @property
    def session(self) -> Any:
        """The Spark session."""
        return self.flows.session

    @property
    def checkpoint(self) -> SparkCheckpoint:
        """The checkpoint, which this run has locked."""
        return self.topics.checkpoint


class RunningQuery:
    """One start of the query."""

    def __init__(self, run: RunContext, until: int | None) -> None:
        self._run, self._flows = run, run.flows
        self._gate = BatchGate(self._carry, until)
        self._batches = LoggedBatches(run.checkpoint, run.topics.cluster)
        self._runner: BatchRunner | None = None
        self._garbage: Garbage | None = None
        self._query: Any = None
        self._known = threading.Event()
        """Set once Spark has returned the query; its first batch may have started before."""
        self._watchdog: Watchdog | None = None
        self._phase: str | None = None
        self._idle_since: float | None = None
        self._stalled = False
        self._interrupted = False
        self.stuck = False
        """Whether a batch hangs in this process, so that the query cannot be stopped."""

    def run(self) -> bool:
        """Run the query to its end, or past the last wanted batch; returns false if it must be restarted at once."""
        run, stream = self._run, self._flows.new_stream()
        brokers, drain = run.pipeline.settings.brokers, run.options.available_now
        try:
            self._query = start_query(run.session, run.pipeline, run.start, self._gate, drain, stream, run.control.cap)
            self._known.set()
        except Exception as error:
            raise translate_error(error, brokers) from error
        self._tell_started()
        work = QueryWork(run.session, self._query)
        self._watchdog = Watchdog(run.options.stalled_after, run.listener, work.look)
        try:
            self._watch()
        except KeyboardInterrupt:
            self._interrupted = True
            raise
        except PenstockError:
            raise
        except Exception as error:
            if self._flows.stale:
                return False
            done = run.checkpoint.last_committed()
            only_reporting = self._gate.error is None and only_reporting_failed(error)
            if only_reporting and done is not None and done == self._gate.last_batch:
                return False
            raise self._named(self._gate.error or translate_error(error, brokers)) from error
        finally:
            self._gate.release()
            self._stop()
            self._gate.end()
            # Clear up after the batches, and drop what refers to this query in turn.
            runner, self._runner = self._runner, None
            if runner is not None and not self.stuck:
                runner.end()
        return True

    def _carry(self, frame: Any, batch_id: int) -> None:
        """Carry a batch."""
        run = self._run
        run.hold.check()
        waited = time.monotonic() - self._idle_since if self._idle_since is not None else 0.0
        run.chores.between_batches()
        runner = self._runner = self._runner or self._batch_runner()
        garbage = self._garbage = self._garbage or Garbage(run.session)
        self._batches.recreated, self._batches.gone = run.topics.of_batch(batch_id, runner.token, run.pipeline.sinks)
        metrics = runner.run(frame, batch_id)
        metrics = replace(metrics, waited=waited, cap=run.control.cap, gc_seconds=garbage())
        run.topics.settle(self._batches.recreated)
        run.summary.add(metrics)
        self._hear(BatchDone(metrics))
        self._set_flow(metrics)
        self._idle_since = time.monotonic()

    def _batch_runner(self) -> BatchRunner:
        run, pipeline = self._run, self._run.pipeline
        query_id = run.checkpoint.query_id()
        assert query_id is not None, "Spark writes the metadata before the first batch"
        return BatchRunner(
            BatchToken(pipeline.config.name, query_id, 0, ()),
            self._flows,
            self._batches,
            Committer(pipeline.targets, numbers=run.agreed.numbers, table_lock=self._table_lock),
            Executors(run.session).slots,
            enter=lambda batch_id, phase: self._hear(BatchPhase(batch_id, phase)),
            orphans=Orphans(Attempts(run.session)),
            topic_ids=run.topics.of_token,
            same_topics=partial(SameTopics, pipeline.settings),
            stopped=run.stop.asked,
        )

    def _table_lock(self, sink: Sink) -> AbstractContextManager[None]:
        """The lock for a commit; no commit is made once another run may have the checkpoint."""
        self._run.hold.check()
        return lock_of(self._run.checkpoint.path, sink)

    def _set_flow(self, metrics: BatchMetrics) -> None:
        changed = self._run.control.learn(metrics)
        if changed is None or not self._known.wait(_QUERY_SECONDS):
            return
        source = self._run.pipeline.config.source
        least = None
        if source.min_offsets is not None and source.max_delay is not None:
            least = source.min_offsets, source.max_delay
        limit_batches(self._run.session, self._query, changed.cap, least)
        self._hear(changed)

    def _hear(self, event: Event) -> None:
        """Report an event of a batch, which counts as progress."""
        if isinstance(event, BatchPhase | BatchDone):
            self._phase = event.phase if isinstance(event, BatchPhase) else None
        if self._watchdog is not None:
            self._watchdog.progressed()
        self._run.listener(event)

    def _named(self, error: PenstockError) -> PenstockError:
        """The error, or a missing checkpoint, which Spark and the sinks report in many ways."""
        checkpoint = self._run.checkpoint
        if error.code == "BATCH_FAILED" and checkpoint.query_id() is None:
            return checkpoint_gone(checkpoint.path, error)
        return error

    def _stop(self) -> None:
        # Spark waits for its thread: in vain if that is in the hanging batch.
        if self.stuck:
            return
        try:
            if self._query.isActive:
                self._query.stop()
        except Exception:
            # An interrupt leaves the connection to Spark in the middle of a response; the session ends next.
            if self._interrupted:
                return
            if not self._stalled:
                raise
            self.stuck = True

    def _tell_started(self) -> None:
        run = self._run
        if not run.started:
            run.started = True
            lane, query_id = run.pipeline.lane, run.checkpoint.query_id()
            name, partitions, cores = run.pipeline.config.name, len(run.start.offsets), Executors(run.session).cores()
            run.listener(Started(name, lane.lane, lane.reason, partitions, query_id, cores))
            if (begun := run.control.begun()) is not None:
                run.listener(begun)

    def _watch(self) -> None:
        run, query, gate = self._run, self._query, self._gate
        reported = -1
        while not query.awaitTermination(0.2):
            reported = self._report_state(reported)
            self._look_after()
            if (lost := run.hold.lost()) is not None:
                raise lost
            if run.stop.asked() or (gate.until is not None and gate.until == gate.last_batch):
                if run.stop.asked():
                    run.listener(Stopping())
                gate.close()
                self._await_commit(gate.last_batch)
                # Spark's stop waits for its thread, which may wait at the gate with a batch that has not started.
                gate.release()
                query.stop()
                return
        self._report_state(reported)

    def _look_after(self) -> None:
        """Check that Spark can call back and its batches make progress. Raises if one is abandoned."""
        run = self._run
        if revive_callback_server(run.session):
            now = time.monotonic()
            if run.revived_at is None or now - run.revived_at > _TELL_AGAIN_SECONDS:
                run.revived_at = now
                text = (
                    "Spark lost its callback connection to this process, probably because file descriptors ran out "
                    "(ulimit -n); the connection is restored"
                )
                run.listener(Stalled(text))
                run.listener(Notice(text))
        assert self._watchdog is not None
        in_hand = self._gate.in_hand
        try:
            self._watchdog.look(lambda: in_hand or self._query.status["message"] in _WITH_SPARK, in_hand, self._phase)
        except TransientError:
            self._stalled, self.stuck = True, self._gate.in_hand
            raise

    def _report_state(self, reported: int) -> int:
        """Report the size of the state once for each batch; Spark counts it when the batch is over."""
        progress = self._query.lastProgress if self._run.pipeline.stateful else None
        if progress is None or progress["batchId"] <= reported or not progress["stateOperators"]:
            return reported
        operators, watermark = progress["stateOperators"], progress["eventTime"].get("watermark")
        if watermark is not None and watermark.startswith("1970-01-01T00:00:00"):
            watermark = None  # Spark's way to say that there is none yet
        kept = StateKept(
            batch_id=progress["batchId"],
            rows=sum(one["numRowsTotal"] for one in operators),
            size_bytes=sum(one["memoryUsedBytes"] for one in operators),
            watermark=watermark,
        )
        self._run.listener(kept)
        return kept.batch_id

    def _await_commit(self, batch_id: int | None) -> None:
        """Wait for Spark's own commit of the last batch, so that the next run has nothing to repeat."""
        deadline = time.monotonic() + 10
        while batch_id is not None and time.monotonic() < deadline:
            done = self._run.checkpoint.last_committed()
            if done is not None and done >= batch_id:
                return
            time.sleep(0.02)


class Garbage:
    """Seconds since it was asked last, when called. Short batches do not call it each time: it is a JVM round trip."""

    def __init__(self, session: Any) -> None:
        management = jvm_of(session).java.lang.management.ManagementFactory
        self._collectors = list(management.getGarbageCollectorMXBeans())
        self._before, self._asked_at = self._total(), time.monotonic()

    def __call__(self) -> float:
        """Ask, or leave it to the next batch."""
        if time.monotonic() - self._asked_at < _ASK_SECONDS:
            return 0.0
        self._asked_at = time.monotonic()
        total, before = self._total(), self._before
        self._before = total
        return total - before

    def _total(self) -> float:
        return float(sum(max(0, one.getCollectionTime()) for one in self._collectors)) / 1000

"""A run from start to stop: lock, checks, session, query; faults that may pass are tried again.

A stop (SIGTERM, Ctrl-C, `StopRequest.ask`) finishes the batch in hand. A crash at any moment is repaired by
the next run: Spark runs the open batch again with the same offsets, and a sink that has it says so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pyarrow as pa

from penstock.checkpoint import SparkCheckpoint, checkpoint_lock
from penstock.config import PipelineConfig, reveal
from penstock.contracts import Sink
from penstock.errors import MissingError, PenstockError, TransientError
from penstock.kafka import Cluster
from penstock.metrics import BatchMetrics
from penstock.model import BAD_SCHEMA, COORDINATES, BatchToken
from penstock.runtime.batch import BatchRunner
from penstock.runtime.build import Pipeline, build
from penstock.runtime.faults import in_our_terms, nothing_passes, only_reporting_failed
from penstock.runtime.flows import CurrentFlows
from penstock.runtime.listener import BatchDone, Listener, Notice, Retrying, Started, StateKept, Stopping
from penstock.runtime.preflight import (
    StartPoint,
    check_brokers,
    check_checkpoint,
    check_sinks,
    describe_start,
    start_point,
)
from penstock.runtime.query import BatchGate, start_query
from penstock.runtime.state import check_state, note_state
from penstock.spark.session import start_session, stop_session, warm_workers

_LONGEST_DELAY = 30.0


@dataclass(frozen=True)
class RunOptions:
    """What the command line may add to the file."""

    available_now: bool = False
    resume_from_table: bool = False
    accept_duplicates: bool = False
    give_up_after: float = 300.0
    log: Path | None = None


class StopRequest:
    """Asks a run to stop after the batch in hand. Safe from a signal handler and from other threads."""

    def __init__(self) -> None:
        self._asked = False
        # Not an Event: a signal handler that sets one may meet the lock that its own thread holds in `wait`.
        self._wake: SimpleQueue[None] = SimpleQueue()

    def ask(self) -> None:
        """Ask."""
        self._asked = True
        self._wake.put(None)

    def asked(self, within: float = 0.0) -> bool:
        """Whether it was asked, waiting at most `within` seconds."""
        if within and not self._asked:
            with suppress(Empty):
                self._wake.get(timeout=within)
        return self._asked


@dataclass
class RunSummary:
    """What a run did."""

    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    quarantined: int = 0
    seconds: float = 0.0
    last: BatchMetrics | None = field(default=None, repr=False)

    def add(self, batch: BatchMetrics) -> None:
        """Count a batch."""
        self.batches += 1
        self.rows_in += batch.rows_in
        self.rows_out += batch.rows_out
        self.quarantined += batch.quarantined
        self.last = batch


def run(
    config: PipelineConfig,
    options: RunOptions = RunOptions(),
    listener: Listener = lambda event: None,
    stop: StopRequest | None = None,
    session: Any = None,
) -> RunSummary:
    """Run a pipeline until it is drained, stopped or cannot go on. A given session is used and left open."""
    began = time.monotonic()
    pipeline, stop, summary = build(config), stop or StopRequest(), RunSummary()
    checkpoint = SparkCheckpoint(config.checkpoint)
    with checkpoint_lock(config.checkpoint):
        cluster = Cluster(pipeline.settings)
        start = _check(pipeline, checkpoint, cluster, options, listener)
        own = session is None
        if own:
            # What the tasks unpickle lives in these.
            sinks = {type(sink).__module__ for sink in pipeline.sinks}
            lane = "stream" if pipeline.stateful else pipeline.lane.lane
            preload = ("penstock.runtime.build", f"penstock.runtime.{lane}", *sorted(sinks), *pipeline.preload)
            name, settings = f"penstock {config.name}", reveal(config.spark)
            tables = pipeline.needs_sql or pipeline.reads_tables
            light = pipeline.lane.lane == "direct" and not tables
            session = start_session(name, settings, tables=tables, light=light, preload=preload, log=options.log)
            warm_workers(session)
        try:
            _Loop(pipeline, checkpoint, cluster, start, options, listener, stop, session, summary).run()
        except PenstockError as error:
            if error.code == "BATCH_FAILED" and own and options.log is not None:
                error.context["log"] = str(options.log)
            raise
        finally:
            if own:
                stop_session(session)
    summary.seconds = time.monotonic() - began
    return summary


def _check(
    pipeline: Pipeline, checkpoint: SparkCheckpoint, cluster: Cluster, options: RunOptions, listener: Listener
) -> StartPoint:
    bounds = check_brokers(cluster, pipeline)
    check_checkpoint(checkpoint)
    check_state(pipeline, checkpoint)
    resumed = check_sinks(
        pipeline, checkpoint, resume=options.resume_from_table, accept_duplicates=options.accept_duplicates
    )
    start = start_point(pipeline, checkpoint, bounds, cluster, resumed)
    if start.notice:
        listener(Notice(start.notice))
    note_state(pipeline, checkpoint)
    if checkpoint.last_begun() is None:
        checkpoint.note_start(describe_start(pipeline.config.source.start))
    with nothing_passes():
        for quarantine in _all_quarantines(pipeline):
            quarantine.prepare(BAD_SCHEMA)
    return start


def _all_quarantines(pipeline: Pipeline) -> list[Sink]:
    return [*pipeline.quarantines, *(sink for sinks in pipeline.targets.rejects.values() for sink in sinks)]


@dataclass
class _Loop:
    pipeline: Pipeline
    checkpoint: SparkCheckpoint
    cluster: Cluster
    start: StartPoint
    options: RunOptions
    listener: Listener
    stop: StopRequest
    session: Any
    summary: RunSummary
    told: bool = False

    def run(self) -> None:
        """Run the query, again after a fault that may pass, until the end."""
        flows = self._flows()
        delay, failing_since, attempt = 1.0, None, 0
        while True:
            done_before = self.summary.batches
            try:
                if self._run_query(flows):
                    return
                flows.stage()
            except TransientError as error:
                now = time.monotonic()
                if self.summary.batches > done_before or failing_since is None:
                    delay, failing_since, attempt = 1.0, now, 0
                if now - failing_since > self.options.give_up_after:
                    raise
                attempt += 1
                self.listener(Retrying(error, attempt, delay))
                if self.stop.asked(delay):
                    return
                delay = min(delay * 2, _LONGEST_DELAY)

    def _flows(self) -> CurrentFlows:
        """The flows, with every sink prepared for their columns."""
        told: set[str] = set()

        def tell(text: str) -> None:
            if text not in told:
                told.add(text)
                self.listener(Notice(text))

        flows = CurrentFlows(self.pipeline, self.session, tell, self._late_by)
        schemas = flows.prepare()
        flows.pinned = self._pinned(schemas)
        flows.stage()
        return flows

    def _late_by(self, batch_id: int) -> int:
        """Spark takes rows as late by the watermark of the batch before."""
        return self.checkpoint.watermark(batch_id - 1) if batch_id > 0 else 0

    def _pinned(self, schemas: Sequence[pa.Schema]) -> int | None:
        """The number of slots that every batch has to have, where a sink commits in its slot."""
        slots: int | None = None
        for sink in self.pipeline.slot_sinks:
            found = sink.pin(slots or self.session.sparkContext.defaultParallelism)
            if slots is not None and found != slots:
                raise MissingError(
                    "SLOTS_DISAGREE",
                    "the Kafka sinks of this pipeline were begun with different numbers of slots",
                    context={"slots": f"{slots} and {found}"},
                    hint="write the same `slots` for all of them: a change is made between two whole batches",
                )
            slots = found
            for notice in sink.notices:
                self.listener(Notice(notice))
        if slots is not None and any(COORDINATES not in schema.names for schema in schemas):
            raise MissingError(
                "SINK_NEEDS_COORDINATES",
                f"a Kafka sink with guarantee exactly_once needs the column {COORDINATES}, which the SQL leaves out",
                hint=f"select {COORDINATES} as well, or use guarantee: at_least_once",
            )
        return slots

    def _run_query(self, flows: CurrentFlows) -> bool:
        """Run the query to its end; false where it must be started again at once."""
        runner: BatchRunner | None = None

        stream = flows.new_stream()

        def run_batch(frame: Any, batch_id: int) -> None:
            nonlocal runner
            if runner is None:
                query_id = self.checkpoint.query_id()
                assert query_id is not None, "Spark writes the metadata before the first batch"
                runner = BatchRunner(
                    BatchToken(self.pipeline.config.name, query_id, 0, ()),
                    flows.now,
                    self.pipeline.sinks,
                    self.pipeline.quarantines,
                    self.checkpoint,
                    self.cluster,
                    self.pipeline.reader,
                    self.pipeline.targets.gaps,
                    self.pipeline.targets.rejects,
                    frame.sparkSession.sparkContext.defaultParallelism,
                    flows.tell,
                )
            metrics = runner.run(frame, batch_id)
            self.summary.add(metrics)
            self.listener(BatchDone(metrics))

        gate = BatchGate(run_batch)
        try:
            query = start_query(self.session, self.pipeline, self.start, gate, self.options.available_now, stream)
        except Exception as error:
            raise in_our_terms(error, self.pipeline.settings.brokers) from error
        self._tell_started()
        try:
            self._watch(query, gate)
        except PenstockError:
            raise
        except Exception as error:
            if flows.stale:
                return False
            done = self.checkpoint.last_committed()
            if gate.error is None and only_reporting_failed(error) and done is not None and done == gate.last_batch:
                return False
            raise (gate.error or in_our_terms(error, self.pipeline.settings.brokers)) from error
        finally:
            gate.release()
            if query.isActive:
                query.stop()
        return True

    def _tell_started(self) -> None:
        if not self.told:
            self.told = True
            lane, query_id = self.pipeline.lane, self.checkpoint.query_id()
            self.listener(Started(self.pipeline.config.name, lane.lane, lane.reason, len(self.start.offsets), query_id))

    def _watch(self, query: Any, gate: BatchGate) -> None:
        told = -1
        while not query.awaitTermination(0.2):
            told = self._tell_state(query, told)
            if self.stop.asked():
                self.listener(Stopping())
                gate.close()
                self._await_commit(gate.last_batch)
                # Spark's stop waits for its thread, which may wait at the gate with a batch that has not begun.
                gate.release()
                query.stop()
                return
        self._tell_state(query, told)

    def _tell_state(self, query: Any, told: int) -> int:
        """Tell what the steps remember, once for each batch; Spark counts it when the batch is over."""
        progress = query.lastProgress if self.pipeline.stateful else None
        if progress is None or progress["batchId"] <= told or not progress["stateOperators"]:
            return told
        operators = progress["stateOperators"]
        kept = StateKept(
            batch_id=progress["batchId"],
            rows=sum(one["numRowsTotal"] for one in operators),
            size_bytes=sum(one["memoryUsedBytes"] for one in operators),
            watermark=_after_1970(progress["eventTime"].get("watermark")),
        )
        self.listener(kept)
        return kept.batch_id

    def _await_commit(self, batch_id: int | None) -> None:
        """Wait for Spark's own commit of the last batch, so that the next run has nothing to look at again."""
        deadline = time.monotonic() + 10
        while batch_id is not None and time.monotonic() < deadline:
            done = self.checkpoint.last_committed()
            if done is not None and done >= batch_id:
                return
            time.sleep(0.02)


def _after_1970(watermark: str | None) -> str | None:
    """Spark's watermark before there is one is the beginning of 1970."""
    return None if watermark is None or watermark.startswith("1970-01-01T00:00:00") else watermark

"""A run from start to stop: lock, checks, session, query; faults that may pass are tried again.

A stop (SIGTERM, Ctrl-C, `StopRequest.ask`) finishes the batch in hand. A crash at any moment is repaired by
the next run: Spark runs the open batch again with the same offsets, and a sink that has it says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.checkpoint import SparkCheckpoint, checkpoint_lock
from penstock.config import PipelineConfig
from penstock.contracts import Sink
from penstock.errors import PenstockError, TransientError
from penstock.kafka import Cluster
from penstock.metrics import BatchMetrics
from penstock.metrics.history import history_of
from penstock.model import BAD_SCHEMA
from penstock.runtime.again import BatchesAgain
from penstock.runtime.attendance import attended
from penstock.runtime.build import Pipeline, build
from penstock.runtime.carrier import Carrier
from penstock.runtime.chores import Chores
from penstock.runtime.faults import in_our_terms, nothing_passes, only_reporting_failed
from penstock.runtime.flow_control import FlowControl
from penstock.runtime.flows import CurrentFlows
from penstock.runtime.listener import Listener, Notice, Started, StateKept, Stopping
from penstock.runtime.patience import Patience, StopRequest
from penstock.runtime.preflight import (
    StartPoint,
    check_agreement,
    check_brokers,
    check_checkpoint,
    check_sinks,
    describe_start,
    start_point,
)
from penstock.runtime.query import BatchGate, start_query
from penstock.runtime.recreated import TopicIds
from penstock.runtime.sight import sighted
from penstock.runtime.standings import standings
from penstock.runtime.starting import pinned_slots, session_for
from penstock.runtime.state import check_state, note_state


@dataclass(frozen=True)
class RunOptions:
    """What the command line may add to the file."""

    available_now: bool = False
    resume_from_table: bool = False
    accept_duplicates: bool = False
    give_up_after: float = 300.0
    log: Path | None = None


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
    history = history_of(config.checkpoint)
    with (
        checkpoint_lock(config.checkpoint),
        attended(pipeline, stop, listener) as listener,
        sighted(pipeline, history, listener) as listener,
    ):
        cluster = Cluster(pipeline.settings)
        topics = TopicIds(checkpoint, cluster, config.source.on_data_loss)
        start = _check(pipeline, checkpoint, cluster, topics, options, listener)
        tell = _once(listener)
        with (
            session_for(pipeline, options.log, session, tables=Chores.need_tables(pipeline)) as spark,
            Chores(pipeline, spark, lambda text: listener(Notice(text))) as chores,
        ):
            control = FlowControl(config, history, spark.sparkContext.defaultParallelism)
            _Loop(
                pipeline,
                checkpoint,
                cluster,
                topics,
                start,
                options,
                listener,
                tell,
                stop,
                spark,
                chores,
                control,
                summary,
            ).run()
    summary.seconds = time.monotonic() - began
    return summary


def _once(listener: Listener) -> Callable[[str], None]:
    """Tells a notice the first time only."""
    told: set[str] = set()

    def tell(text: str) -> None:
        if text not in told:
            told.add(text)
            listener(Notice(text))

    return tell


def _check(
    pipeline: Pipeline,
    checkpoint: SparkCheckpoint,
    cluster: Cluster,
    topics: TopicIds,
    options: RunOptions,
    listener: Listener,
) -> StartPoint:
    bounds = check_brokers(cluster, pipeline)
    check_checkpoint(checkpoint)
    topics.compare({at.topic for at in bounds}, stateful=pipeline.stateful)
    _forget_open_batch(pipeline, topics)
    check_state(pipeline, checkpoint)
    resumed = check_sinks(
        pipeline, checkpoint, resume=options.resume_from_table, accept_duplicates=options.accept_duplicates
    )
    for notice in check_agreement(pipeline, checkpoint, bounds, topics.recreated):
        listener(Notice(notice))
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


def _forget_open_batch(pipeline: Pipeline, topics: TopicIds) -> None:
    if topics.recreated:
        topics.forget_open_batch(one.holds for one in standings(pipeline))


def _all_quarantines(pipeline: Pipeline) -> list[Sink]:
    return [*pipeline.quarantines, *(sink for sinks in pipeline.targets.rejects.values() for sink in sinks)]


@dataclass
class _Loop:
    pipeline: Pipeline
    checkpoint: SparkCheckpoint
    cluster: Cluster
    topics: TopicIds
    start: StartPoint
    options: RunOptions
    listener: Listener
    tell: Callable[[str], None]
    stop: StopRequest
    session: Any
    chores: Chores
    control: FlowControl
    summary: RunSummary
    told: bool = False

    def run(self) -> None:
        """Run the query, again after a fault that may pass, until the end."""
        flows = self._flows()
        patience = Patience(self.options.give_up_after, self.listener, self.stop)
        again = BatchesAgain(self.checkpoint)
        if again.left:
            self.tell(f"{again.left} batches are run again for the state: the checkpoint was restored from a copy")
        while True:
            done_before = self.summary.batches
            try:
                until = again.next()
                if not self._run_query(flows, until):
                    flows.stage()
                elif until is None:
                    return
                if self.stop.asked():
                    return
            except TransientError as error:
                if not patience.met(error, progress=self.summary.batches > done_before):
                    return
                if error.code == "TOPIC_RECREATED":
                    self.topics.look_again()
                    _forget_open_batch(self.pipeline, self.topics)

    def _flows(self) -> CurrentFlows:
        """The flows, with every sink prepared for their columns."""
        flows = CurrentFlows(self.pipeline, self.session, self.tell, self._late_by)
        schemas = flows.prepare()
        flows.pinned = pinned_slots(self.pipeline, self.session.sparkContext.defaultParallelism, schemas, self.tell)
        flows.stage()
        return flows

    def _late_by(self, batch_id: int) -> int:
        """Spark takes rows as late by the watermark of the batch before."""
        return self.checkpoint.watermark(batch_id - 1) if batch_id > 0 else 0

    def _run_query(self, flows: CurrentFlows, until: int | None) -> bool:
        """Run the query to its end, or behind a batch; false where it must be started again at once."""
        stream = flows.new_stream()
        carrier = Carrier(
            self.pipeline,
            self.checkpoint,
            self.cluster,
            self.topics,
            flows,
            self.chores,
            self.control,
            self.session,
            self.listener,
            self.summary.add,
        )
        gate = BatchGate(carrier, until)
        try:
            query = start_query(
                self.session, self.pipeline, self.start, gate, self.options.available_now, stream, self.control.cap
            )
            carrier.knows(query)
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
            cores = self.session.sparkContext.defaultParallelism
            name, partitions = self.pipeline.config.name, len(self.start.offsets)
            self.listener(Started(name, lane.lane, lane.reason, partitions, query_id, cores))
            if (begun := self.control.begun()) is not None:
                self.listener(begun)

    def _watch(self, query: Any, gate: BatchGate) -> None:
        told = -1
        while not query.awaitTermination(0.2):
            told = self._tell_state(query, told)
            if self.stop.asked() or (gate.until is not None and gate.until == gate.last_batch):
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

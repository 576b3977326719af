"""A run from start to stop: lock, checks, session, query; transient faults are retried.

A stop (SIGTERM, Ctrl-C, `StopRequest.ask`, a request beside the checkpoint) finishes the current batch. A crash at any
moment is repaired by the next run: Spark runs the open batch again with the same offsets, and a sink that already has
it says so. The run writes down beside its checkpoint what it does, for `status` and `stop`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from penstock.assembly.build import Pipeline, build
from penstock.assembly.faults import full_disks_named
from penstock.assembly.placing import check_places, placement_of
from penstock.assembly.reaching import committed_places_of, places_of, storage_of
from penstock.assembly.starting import session_for
from penstock.assembly.state import check_state, note_state
from penstock.checkpoint import SparkCheckpoint, checkpoint_lock
from penstock.checkpoint.presence import Presence, RunFacts
from penstock.config import PipelineConfig
from penstock.engine.flows import CurrentFlows
from penstock.engine.listener import (
    BatchDone,
    BatchPhase,
    Event,
    Listener,
    Notice,
    Retrying,
    Stalled,
    Started,
    Stopping,
    telling_once,
)
from penstock.engine.patience import Patience, StopRequest
from penstock.errors import PenstockError, TransientError, transient_is_fatal
from penstock.kafka import Cluster
from penstock.metrics.history import history_of
from penstock.model import BAD_SCHEMA
from penstock.preflight.checks import (
    Agreement,
    StartPoint,
    check_agreement,
    check_brokers,
    check_checkpoint,
    describe_start,
    start_point,
)
from penstock.preflight.options import RunOptions, RunSummary
from penstock.preflight.recreated import TopicIds
from penstock.spark.executors import Executors
from penstock.spark.placement import Placement
from penstock.storage.reaching import check_conditional_writes, check_reachable
from penstock.supervision.catch_up import CatchUp, move_positions, next_rerun, pending_reruns
from penstock.supervision.flow_control import FlowControl
from penstock.supervision.observer import observed
from penstock.supervision.running_query import RunContext, RunningQuery
from penstock.supervision.upkeep import Chores


@contextmanager
def heartbeat(pipeline: Pipeline, stop: StopRequest, listener: Listener) -> Iterator[Listener]:
    """The listener of the run, which also writes down what it hears. A stop asked for beside the checkpoint is one."""
    presence = Presence(pipeline.config.checkpoint, pipeline.storage)
    facts = RunFacts(pipeline=pipeline.config.name, lane=pipeline.lane.lane)
    presence.begin(facts)

    def listen(event: Event) -> None:
        nonlocal facts
        heard = _after(facts, event)
        if heard != facts:
            facts = heard
            # A phase is over soon: it is written with the next beat.
            presence.beat(facts, now=not isinstance(event, BatchPhase))
        listener(event)

    error: str | None = "INTERRUPTED"
    try:
        with presence.heartbeat(stop.ask):
            yield listen
        error = None
    except PenstockError as fault:
        error = fault.code
        raise
    finally:
        presence.end(error)


def _after(facts: RunFacts, event: Event) -> RunFacts:
    match event:
        case Started():
            return replace(facts, doing="running")
        case Retrying():
            return replace(facts, doing=f"waiting to try again: {event.error.code}", stalled=None)
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


def run(
    config: PipelineConfig,
    options: RunOptions = RunOptions(),
    listener: Listener = lambda event: None,
    stop: StopRequest | None = None,
    session: Any = None,
) -> RunSummary:
    """Run a pipeline until it is drained, stopped or cannot go on. A given session is used and left open."""
    began = time.monotonic()
    notices = check_places(config, placement_of(config) if session is None else Placement(session.sparkContext.master))
    check_reachable(storage_of(config), places_of(config))
    check_conditional_writes(storage_of(config), committed_places_of(config))
    pipeline, stop, summary = build(config), stop or StopRequest(), RunSummary()
    checkpoint = SparkCheckpoint(config.checkpoint, pipeline.storage)
    history = history_of(config.checkpoint)
    with (
        full_disks_named(config),
        checkpoint_lock(config.checkpoint, pipeline.storage, lambda text: listener(Notice(text))) as hold,
        heartbeat(pipeline, stop, listener) as listener,
        observed(pipeline, history, listener) as listener,
    ):
        cluster = Cluster(pipeline.settings)
        topics = TopicIds(checkpoint, cluster, config.source.on_data_loss)
        start, agreed = _check(pipeline, checkpoint, cluster, topics, options, listener)
        tell = telling_once(listener)
        for notice in notices:
            tell(notice)
        with (
            session_for(pipeline, options.log, session, tables=Chores.need_tables(pipeline), tell=tell) as spark,
            Chores(pipeline, spark, lambda text: listener(Notice(text))) as chores,
        ):
            control = FlowControl(config, history, Executors(spark).slots, options.sharing)
            context = RunContext(
                pipeline,
                checkpoint,
                cluster,
                topics,
                start,
                agreed,
                options,
                listener,
                stop,
                spark,
                chores,
                control,
                hold,
                summary,
            )
            _run_queries(context, CurrentFlows(pipeline, spark, tell, checkpoint.late_by))
    summary.seconds = time.monotonic() - began
    return summary


def _run_queries(run: RunContext, flows: CurrentFlows) -> None:
    """Run the query, again after a fault that may pass, until the end."""
    slots = Executors(run.session).slots
    flows.prepare(slots())
    patience = Patience(run.options.give_up_after, run.listener, run.stop)
    agreed, checkpoint = run.agreed, run.checkpoint
    if agreed.moved is not None:
        move_positions(run.pipeline, checkpoint, run.start, run.topics.now, agreed.moved, flows.tell)
    if agreed.behind or agreed.torn:
        catch_up = CatchUp(
            flows, run.cluster, run.topics, slots, lambda metrics: run.listener(BatchDone(metrics)), run.stop
        )
        if not catch_up.run(agreed):
            return
    checkpoint.note_sinks({sink.name: sink.target for sink in run.pipeline.sinks}, agreed.numbers)
    if again := pending_reruns(checkpoint):
        flows.tell(f"{len(again)} batches are run again for the state: the checkpoint was restored from a copy")
    while True:
        done_before = run.summary.batches
        query: RunningQuery | None = None
        try:
            until = next_rerun(checkpoint)
            query = RunningQuery(run, flows, until)
            if not query.run():
                flows.stage()
            elif until is None:
                return
            if run.stop.asked():
                return
        except TransientError as error:
            if query is not None and query.stuck:
                raise
            if not patience.met(error, progress=run.summary.batches > done_before):
                return
            flows.try_again()
            if error.code == "TOPIC_RECREATED":
                run.topics.look_again()
                run.topics.forget_open_batch(run.pipeline.targets)


def _check(
    pipeline: Pipeline,
    checkpoint: SparkCheckpoint,
    cluster: Cluster,
    topics: TopicIds,
    options: RunOptions,
    listener: Listener,
) -> tuple[StartPoint, Agreement]:
    bounds = check_brokers(cluster, pipeline)
    check_checkpoint(checkpoint)
    topics.compare({at.topic for at in bounds}, stateful=pipeline.stateful)
    topics.forget_open_batch(pipeline.targets)
    check_state(pipeline, checkpoint)
    agreed = check_agreement(pipeline, checkpoint, bounds, topics.recreated, options, topics.now)
    for notice in agreed.notices:
        listener(Notice(notice))
    start = start_point(pipeline, checkpoint, bounds, cluster, agreed.resumed)
    if agreed.moved is not None and start.explicit is None and checkpoint.initial() is None:
        # The positions are moved to these offsets: Spark must begin at exactly the same.
        start = replace(start, explicit=start.offsets)
    if start.notice:
        listener(Notice(start.notice))
    note_state(pipeline, checkpoint)
    if checkpoint.last_begun() is None:
        checkpoint.note_start(describe_start(pipeline.config.source.start))
    with transient_is_fatal():
        for quarantine in pipeline.quarantines:
            quarantine.prepare(BAD_SCHEMA)
    return start, agreed

"""A run from start to stop: lock, checks, session, query; transient faults are retried.

A stop (SIGTERM, Ctrl-C, `StopRequest.ask`, a request in the checkpoint folder) finishes the current batch. A crash at
any moment is repaired by the next run: Spark repeats the open batch with the same offsets, and a sink that already has
it skips it. The run records its state in the checkpoint folder, for `status` and `stop`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from penstock.assembly.build import Pipeline, build
from penstock.assembly.faults import full_disks_named
from penstock.assembly.placing import check_places, placement_of
from penstock.assembly.reaching import committed_places_of, places_of, storage_of
from penstock.assembly.starting import session_for
from penstock.assembly.state import check_state, note_state
from penstock.checkpoint import SparkCheckpoint, checkpoint_lock
from penstock.config import PipelineConfig
from penstock.engine.flows import CurrentFlows
from penstock.engine.listener import BatchDone, Listener, Notice, notify_once
from penstock.engine.patience import Retries, StopRequest
from penstock.errors import TransientError, transient_is_fatal
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
from penstock.supervision.observer import observe_run
from penstock.supervision.running_query import RunContext, RunningQuery
from penstock.supervision.upkeep import Chores


def run(
    config: PipelineConfig,
    options: RunOptions = RunOptions(),
    listener: Listener = lambda event: None,
    stop: StopRequest | None = None,
    session: Any = None,
) -> RunSummary:
    """Run a pipeline until it is drained, stopped or fails. A given session is used and left open."""
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
        observe_run(pipeline, history, listener, stop.ask) as listener,
    ):
        topics = TopicIds(checkpoint, Cluster(pipeline.settings), config.source.on_data_loss)
        start, agreed = _check(pipeline, topics, options, listener)
        tell = notify_once(listener)
        for notice in notices:
            tell(notice)
        with (
            session_for(pipeline, options.log, session, tables=Chores.need_tables(pipeline), tell=tell) as spark,
            Chores(pipeline, spark, lambda text: listener(Notice(text))) as chores,
        ):
            context = RunContext(
                flows=CurrentFlows(pipeline, spark, tell, checkpoint.late_by),
                topics=topics,
                start=start,
                agreed=agreed,
                options=options,
                listener=listener,
                stop=stop,
                hold=hold,
                chores=chores,
                control=FlowControl(config, history, Executors(spark).slots, options.sharing),
                summary=summary,
            )
            _run_queries(context)
    summary.seconds = time.monotonic() - began
    return summary


def _run_queries(run: RunContext) -> None:
    """Run the query, again after a transient fault, until the end."""
    flows, slots = run.flows, Executors(run.session).slots
    flows.prepare(slots())
    retries = Retries(run.options.give_up_after, run.listener, run.stop)
    agreed, checkpoint = run.agreed, run.checkpoint
    if agreed.moved is not None:
        move_positions(run.pipeline, checkpoint, run.start, run.topics.now, agreed.moved, flows.tell)
    if agreed.behind or agreed.torn:
        catch_up = CatchUp(flows, run.topics, slots, lambda metrics: run.listener(BatchDone(metrics)), run.stop)
        if not catch_up.run(agreed):
            return
    checkpoint.note_sinks({sink.name: sink.target for sink in run.pipeline.sinks}, agreed.numbers)
    if again := pending_reruns(checkpoint):
        flows.tell(f"{len(again)} batches are repeated to rebuild the state: the checkpoint was restored from a backup")
    while True:
        done_before = run.summary.batches
        query: RunningQuery | None = None
        try:
            until = next_rerun(checkpoint)
            query = RunningQuery(run, until)
            if not query.run():
                flows.stage()
            elif until is None:
                return
            if run.stop.asked():
                return
        except TransientError as error:
            if query is not None and query.stuck:
                raise
            if not retries.wait(error, progress=run.summary.batches > done_before):
                return
            flows.try_again()
            if error.code == "TOPIC_RECREATED":
                run.topics.look_again()
                run.topics.forget_open_batch(run.pipeline.targets)


def _check(
    pipeline: Pipeline, topics: TopicIds, options: RunOptions, listener: Listener
) -> tuple[StartPoint, Agreement]:
    checkpoint, cluster = topics.checkpoint, topics.cluster
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
        # The positions are moved to these offsets: Spark must start at exactly the same.
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

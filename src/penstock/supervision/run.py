"""A run from start to stop: lock, checks, session, query; transient faults are retried.

A stop (SIGTERM, Ctrl-C, `StopRequest.ask`, a request beside the checkpoint) finishes the current batch. A crash at any
moment is repaired by the next run: Spark runs the open batch again with the same offsets, and a sink that already has
it says so. The run writes down beside its checkpoint what it does, for `status` and `stop`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from penstock.assembly.build import Pipeline, build
from penstock.assembly.faults import full_disks_named, transient_is_fatal
from penstock.assembly.placing import check_places, placement_of
from penstock.assembly.reaching import committed_places_of, places_of, storage_of
from penstock.assembly.starting import session_for
from penstock.assembly.state import check_state, note_state
from penstock.checkpoint import SparkCheckpoint, checkpoint_lock
from penstock.checkpoint.presence import Presence, RunFacts
from penstock.config import PipelineConfig
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
)
from penstock.engine.patience import StopRequest
from penstock.errors import PenstockError
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
from penstock.supervision.flow_control import FlowControl
from penstock.supervision.loop import Loop, forget_open_batch
from penstock.supervision.observer import observed
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
        tell = _once(listener)
        for notice in notices:
            tell(notice)
        with (
            session_for(pipeline, options.log, session, tables=Chores.need_tables(pipeline), tell=tell) as spark,
            Chores(pipeline, spark, lambda text: listener(Notice(text))) as chores,
        ):
            control = FlowControl(config, history, Executors(spark).slots, options.sharing)
            Loop(
                pipeline,
                checkpoint,
                cluster,
                topics,
                start,
                agreed,
                options,
                listener,
                tell,
                stop,
                spark,
                chores,
                control,
                hold,
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
) -> tuple[StartPoint, Agreement]:
    bounds = check_brokers(cluster, pipeline)
    check_checkpoint(checkpoint)
    topics.compare({at.topic for at in bounds}, stateful=pipeline.stateful)
    forget_open_batch(pipeline, topics)
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

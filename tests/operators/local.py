"""A run without a JVM: what Spark does around a batch, done here, and everything else by the product itself.

Spark's part is small: it chooses the offsets of a batch and writes them ahead, runs the slots, and writes the commit.
So a history of many runs takes seconds, against real brokers, tables and databases. `tests/services` shows the same on
Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from tests.local_spark import CORES, LocalSession

from penstock.assembly.build import build
from penstock.checkpoint import SparkCheckpoint
from penstock.config import PipelineConfig
from penstock.engine.batch import BatchRunner
from penstock.engine.batches import LoggedBatches
from penstock.engine.committer import Committer
from penstock.engine.flows import CurrentFlows
from penstock.engine.patience import StopRequest
from penstock.kafka import Cluster
from penstock.metrics import BatchMetrics
from penstock.model import BatchToken
from penstock.ops.replay import rejects as replay_rejects
from penstock.ops.replay import replay
from penstock.preflight.options import RunOptions, RunSummary
from penstock.preflight.recreated import TopicIds
from penstock.supervision import bounded
from penstock.supervision.bounded import OfSession
from penstock.supervision.catch_up import CatchUp, move_positions
from penstock.supervision.gathered import GatheredSink
from penstock.supervision.run import _check

Phase = Callable[[int, str], None]


def run_local(
    config: PipelineConfig, options: RunOptions = RunOptions(), enter: Phase = lambda batch, phase: None
) -> RunSummary:
    """Drain a pipeline as `penstock run --available-now` does, without its lock: two may run at once."""
    pipeline, session, summary = build(config), LocalSession(copies=False), RunSummary()
    checkpoint, cluster = SparkCheckpoint(config.checkpoint, pipeline.storage), Cluster(pipeline.settings)
    topics, stop = TopicIds(checkpoint, cluster, config.source.on_data_loss), StopRequest()
    start, agreed = _check(pipeline, topics, options, lambda event: None)
    flows = CurrentFlows(pipeline, session, lambda text: None)
    flows.prepare(CORES)
    if agreed.moved is not None:
        move_positions(pipeline, checkpoint, start, topics.now, agreed.moved, lambda text: None)
    if agreed.behind or agreed.torn:
        caught: list[BatchMetrics] = []
        CatchUp(flows, topics, lambda: CORES, caught.append, stop).run(agreed)
    checkpoint.note_sinks({sink.name: sink.target for sink in pipeline.sinks}, agreed.numbers)
    topics.forget_open_batch(pipeline.targets)
    if checkpoint.query_id() is None:
        # A start at an offset below zero stands for an end of the log, which the brokers know.
        SparkCheckpoint(config.checkpoint).put_initial([start.offsets])
        SparkCheckpoint(config.checkpoint).put_metadata(str(uuid4()))
    batches = LoggedBatches(checkpoint, cluster)
    query_id = checkpoint.query_id()
    assert query_id is not None
    runner = BatchRunner(
        BatchToken(config.name, query_id, 0, ()),
        flows,
        batches,
        Committer(pipeline.targets, numbers=agreed.numbers),
        lambda: CORES,
        enter=enter,
        topic_ids=topics.of_token,
    )
    while (batch_id := _plan(config, checkpoint, cluster, pipeline.subscription)) is not None:
        batches.recreated, batches.gone = topics.of_batch(batch_id, runner.token, pipeline.sinks)
        summary.add(runner.run(OfSession(session), batch_id))
        topics.settle(batches.recreated)
        enter(batch_id, "spark-commit")
        SparkCheckpoint(config.checkpoint).put_commit(batch_id)
    return summary


@contextmanager
def rewriting(enter: Phase) -> Iterator[None]:
    """For a redrive or a replay within: `enter` gets the phases of its batches, and those at the end of a replay."""

    def announced(phase: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def then(*with_: Any) -> Any:
            enter(0, f"{phase}:{with_[0].name}" if isinstance(with_[0], GatheredSink) else phase)
            return do(*with_)

        return then

    with (
        patch.object(bounded, "BatchRunner", partial(BatchRunner, enter=enter)),
        patch.object(GatheredSink, "publish", announced("publish", GatheredSink.publish)),
        patch.object(replay, "quarantine_rejects", announced("rejects", replay_rejects.quarantine_rejects)),
        patch.object(replay, "mark_replayed", announced("marks", replay_rejects.mark_replayed)),
    ):
        yield


def _plan(config: PipelineConfig, checkpoint: SparkCheckpoint, cluster: Cluster, subscription: Any) -> int | None:
    """The next batch, its offsets written ahead: the open one, or one up to the log's end; none without new records."""
    begun, done = checkpoint.last_begun(), checkpoint.last_committed()
    if begun is not None and begun != done:
        return begun
    starts = checkpoint.ends(done) if done is not None else checkpoint.initial() or {}
    logs = cluster.bounds(cluster.partitions(subscription))
    most = config.source.max_offsets or 1000
    ends = {at: min(log.end, starts.get(at, 0) + most) for at, log in logs.items()}
    if all(end <= starts.get(at, 0) for at, end in ends.items()):
        return None
    number = done + 1 if done is not None else 0
    SparkCheckpoint(config.checkpoint).put_offsets(number, {**starts, **ends})
    return number

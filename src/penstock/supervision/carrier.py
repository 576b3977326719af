"""What Spark calls for each batch of a query: what is due between two batches, the batch itself, and what follows from
it.

A read limit that flow control has changed is set here, in the running query: that takes milliseconds, a restart of
the query a third of a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from penstock.assembly.build import Pipeline
from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.lock import Hold
from penstock.contracts import Sink
from penstock.engine.batch import BatchRunner
from penstock.engine.batches import LoggedBatches
from penstock.engine.flows import CurrentFlows
from penstock.engine.listener import BatchDone, BatchPhase, Listener
from penstock.engine.orphans import Orphans
from penstock.engine.patience import StopRequest
from penstock.kafka import Cluster
from penstock.metrics import BatchMetrics
from penstock.model import BatchToken
from penstock.preflight.recreated import SameTopics, TopicIds
from penstock.spark.executors import Attempts, Executors
from penstock.spark.internals import jvm_of, limit_batches
from penstock.supervision.flow_control import FlowControl
from penstock.supervision.upkeep import Chores, lock_of

_ASK_SECONDS = 5.0


class Garbage:
    """Seconds since it was asked last, when called. Short batches do not ask each time: it goes to the JVM and back."""

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


_QUERY_SECONDS = 10.0


@dataclass
class Carrier:
    """Carries the batches of one query, on the driver."""

    pipeline: Pipeline
    checkpoint: SparkCheckpoint
    cluster: Cluster
    topics: TopicIds
    flows: CurrentFlows
    chores: Chores
    control: FlowControl
    hold: Hold
    session: Any
    listener: Listener
    count: Callable[[BatchMetrics], None]
    stop: StopRequest
    numbers: Mapping[str, int]
    _runner: BatchRunner | None = None
    _query: Any = None
    _known: threading.Event = field(default_factory=threading.Event)
    _idle_since: float | None = None

    def __post_init__(self) -> None:
        self._batches = LoggedBatches(self.checkpoint, self.cluster)

    def knows(self, query: Any) -> None:
        """The query, once Spark has started it; its first batch may have begun before."""
        self._query = query
        self._known.set()

    def __call__(self, frame: Any, batch_id: int) -> None:
        """Carry a batch."""
        self.hold.check()
        waited = time.monotonic() - self._idle_since if self._idle_since is not None else 0.0
        self.chores.between_batches()
        runner = self._runner = self._runner or self._begin(frame)
        self._batches.recreated, self._batches.gone = self.topics.of_batch(batch_id, runner)
        metrics = replace(runner.run(frame, batch_id), waited=waited, cap=self.control.cap)
        self.topics.settle(self._batches.recreated)
        self.count(metrics)
        self.listener(BatchDone(metrics))
        self._set_flow(metrics)
        self._idle_since = time.monotonic()

    def end(self) -> None:
        """The query is over: clear up behind its batches, and let go of what knows the carrier in turn."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.end()

    def _table_lock(self, sink: Sink) -> AbstractContextManager[None]:
        """What a commit is made in; none is made on a checkpoint that another run may have by now."""
        self.hold.check()
        return lock_of(self.checkpoint.path, sink)

    def _set_flow(self, metrics: BatchMetrics) -> None:
        changed = self.control.learn(metrics)
        if changed is None or not self._known.wait(_QUERY_SECONDS):
            return
        source = self.pipeline.config.source
        least = None
        if source.min_offsets is not None and source.max_delay is not None:
            least = source.min_offsets, source.max_delay
        limit_batches(self.session, self._query, changed.cap, least)
        self.listener(changed)

    def _begin(self, frame: Any) -> BatchRunner:
        query_id = self.checkpoint.query_id()
        assert query_id is not None, "Spark writes the metadata before the first batch"
        return BatchRunner(
            BatchToken(self.pipeline.config.name, query_id, 0, ()),
            self.flows.now,
            self.pipeline.sinks,
            self.pipeline.quarantines,
            self._batches,
            self.pipeline.reader,
            self.pipeline.targets.gaps,
            Executors(self.session).slots,
            self.flows.tell,
            table_lock=self._table_lock,
            garbage=Garbage(self.session),
            enter=lambda batch_id, phase: self.listener(BatchPhase(batch_id, phase)),
            orphans=Orphans(Attempts(self.session)),
            topic_ids=self.topics.of_token,
            same_topics=partial(SameTopics, self.pipeline.settings),
            stopped=self.stop.asked,
            numbers=self.numbers,
        )

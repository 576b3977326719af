"""The query of a run: started, watched, stopped between two batches, started again after a transient fault.

A checkpoint that was restored from a copy has the state of an older batch than the sinks hold. A note beside it names
the batches between. Each is put into Spark's log in turn and run again with exactly its offsets: the sinks have it
already, and its rows go through the state once more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from penstock.assembly.build import Pipeline
from penstock.assembly.faults import checkpoint_gone, only_reporting_failed, translate_error
from penstock.assembly.starting import pinned_slots
from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.lock import Hold
from penstock.checkpoint.writing import put_offsets
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
from penstock.engine.patience import Patience, StopRequest
from penstock.engine.query import BatchGate, start_query
from penstock.errors import PenstockError, TransientError
from penstock.kafka import Cluster
from penstock.model import BatchToken, Guarantee, OffsetRange, Position, Rule, Verdict, decide
from penstock.preflight.checks import Agreement, StartPoint
from penstock.preflight.options import RunOptions, RunSummary
from penstock.preflight.recreated import TopicIds
from penstock.preflight.standings import carried_number, standings
from penstock.spark.executors import Executors, QueryWork
from penstock.spark.internals import revive_callback_server
from penstock.supervision.bounded import OfSession
from penstock.supervision.carrier import Carrier
from penstock.supervision.catch_up import CatchUp
from penstock.supervision.flow_control import FlowControl
from penstock.supervision.upkeep import Chores
from penstock.supervision.watchdog import Watchdog


@dataclass(frozen=True)
class PendingReruns:
    """What a note says is left to run again."""

    checkpoint: SparkCheckpoint

    @property
    def left(self) -> int:
        """How many batches are left."""
        done = self.checkpoint.last_committed()
        return sum(1 for token in self.checkpoint.again() if done is None or token.batch_id > done)

    def next(self) -> int | None:
        """Put the next batch into Spark's log, which has nothing behind it that was run; none where all are done.

        A query that is stopped behind a batch may have planned one more: no record of it was read.
        """
        done = self.checkpoint.last_committed()
        left = [token for token in self.checkpoint.again() if done is None or token.batch_id > done]
        if not left:
            self.checkpoint.note_again([])
            return None
        token, before = left[0], left[0].batch_id - 1
        if self.checkpoint.last_begun() != token.batch_id or self.checkpoint.ends(token.batch_id) != token.ends:
            like = before if before >= 0 else None
            put_offsets(self.checkpoint.path, token.batch_id, token.ends, like=like, storage=self.checkpoint.storage)
        return token.batch_id


_WITH_SPARK = ("Processing new data", "No new data but cleaning up state")
"""What Spark says of a query whose batch has begun."""
_TELL_AGAIN_SECONDS = 60.0


@dataclass
class Loop:
    """Runs the query of one run, and watches it."""

    pipeline: Pipeline
    checkpoint: SparkCheckpoint
    cluster: Cluster
    topics: TopicIds
    start: StartPoint
    agreed: Agreement
    options: RunOptions
    listener: Listener
    tell: Callable[[str], None]
    stop: StopRequest
    session: Any
    chores: Chores
    control: FlowControl
    hold: Hold
    summary: RunSummary
    told: bool = False
    stalled: bool = False
    stuck: bool = False
    """Whether a batch hangs in this process, so that its query cannot be stopped."""
    _phase: str | None = None
    _revived_at: float | None = None

    def run(self) -> None:
        """Run the query, again after a fault that may pass, until the end."""
        flows = self._flows()
        patience = Patience(self.options.give_up_after, self.listener, self.stop)
        if not self._agree(flows):
            return
        self.checkpoint.note_sinks({sink.name: sink.target for sink in self.pipeline.sinks}, self.agreed.numbers)
        again = PendingReruns(self.checkpoint)
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
                if self.stuck:
                    raise
                if not patience.met(error, progress=self.summary.batches > done_before):
                    return
                flows.try_again()
                if error.code == "TOPIC_RECREATED":
                    self.topics.look_again()
                    forget_open_batch(self.pipeline, self.topics)

    def _agree(self, flows: CurrentFlows) -> bool:
        """Do what makes the targets agree with the start; false where the run was asked to stop first."""
        agreed = self.agreed
        if agreed.moved is not None:
            move_positions(self.pipeline, self.checkpoint, self.start, self.topics.now, agreed.moved, self.tell)
        if not agreed.behind and not agreed.torn:
            return True
        catch_up = CatchUp(
            self.pipeline,
            self.cluster,
            flows,
            Executors(self.session).slots,
            self.tell,
            lambda metrics: self.listener(BatchDone(metrics)),
            self.topics.of_token,
            self.stop,
            OfSession(self.session),
        )
        return catch_up.run(agreed)

    def _flows(self) -> CurrentFlows:
        """The flows, with every sink prepared for their columns."""
        flows = CurrentFlows(self.pipeline, self.session, self.tell, self._late_by)
        schemas = flows.prepare()
        flows.pinned = pinned_slots(self.pipeline, Executors(self.session).slots(), schemas, self.tell)
        flows.stage()
        return flows

    def _late_by(self, batch_id: int) -> int:
        """Spark takes rows as late by the watermark of the batch before."""
        return self.checkpoint.watermark(batch_id - 1) if batch_id > 0 else 0

    def _run_query(self, flows: CurrentFlows, until: int | None) -> bool:
        """Run the query to its end, or behind a batch; false where it must be started again at once."""
        stream = flows.new_stream()
        watchdog: Watchdog | None = None

        def hear(event: Event) -> None:
            if isinstance(event, BatchPhase | BatchDone):
                self._phase = event.phase if isinstance(event, BatchPhase) else None
            if watchdog is not None:
                watchdog.progressed()
            self.listener(event)

        carrier = Carrier(
            self.pipeline,
            self.checkpoint,
            self.cluster,
            self.topics,
            flows,
            self.chores,
            self.control,
            self.hold,
            self.session,
            hear,
            self.summary.add,
            self.stop,
            self.agreed.numbers,
        )
        gate = BatchGate(carrier, until)
        try:
            query = start_query(
                self.session, self.pipeline, self.start, gate, self.options.available_now, stream, self.control.cap
            )
            carrier.knows(query)
        except Exception as error:
            raise translate_error(error, self.pipeline.settings.brokers) from error
        self._tell_started()
        watchdog = Watchdog(self.options.stalled_after, self.listener, QueryWork(self.session, query).look)
        try:
            self._watch(query, gate, watchdog)
        except PenstockError:
            raise
        except Exception as error:
            if flows.stale:
                return False
            done = self.checkpoint.last_committed()
            if gate.error is None and only_reporting_failed(error) and done is not None and done == gate.last_batch:
                return False
            raise self._told_of(gate.error or translate_error(error, self.pipeline.settings.brokers)) from error
        finally:
            gate.release()
            self._stop(query)
            gate.end()
            if not self.stuck:
                carrier.end()
        return True

    def _told_of(self, error: PenstockError) -> PenstockError:
        """The error, or that the checkpoint is gone, which Spark and the sinks tell in many ways."""
        if error.code == "BATCH_FAILED" and self.checkpoint.query_id() is None:
            return checkpoint_gone(self.checkpoint.path, error)
        return error

    def _stop(self, query: Any) -> None:
        # Spark waits for its thread: in vain where that is in the batch that hangs.
        if self.stuck:
            return
        try:
            if query.isActive:
                query.stop()
        except Exception:
            if not self.stalled:
                raise
            self.stuck = True

    def _tell_started(self) -> None:
        if not self.told:
            self.told = True
            lane, query_id = self.pipeline.lane, self.checkpoint.query_id()
            cores = Executors(self.session).cores()
            name, partitions = self.pipeline.config.name, len(self.start.offsets)
            self.listener(Started(name, lane.lane, lane.reason, partitions, query_id, cores))
            if (begun := self.control.begun()) is not None:
                self.listener(begun)

    def _watch(self, query: Any, gate: BatchGate, watchdog: Watchdog) -> None:
        told = -1
        while not query.awaitTermination(0.2):
            told = self._tell_state(query, told)
            self._look_after(query, gate, watchdog)
            if (lost := self.hold.lost()) is not None:
                raise lost
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

    def _look_after(self, query: Any, gate: BatchGate, watchdog: Watchdog) -> None:
        """Whether Spark can call back, and its batches make progress. Raises where one is given up."""
        if revive_callback_server(self.session):
            now = time.monotonic()
            if self._revived_at is None or now - self._revived_at > _TELL_AGAIN_SECONDS:
                self._revived_at = now
                text = (
                    "Spark could not call into this process any more, probably because it had no file descriptor left "
                    "(ulimit -n); it can again"
                )
                self.listener(Stalled(text))
                self.listener(Notice(text))
        in_hand = gate.in_hand
        try:
            watchdog.look(lambda: in_hand or query.status["message"] in _WITH_SPARK, in_hand, self._phase)
        except TransientError:
            self.stalled, self.stuck = True, gate.in_hand
            raise

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


def move_positions(
    pipeline: Pipeline,
    checkpoint: SparkCheckpoint,
    start: StartPoint,
    topic_ids: Mapping[str, str],
    reason: str,
    tell: Callable[[str], None],
) -> None:
    """Move the positions that contradict the start of a run to where it begins, by commits that say why."""
    begun, done = checkpoint.last_begun(), checkpoint.last_committed()
    offsets = checkpoint.starts(begun) if begun is not None and begun != done else start.offsets
    ranges = tuple(OffsetRange(at.topic, at.partition, o, o) for at, o in offsets.items())
    token = BatchToken(pipeline.config.name, f"moved-{uuid4()}", 0, ranges, dict(topic_ids))
    found = standings(pipeline)
    for target in (*pipeline.sinks, *pipeline.quarantines, *([pipeline.targets.gaps] if pipeline.targets.gaps else [])):
        standing = next((one for one in found if one.sink == target.name), None)
        if standing is None or standing.guarantee is not Guarantee.EXACTLY_ONCE:
            continue
        rule = Rule.FORWARD if standing.sparse else Rule.FOLLOWS
        least = carried_number(standing.sink, found) if standing.sparse else 0
        position = standing.begun or standing.position
        if decide(position, replace(token, rule=rule), least) is not Verdict.NEXT:
            moved = replace(token, rule=Rule.MOVES, reason=reason)
            target.land(Position.after(position, moved, least), (), position)
            tell(f"{target.name}: the position was moved on purpose ({reason})")


def forget_open_batch(pipeline: Pipeline, topics: TopicIds) -> None:
    """Where a topic was made again, its records under the old offsets are in no batch that is open."""
    if topics.recreated:
        topics.forget_open_batch(one.newest for one in standings(pipeline))

"""Makes targets and checkpoint agree before the first batch of a run: catching up, moving positions, repeating batches.

Missing records are read again and committed onto the target's own position, batch by batch: the position is the only
progress, so a killed catch-up continues there. Records in the quarantine are excluded from the target. A restored
quarantine gets today's bad records again; a record of the ranges that is good today but missing in its target was
quarantined before, and is quarantined again, so that a redrive can write it.

A checkpoint that was restored from a backup has the state of an older batch than the sinks. A note in its folder lists
the batches in between. Each is written into Spark's log in turn and repeated with exactly its offsets: the sinks
already have it, and its rows update the state again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pyarrow as pa

from penstock.assembly.build import Pipeline
from penstock.checkpoint import SparkCheckpoint
from penstock.contracts import Sink, SlotSink
from penstock.engine.batch import BatchRunner
from penstock.engine.batches import GivenBatches
from penstock.engine.committer import Committer, Purpose
from penstock.engine.flows import CurrentFlows
from penstock.engine.patience import StopRequest
from penstock.engine.refused import Excluded, record_places, single_record
from penstock.errors import MissingError
from penstock.metrics import BatchMetrics
from penstock.model import (
    BatchToken,
    Guarantee,
    Manifest,
    OffsetRange,
    Position,
    Refusal,
    Rule,
    SlotAttempt,
    TopicPartition,
    Verdict,
    decide,
)
from penstock.preflight.checks import Agreement, StartPoint
from penstock.preflight.recreated import TopicIds
from penstock.preflight.standings import carried_number, standings
from penstock.quarantine import Quarantine
from penstock.quarantine.quarantine import WithoutTarget
from penstock.sinks.commit import move
from penstock.supervision.bounded import BATCH_OFFSETS, OfSession, cut

QUARANTINED_BEFORE = "QUARANTINED_BEFORE"
"""The code of a record that is good now but was in a quarantine that was restored: its target does not have it."""


@dataclass
class CatchUp:
    """Catches the targets of a run up."""

    flows: CurrentFlows
    topics: TopicIds
    cores: Callable[[], int]
    count: Callable[[BatchMetrics], None]
    stop: StopRequest

    def __post_init__(self) -> None:
        self.pipeline, self.tell, self.frame = self.flows.pipeline, self.flows.tell, OfSession(self.flows.session)

    def run(self, agreed: Agreement) -> bool:
        """Let every target catch up; returns false if the run was asked to stop first."""
        behind = dict(agreed.behind)
        for name, token in agreed.torn.items():
            # Targets that lack the same batch get it with the others: a bad record is then quarantined once for all.
            sinks = [s for s in self.pipeline.sinks if s.name == name or _begins(behind.get(s.name, ()), token)]
            behind |= {s.name: _without(behind[s.name], token) for s in sinks if s.name in behind}
            self.tell(f"sink {name}: batch {token.batch_id} is repeated: some slots do not have it")
            runner = self._runner(
                self.flows, sinks, GivenBatches([token.ranges], self.topics.cluster, token.batch_id), token
            )
            self.count(runner.run(self.frame, token.batch_id))
        # The quarantine first: sinks catch up without the records that it has.
        for quarantine in self.pipeline.quarantines:
            ranges = behind.get(quarantine.name)
            if ranges is None or not isinstance(quarantine, Quarantine):
                continue
            if ranges and not self._recover(quarantine, ranges):
                return False
            self._level(quarantine, ranges, agreed.next)
        together: dict[tuple[OffsetRange, ...], list[Sink]] = {}
        for sink in self.pipeline.sinks:
            together.setdefault(tuple(behind.get(sink.name, ())), []).append(sink)
        return all(
            self._catch_up(", ".join(sink.name for sink in sinks), self.flows, sinks, ranges)
            for ranges, sinks in together.items()
        )

    def _catch_up(self, names: str, flows: CurrentFlows, sinks: Sequence[Sink], ranges: Sequence[OffsetRange]) -> bool:
        batches = cut(ranges, self.pipeline.config.source.max_offsets or BATCH_OFFSETS)
        if batches:
            self.tell(f"{names}: catching up {sum(map(len, ranges)):,} offsets in {len(batches)} batches")
        token = BatchToken(self.pipeline.config.name, f"catch-up-{uuid4()}", 0, ())
        for sink in sinks if batches else ():
            held = sink.position()
            if held is not None and held.last.batch_id < 0:
                # It went back to before its first commit, and that need not have been at the start of the log.
                starts = tuple(replace(r, end=r.start) for r in ranges)
                moved = replace(token, query_id=f"moved-{uuid4()}", ranges=starts)
                move(sink, moved, "caught up from where the checkpoint begins")
        runner = self._runner(flows, sinks, GivenBatches(batches, self.topics.cluster), token)
        for batch_id in range(len(batches)):
            if self.stop.asked():
                return False
            self.count(runner.run(self.frame, batch_id))
        return True

    def _recover(self, quarantine: Quarantine, ranges: Sequence[OffsetRange]) -> bool:
        """Put into a quarantine again what it lost."""
        # Of a topic, only the position tells what the stream wrote: not which records it left out.
        blind = [s.name for s in self.pipeline.sinks if isinstance(s, SlotSink) or s.records_held(ranges) is None]
        if blind:
            raise MissingError(
                "QUARANTINE_NOT_RECOVERABLE",
                f"{quarantine.name}: cannot determine which records it lost: sink {', '.join(blind)} cannot report "
                "which records its target has",
                context={"quarantine": quarantine.target},
                hint="restore the quarantine; or, to continue without the lost records: penstock run FILE "
                "--accept-duplicates",
            )
        pipeline = self.pipeline.with_sinks(LostRecords)
        flows = CurrentFlows(pipeline, self.flows.session, self.tell)
        flows.prepare()
        return self._catch_up(quarantine.name, flows, pipeline.sinks, ranges)

    def _level(self, quarantine: Quarantine, ranges: Sequence[OffsetRange], batch: BatchToken | None) -> None:
        """Move a complete quarantine back to the commit number that the sinks have seen."""
        carried = carried_number(quarantine.name, standings(self.pipeline.targets))
        position = quarantine.position()
        name = self.pipeline.config.name
        token = BatchToken(name, f"catch-up-{quarantine.name}", carried, (), rule=Rule.MOVES)
        if batch is not None and any(r.end > batch.starts.get(r.topic_partition, r.end) for r in ranges):
            # Its position is that after the first attempt of the batch, which is bound by what was quarantined.
            token = replace(batch, pipeline=name, rule=Rule.FORWARD)
        token = replace(token, reason="caught up")
        quarantine.land(Position.after(position, token, carried), (), position)

    def _runner(
        self, flows: CurrentFlows, sinks: Sequence[Sink], batches: GivenBatches, token: BatchToken
    ) -> BatchRunner:
        recovers = any(isinstance(sink, LostRecords) for sink in sinks)
        targets = replace(self.pipeline.targets, sinks=tuple(sinks))
        return BatchRunner(
            token,
            flows,
            batches,
            Committer(targets, Purpose.RECOVER if recovers else Purpose.CATCH_UP),
            self.cores,
            excluded=_held_already,
            topic_ids=self.topics.of_token,
            stopped=self.stop.asked,
        )


class LostRecords(WithoutTarget):
    """Implements `contracts.Sink` in place of a sink: every row that it is given is refused, and so quarantined.

    It is given the rows of records that the sink does not hold. Those beyond the sink's position are not lost: it has
    yet to be caught up.
    """

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, sink: Sink) -> None:
        position = sink.position()
        self.name = sink.name
        self.target = sink.target
        self.sink = sink
        self.next = dict(position.next) if position is not None else {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "sink": None}

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> _RefuseLost:
        """In a task: refuse every row."""
        return _RefuseLost(self.name, writer, self.next)


@dataclass(frozen=True)
class _RefuseLost:
    sink: str
    writer: SlotAttempt
    next: Mapping[TopicPartition, int]

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        message = f"sink {self.sink} does not have it, and the quarantine that had it was restored"
        lost = [(t, p, o) for t, p, o in record_places(rows) if o < self.next.get(TopicPartition(t, p), 0)]
        return [Refusal(single_record(place), QUARANTINED_BEFORE, message) for place in lost]

    def finish(self) -> Manifest:
        return Manifest(self.sink, self.writer, 0, 0)

    def abort(self) -> None:
        pass


def _begins(ranges: Sequence[OffsetRange], token: BatchToken) -> bool:
    """Whether the missing ranges of a target start with a batch."""
    lacking = {r.topic_partition: r for r in ranges}
    return bool(ranges) and all(
        r.topic_partition in lacking
        and lacking[r.topic_partition].start == r.start
        and lacking[r.topic_partition].end >= r.end
        for r in token.ranges
        if len(r)
    )


def _without(ranges: Sequence[OffsetRange], token: BatchToken) -> tuple[OffsetRange, ...]:
    """The missing ranges of a target after their first batch."""
    left = (replace(r, start=token.ends.get(r.topic_partition, r.start)) for r in ranges)
    return tuple(r for r in left if len(r))


def _held_already(token: BatchToken, sinks: Sequence[Sink]) -> Excluded:
    """The records that the sinks have, if they can report them: a redrive may have written some."""
    asked = [(one.name, one.sink if isinstance(one, LostRecords) else one) for one in sinks]
    held = [(name, sink.records_held(token.ranges)) for name, sink in asked]
    return Excluded.of((name, place) for name, places in held for place in places or ())


def move_positions(
    pipeline: Pipeline,
    checkpoint: SparkCheckpoint,
    start: StartPoint,
    topic_ids: Mapping[str, str],
    reason: str,
    tell: Callable[[str], None],
) -> None:
    """Move positions that contradict the start of a run to that start, by commits with the reason."""
    begun, done = checkpoint.last_begun(), checkpoint.last_committed()
    offsets = checkpoint.starts(begun) if begun is not None and begun != done else start.offsets
    ranges = tuple(OffsetRange(at.topic, at.partition, o, o) for at, o in offsets.items())
    token = BatchToken(pipeline.config.name, f"moved-{uuid4()}", 0, ranges, dict(topic_ids))
    found = standings(pipeline.targets)
    for target in (*pipeline.sinks, *pipeline.quarantines, *([pipeline.targets.gaps] if pipeline.targets.gaps else [])):
        standing = next((one for one in found if one.sink == target.name), None)
        if standing is None or standing.guarantee is not Guarantee.EXACTLY_ONCE:
            continue
        rule = Rule.FORWARD if standing.sparse else Rule.FOLLOWS
        least = carried_number(standing.sink, found) if standing.sparse else 0
        position = standing.furthest
        if decide(position, replace(token, rule=rule), least) is not Verdict.NEXT:
            moved = replace(token, rule=Rule.MOVES, reason=reason)
            target.land(Position.after(position, moved, least), (), position)
            tell(f"{target.name}: the position was moved on purpose ({reason})")


def pending_reruns(checkpoint: SparkCheckpoint) -> list[BatchToken]:
    """The batches that remain to be repeated according to the note."""
    done = checkpoint.last_committed()
    return [token for token in checkpoint.again() if done is None or token.batch_id > done]


def next_rerun(checkpoint: SparkCheckpoint) -> int | None:
    """Put the next of them into Spark's log, which has nothing after it that was run; none where all are done.

    A query that is stopped after a batch may have planned one more: no record of it was read.
    """
    left = pending_reruns(checkpoint)
    if not left:
        checkpoint.note_again([])
        return None
    token, before = left[0], left[0].batch_id - 1
    if checkpoint.last_begun() != token.batch_id or checkpoint.ends(token.batch_id) != token.ends:
        like = before if before >= 0 else None
        checkpoint.put_offsets(token.batch_id, token.ends, like=like)
    return token.batch_id

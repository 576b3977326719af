"""A run over ranges that are known in advance: a replay or a redrive. Exactly once, and resumable.

The input is a pipeline whose name has its own positions in the targets, and a fixed list of batches. The batches are
processed as in a live run, by the same lanes into the same sinks. Progress is in the targets: a killed run continues
after the last batch that all of them have. The small file in its folder is a hint, for people and for targets that
store no position.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from penstock.assembly.build import Pipeline
from penstock.assembly.faults import full_disks_named, translate_error
from penstock.assembly.placing import check_places, placement_of
from penstock.assembly.starting import session_for
from penstock.checkpoint import checkpoint_lock
from penstock.contracts import Reader, Sink
from penstock.engine.batch import BatchRunner
from penstock.engine.batches import GivenBatches
from penstock.engine.committer import Committer, Purpose
from penstock.engine.flows import CurrentFlows
from penstock.engine.listener import BatchDone, Listener, Notice, Started, Stopping, notify_once
from penstock.engine.orphans import Orphans
from penstock.engine.patience import Retries, StopRequest
from penstock.engine.refused import Excluded
from penstock.engine.work import cut_ranges
from penstock.errors import TerminalError, TransientError, transient_is_fatal
from penstock.kafka import Cluster
from penstock.model import BAD_SCHEMA, BatchToken, Guarantee, OffsetRange, Position, Rule, TopicPartition
from penstock.preflight.options import RunOptions, RunSummary
from penstock.preflight.recreated import SameTopics, recreated_topics
from penstock.sinks.commit import move
from penstock.spark.executors import Attempts, Executors
from penstock.spark.placement import Placement
from penstock.supervision.gathered import GatheredSink
from penstock.supervision.job_folder import ATTEMPT, PROGRESS, read_note, write_note
from penstock.supervision.upkeep import lock_of

BATCH_OFFSETS = 500_000
"""The size of a batch where the source has no `max_offsets`."""


@dataclass(frozen=True)
class BoundedRun:
    """What is run."""

    pipeline: Pipeline
    """The name under which the targets store its position."""
    run_id: str
    """The query id of its tokens."""
    batches: tuple[tuple[OffsetRange, ...], ...]
    folder: Path
    """Where it stores its progress."""
    reader: Reader | None = None
    """Defaults to the topics themselves."""
    marks: Sink | None = None
    """Replaces the quarantine: gets the bad records, and is committed as the last sink of every batch."""
    at_once: bool = False
    """Whether every sink is committed once, at the end, with one token over all the ranges."""
    rule: Rule = Rule.FOLLOWS
    excluded: Callable[[BatchToken, Sequence[Sink]], Excluded] = lambda token, sinks: Excluded()
    """For a batch: the records to exclude per sink because the sink already has them."""
    settle: Callable[[], object] = lambda: None
    """Called after the last batch, before the final commit."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The ids that the topics had when the ranges were chosen; others are pinned by their first batch."""
    check_log: bool = True
    """Whether the topics must still contain the ranges."""
    beside: str | None = None
    """The checkpoint of a stream that may write to the same tables: commits lock them against its compaction."""
    give_up_after: float = RunOptions.give_up_after

    @property
    def noted(self) -> int:
        """How many batches were committed when that was last noted: a hint."""
        return int(read_note(self.folder / PROGRESS).get("done", 0))

    @property
    def finished(self) -> bool:
        """Whether it was noted that nothing is left to do: a hint."""
        return bool(read_note(self.folder / PROGRESS).get("finished"))


def batches_done(run: BoundedRun) -> int:
    """How many batches all targets have, by their positions; by the note if no target stores one."""
    pipeline, _ = _gathering(run)
    targets = (*pipeline.sinks, *((run.marks,) if run.marks is not None else ()))
    exact = [sink for sink in targets if sink.guarantee is Guarantee.EXACTLY_ONCE]
    if not exact:
        return run.noted
    return min(min(_held(run, sink.position()) for sink in exact), len(run.batches))


def is_done(run: BoundedRun) -> bool:
    """Whether every target holds all of it."""
    _, gathered = _gathering(run)
    return batches_done(run) == len(run.batches) and all(sink.published for sink in gathered)


def _held(run: BoundedRun, position: Position | None) -> int:
    if position is None or position.last.batch_id < 0:
        return 0
    if position.last.query_id == run.run_id:
        return position.last.batch_id + 1
    # Redrives of one pipeline share a position; the records of the target are queried for each batch.
    return run.noted if run.rule is Rule.RECORDS else 0


def cut(ranges: Sequence[OffsetRange], most: int) -> tuple[tuple[OffsetRange, ...], ...]:
    """Batches of at most `most` offsets, in the order of the ranges."""
    total = sum(map(len, ranges))
    return tuple(cut_ranges(ranges, [*range(most, total, most), total]))


def run_bounded(
    run: BoundedRun,
    listener: Listener = lambda event: None,
    stop: StopRequest | None = None,
    session: Any = None,
    log: Path | None = None,
) -> RunSummary:
    """Process the remaining batches. A stop ends it after a batch; the same call continues there."""
    began, stop, summary = time.monotonic(), stop or StopRequest(), RunSummary()
    run.folder.mkdir(parents=True, exist_ok=True)
    with full_disks_named(run.pipeline.config), checkpoint_lock(str(run.folder)):
        if run.rule is not Rule.RECORDS or not run.finished:
            run = _attempt(run)
            _start_again(run)
            if is_done(run):
                run.settle()
                _note(run, len(run.batches), finished=True)
            else:
                _carry(run, listener, stop, session, log, summary)
    summary.seconds = time.monotonic() - began
    return summary


def _carry(
    run: BoundedRun, listener: Listener, stop: StopRequest, session: Any, log: Path | None, summary: RunSummary
) -> None:
    pipeline, gathered = _gathering(run)
    if run.marks is not None:
        pipeline = replace(pipeline, targets=replace(pipeline.targets, quarantines=(run.marks,)))
    pipeline = replace(pipeline, reader=run.reader or pipeline.reader)
    cluster = Cluster(pipeline.settings) if run.check_log else None
    with transient_is_fatal():
        for quarantine in pipeline.quarantines:
            quarantine.prepare(BAD_SCHEMA)
    placement = placement_of(pipeline.config) if session is None else Placement(session.sparkContext.master)
    for notice in check_places(pipeline.config, placement):
        listener(Notice(notice))
    first = batches_done(run)
    with session_for(pipeline, log, session, tell=lambda text: listener(Notice(text))) as spark:
        executors, tell = Executors(spark), notify_once(listener)
        flows = CurrentFlows(pipeline, spark, tell)
        flows.prepare(executors.slots())
        partitions = len({r.topic_partition for batch in run.batches for r in batch})
        listener(Started(pipeline.config.name, pipeline.lane.lane, pipeline.lane.reason, partitions, run.run_id))
        targets = replace(pipeline.targets, gaps=None)
        if run.marks is not None:
            targets = replace(targets, sinks=(*pipeline.sinks, run.marks), quarantines=())
        table_lock = partial(lock_of, run.beside or pipeline.config.checkpoint)
        runner = BatchRunner(
            BatchToken(pipeline.config.name, run.run_id, 0, (), rule=run.rule),
            flows,
            GivenBatches(run.batches, cluster),
            Committer(targets, Purpose.REWRITE, run.marks, table_lock=table_lock),
            executors.slots,
            orphans=Orphans(Attempts(spark)),
            excluded=run.excluded,
            topic_ids=_pinned_ids(run, cluster),
            same_topics=partial(SameTopics, pipeline.settings) if cluster is not None else None,
            stopped=stop.asked,
        )
        whole = _all_batches(run, first, runner, flows, listener, stop, summary)
        runner.end()
        if whole:
            run.settle()
            for sink in gathered:
                with lock_of(run.beside or pipeline.config.checkpoint, sink):
                    sink.publish()
            _note(run, len(run.batches), finished=True)


def _all_batches(
    run: BoundedRun,
    number: int,
    runner: BatchRunner,
    flows: CurrentFlows,
    listener: Listener,
    stop: StopRequest,
    summary: RunSummary,
) -> bool:
    retries, progress = Retries(run.give_up_after, listener, stop), False
    while number < len(run.batches):
        if stop.asked():
            listener(Stopping())
            return False
        try:
            metrics = runner.run(OfSession(flows.session), number)
        except Exception as error:
            translated = translate_error(error, run.pipeline.settings.brokers)
            if not isinstance(translated, TransientError):
                raise translated from error
            if not retries.wait(translated, progress=progress):
                return False
            flows.try_again()
            runner.token = replace(runner.token, query_id=_attempt(run).run_id)
            progress = False
            continue
        number, progress = number + 1, True
        _note(run, number)
        summary.add(metrics)
        listener(BatchDone(metrics))
    return True


def _gathering(run: BoundedRun) -> tuple[Pipeline, list[GatheredSink]]:
    """The pipeline to run, and its sinks that are committed at the end."""
    gathered: list[GatheredSink] = []
    if not run.at_once:
        return run.pipeline, gathered
    whole = _whole(run)

    def later(sink: Sink) -> Sink:
        gathered.append(GatheredSink(sink, whole, run.batches, run.folder / "gathered" / sink.name))
        return gathered[-1]

    return run.pipeline.with_sinks(later), gathered


def _attempt(run: BoundedRun) -> BoundedRun:
    """A redrive under a query id that no target has committed yet, if each target can report its records.

    A killed attempt may have used another definition: a record that was bad then and is good now is missing in the
    targets that have the batch. So a token does not count as proof of a commit if each target can report which records
    it has. Staged files are named after the query and the batch: under the same name the files of both attempts would
    mix.
    """
    if run.rule is not Rule.RECORDS:
        return run
    note = run.folder / ATTEMPT
    known = read_note(note) or {"query_id": run.run_id, "onto": {}}
    exact = [sink for sink in run.pipeline.sinks if sink.guarantee is Guarantee.EXACTLY_ONCE]
    held = {sink.name: sink.position() for sink in exact}
    numbers = {name: position.number if position is not None else 0 for name, position in held.items()}
    own = {name for name, position in held.items() if position and position.last.query_id == known["query_id"]}
    if all(sink.records_held(()) is not None for sink in exact):
        own = set()
    if any(name not in own and numbers[name] != known["onto"].get(name) for name in held):
        known = {"query_id": uuid4().hex, "onto": numbers}
        write_note(note, known)
    return replace(run, run_id=known["query_id"])


def _start_again(run: BoundedRun) -> None:
    """Let a target that was restored to before the first batch take it again: its position moves to the start."""
    starts: dict[TopicPartition, int] = {}
    for one in (r for batch in run.batches for r in batch):
        starts[one.topic_partition] = min(one.start, starts.get(one.topic_partition, one.start))
    nothing = tuple(OffsetRange(at.topic, at.partition, start, start) for at, start in starts.items())
    for sink in run.pipeline.sinks:
        held = sink.position()
        if run.rule is Rule.FOLLOWS and held is not None and held.last.batch_id < 0:
            token = BatchToken(run.pipeline.config.name, run.run_id, -1, nothing)
            move(sink, token, "the target was restored to before the first batch, which is written again")


def _pinned_ids(run: BoundedRun, cluster: Cluster | None) -> Callable[[BatchToken], dict[str, str]]:
    """The current ids of a batch's topics. Raises if a topic was re-created since the ranges were chosen."""
    known = dict(run.topic_ids)

    def of_token(token: BatchToken) -> dict[str, str]:
        topics = {r.topic for r in token.ranges}
        now = cluster.topic_ids(topics) if cluster is not None else {}
        changed = recreated_topics(known, now)
        if changed:
            raise TerminalError(
                "TOPIC_RECREATED",
                f"{', '.join(sorted(changed))}: re-created since the ranges to read were chosen",
                context={topic: f"id {known[topic]} then, {now[topic]} now" for topic in sorted(changed)},
                hint="the records are gone; choose ranges of the new topic",
            )
        known.update({topic: one for topic, one in now.items() if topic not in known})
        return {topic: known[topic] for topic in topics if topic in known}

    return of_token


def _whole(run: BoundedRun) -> BatchToken:
    """One token over all the ranges; those of one partition that touch are one."""
    joined: list[OffsetRange] = []
    for one in sorted(r for batch in run.batches for r in batch):
        if joined and joined[-1].topic_partition == one.topic_partition and joined[-1].end == one.start:
            joined[-1] = replace(joined[-1], end=one.end)
        else:
            joined.append(one)
    return BatchToken(run.pipeline.config.name, run.run_id, 0, tuple(joined))


def _note(run: BoundedRun, done: int, finished: bool = False) -> None:
    write_note(run.folder / PROGRESS, {"done": done, "of": len(run.batches), "finished": finished})


@dataclass(frozen=True)
class OfSession:
    """What the lanes need of a batch's frame."""

    sparkSession: Any  # noqa: N815  Spark's own name

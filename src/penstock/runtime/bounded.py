"""A run over ranges that are known before it begins: a replay, or a redrive. Exactly once, and resumable.

What enters is a pipeline whose name is a token space of its own, and a list of batches that does not change. The
batches are carried as in a live run, by the same lanes into the same sinks. How far it is stands in a small file; the
batch behind it is looked up in the sinks, so that a run which was killed goes on where it was, and nothing is twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from penstock.checkpoint import checkpoint_lock
from penstock.checkpoint.whole import put_whole
from penstock.contracts import Reader, Sink
from penstock.errors import MissingError, TransientError
from penstock.kafka import Cluster
from penstock.model import BAD_SCHEMA, BatchToken, OffsetRange
from penstock.runtime.batch import BatchRunner
from penstock.runtime.batches import GivenBatches
from penstock.runtime.build import Pipeline
from penstock.runtime.faults import in_our_terms, nothing_passes
from penstock.runtime.flows import CurrentFlows
from penstock.runtime.gathered import GatheredSink
from penstock.runtime.listener import BatchDone, Listener, Notice, Started, Stopping
from penstock.runtime.options import RunSummary
from penstock.runtime.patience import Patience, StopRequest
from penstock.runtime.placing import check_places, placement_of
from penstock.runtime.room import full_disks_named
from penstock.runtime.starting import pinned_slots, session_for
from penstock.runtime.strays import Strays
from penstock.runtime.upkeep import turn_at
from penstock.spark.attempts import Attempts
from penstock.spark.executors import Executors
from penstock.spark.placement import Placement

_PROGRESS = "progress.json"


@dataclass(frozen=True)
class BoundedRun:
    """What is run."""

    pipeline: Pipeline
    """Its name is the token space."""
    run_id: str
    """The query id of its tokens."""
    batches: tuple[tuple[OffsetRange, ...], ...]
    folder: Path
    """Where it notes how far it is."""
    reader: Reader | None = None
    """Left out: the topics themselves."""
    marks: Sink | None = None
    """In place of the quarantine: given the bad records, and committed as the last sink of every batch."""
    at_once: bool = False
    """Whether every sink is committed once, at the end, with one token over all the ranges."""
    check_log: bool = True
    """Whether the ranges are of topics that must still have them."""
    beside: str | None = None
    """The checkpoint of a stream that may write to the same tables: commits take turns with it."""
    give_up_after: float = 300.0

    @property
    def done(self) -> int:
        """How many batches are surely committed."""
        try:
            return int(json.loads((self.folder / _PROGRESS).read_text())["done"])
        except FileNotFoundError:
            return 0

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        try:
            return bool(json.loads((self.folder / _PROGRESS).read_text()).get("finished"))
        except FileNotFoundError:
            return False


def cut(ranges: Sequence[OffsetRange], most: int) -> tuple[tuple[OffsetRange, ...], ...]:
    """Batches of at most `most` offsets, in the order of the ranges."""
    batches: list[tuple[OffsetRange, ...]] = []
    current: list[OffsetRange] = []
    room = most
    for whole in ranges:
        start = whole.start
        while start < whole.end:
            end = min(whole.end, start + room)
            current.append(replace(whole, start=start, end=end))
            room -= end - start
            start = end
            if not room:
                batches.append(tuple(current))
                current, room = [], most
    return (*batches, tuple(current)) if current else tuple(batches)


def run_bounded(
    run: BoundedRun,
    listener: Listener = lambda event: None,
    stop: StopRequest | None = None,
    session: Any = None,
    log: Path | None = None,
) -> RunSummary:
    """Carry the batches that are left. A stop ends it behind a batch; the same call goes on there."""
    began, stop, summary = time.monotonic(), stop or StopRequest(), RunSummary()
    if run.pipeline.stateful:
        raise MissingError(
            "BOUNDED_HAS_STATE",
            f"pipeline {run.pipeline.config.name}: a step remembers rows, and what it remembered then is not there",
            hint="start a copy of the pipeline with another table and a checkpoint of its own: "
            "penstock checkpoint fork FILE --to PATH --offsets ...",
        )
    run.folder.mkdir(parents=True, exist_ok=True)
    with full_disks_named(run.pipeline.config), checkpoint_lock(str(run.folder)):
        if not run.finished:
            _carry(run, listener, stop, session, log, summary)
    summary.seconds = time.monotonic() - began
    return summary


def _carry(
    run: BoundedRun, listener: Listener, stop: StopRequest, session: Any, log: Path | None, summary: RunSummary
) -> None:
    gathered: list[GatheredSink] = []

    def later(sink: Sink) -> Sink:
        gathered.append(GatheredSink(sink, _whole(run), run.folder / "gathered" / sink.name))
        return gathered[-1]

    pipeline = run.pipeline.with_sinks(later) if run.at_once else run.pipeline
    pipeline = _reading(run, pipeline)
    cluster = Cluster(pipeline.settings) if run.check_log else None
    with nothing_passes():
        for quarantine in pipeline.quarantines:
            quarantine.prepare(BAD_SCHEMA)
    placement = placement_of(pipeline.config) if session is None else Placement(session.sparkContext.master)
    for notice in check_places(pipeline.config, placement):
        listener(Notice(notice))
    with session_for(pipeline, log, session, tell=lambda text: listener(Notice(text))) as spark:
        told: set[str] = set()

        def tell(text: str) -> None:
            if text not in told:
                told.add(text)
                listener(Notice(text))

        executors = Executors(spark)
        flows = CurrentFlows(pipeline, spark, tell)
        schemas = flows.prepare()
        flows.pinned = pinned_slots(pipeline, executors.slots(), schemas, tell)
        flows.stage()
        listener(Started(pipeline.config.name, pipeline.lane.lane, pipeline.lane.reason, _partitions(run), run.run_id))
        runner = BatchRunner(
            BatchToken(pipeline.config.name, run.run_id, 0, ()),
            flows.now,
            pipeline.sinks if run.marks is None else (*pipeline.sinks, run.marks),
            pipeline.quarantines if run.marks is None else (),
            GivenBatches(run.batches, cluster),
            pipeline.reader,
            None,
            pipeline.targets.rejects if run.marks is None else {},
            executors.slots,
            tell,
            run.marks,
            partial(turn_at, run.beside or pipeline.config.checkpoint),
            strays=Strays(Attempts(spark)),
        )
        whole = _all_batches(run, runner, flows, listener, stop, summary)
        runner.end()
        if whole:
            for sink in gathered:
                with turn_at(run.beside or pipeline.config.checkpoint, sink):
                    sink.land()
            _note(run, len(run.batches), finished=True)


def _all_batches(
    run: BoundedRun,
    runner: BatchRunner,
    flows: CurrentFlows,
    listener: Listener,
    stop: StopRequest,
    summary: RunSummary,
) -> bool:
    patience, progress = Patience(run.give_up_after, listener, stop), False
    number = run.done
    while number < len(run.batches):
        if stop.asked():
            listener(Stopping())
            return False
        try:
            metrics = runner.run(_OfSession(flows.session), number)
        except Exception as error:
            told = in_our_terms(error, run.pipeline.settings.brokers)
            runner.after_restart = True
            if not isinstance(told, TransientError):
                raise told from error
            if not patience.met(told, progress=progress):
                return False
            flows.try_again()
            progress = False
            continue
        number, progress = number + 1, True
        _note(run, number)
        summary.add(metrics)
        listener(BatchDone(metrics))
    return True


def _reading(run: BoundedRun, pipeline: Pipeline) -> Pipeline:
    if run.marks is not None:
        pipeline = replace(pipeline, targets=replace(pipeline.targets, quarantines=(run.marks,)))
    return pipeline if run.reader is None else replace(pipeline, reader=run.reader)


def _partitions(run: BoundedRun) -> int:
    return len({r.topic_partition for batch in run.batches for r in batch})


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
    put_whole(run.folder / _PROGRESS, json.dumps({"done": done, "of": len(run.batches), "finished": finished}).encode())


@dataclass(frozen=True)
class _OfSession:
    """What the lanes need of a batch's frame."""

    sparkSession: Any  # noqa: N815  Spark's own name

"""A replay: process offsets again with the current pipeline, without touching the live run.

`plan_replay` asks the broker, the checkpoint and the targets, and writes nothing; `apply_replay` does it: a bounded run
whose name is made of what it is, and under which its targets keep its position. They say whether it was done, and where
it goes on when it is started again. Its rejects have a quarantine of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from penstock.assembly.build import Pipeline, build
from penstock.assembly.reaching import storage_of
from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.lock import held_by
from penstock.config import PipelineConfig
from penstock.contracts import Sink
from penstock.engine.listener import Listener, Notice
from penstock.engine.patience import StopRequest
from penstock.errors import MissingError, TerminalError
from penstock.kafka import Cluster, LogBounds
from penstock.model import Guarantee, OffsetRange, Position, TopicPartition, replay_of
from penstock.ops.points import parse_partitions, parse_point, resolve
from penstock.ops.redrive.targets import narrowed
from penstock.ops.replay.folder import ReplayRequest, StoredReplay, new_replay, replay_called, unfinished
from penstock.ops.replay.ranges import (
    Missing,
    between,
    choose,
    first_times,
    lost_before,
    position_of,
    replay_id,
    times_of,
)
from penstock.ops.replay.rejects import (
    give_up,
    hold_redrives,
    mark_replayed,
    quarantine_rejects,
    rejects_table,
    release_redrives,
)
from penstock.ops.replay.targets import (
    TargetChoice,
    Way,
    choose_targets,
    prepared_for,
    refuse_shared,
    retargeted,
)
from penstock.preflight.checks import check_brokers
from penstock.preflight.options import RunSummary
from penstock.quarantine.marks import commit_numbers
from penstock.supervision.bounded import BATCH_OFFSETS, BoundedRun, batches_done, cut, run_bounded
from penstock.wording import some

_ASKED_AT_ONCE = 1_000_000
"""How many offsets of a target to query at once."""


@dataclass(frozen=True)
class PlannedTarget:
    """One sink of a replay: where and how it writes, and how many rows go out for that."""

    sink: str
    target: str
    way: Way
    replaces: int | None = None


@dataclass(frozen=True)
class ReplayPlan:
    """What a replay would do."""

    config: PipelineConfig
    stored: StoredReplay
    targets: tuple[PlannedTarget, ...]
    batches: int
    times: tuple[datetime, datetime] | None
    """Approximately when the first and last records were written."""
    missing: tuple[Missing, ...]
    notices: tuple[str, ...]
    running: str | None
    """Who currently runs the live stream."""
    done: int = 0
    """Finished batches of a replay that continues."""
    resumed: bool = False
    quarantine: str | None = None
    """Where its rejects go; None if a bad record stops it."""

    @property
    def name(self) -> str:
        """The name under which its targets keep its position, and its name in its quarantine."""
        return self.stored.pipeline(self.config.name)

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """What is read."""
        return self.stored.ranges

    @property
    def offsets(self) -> int:
        """How many messages there are at most: offsets have holes."""
        return sum(map(len, self.ranges))

    @property
    def at_once(self) -> bool:
        """Whether everything appears in one commit at the end."""
        return self.stored.at_once

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "id": self.stored.id,
            "pipeline": self.config.name,
            "name": self.name,
            "folder": str(self.stored.folder),
            "resumed": self.resumed,
            "request": asdict(self.stored.request),
            "offsets": self.offsets,
            "times": [time.isoformat() for time in self.times] if self.times else None,
            "ranges": [asdict(r) for r in self.ranges],
            "missing": [
                {"topic": m.at.topic, "partition": m.at.partition, "start": m.start, "end": m.end, "reason": m.reason}
                for m in self.missing
            ],
            "quarantine": self.quarantine,
            "batches": self.batches,
            "batches_done": self.done,
            "targets": [{**asdict(one), "way": one.way.name.lower()} for one in self.targets],
            "running": self.running,
            "notices": list(self.notices),
        }


def plan_replay(config: PipelineConfig, request: ReplayRequest | None, resume: str | None = None) -> ReplayPlan:
    """What a replay would read, write and replace; nothing is written. `resume` is the id of an earlier one.

    Raises where the targets hold all of it already.
    """
    live = build(config)
    _refuse_state(live)
    cluster = Cluster(live.settings)
    log = check_brokers(cluster, live)
    missing: list[Missing] = []
    notices: list[str] = []
    stored: StoredReplay | None
    if resume is not None:
        stored = replay_called(config.checkpoint, resume)
        if stored.finished:
            raise _finished(stored, "it is recorded as done")
    else:
        assert request is not None, "a replay is new, or given by its id"
        targets = choose_targets(live, request.sinks, request.into)
        stored = unfinished(config.checkpoint, request, targets)
        if stored is None:
            planned, missing = _new(live, request, targets, cluster, log, notices)
            stored = _to_begin(config, planned, again=request.again)
        else:
            topic_ids = cluster.topic_ids({r.topic for r in stored.ranges})
            if stored.topic_ids and not stored.id.startswith(replay_id(live, stored.ranges, topic_ids, targets)):
                notices.append(
                    "the file has changed since this replay was started: only the remaining batches use the new one"
                )
    pipeline = _pipeline(config, stored)
    refuse_shared(stored.targets, live.sinks, config.name)
    bounded = _bounded(config, stored, pipeline)
    done = batches_done(bounded)
    if not done:
        _refuse_doubling(config, stored, pipeline)
    return ReplayPlan(
        config=config,
        stored=stored,
        targets=tuple(_planned(choice, sink) for choice, sink in zip(stored.targets, pipeline.sinks, strict=True)),
        batches=len(bounded.batches),
        times=times_of(live.reader, stored.ranges),
        missing=tuple(missing),
        notices=tuple(notices),
        running=held_by(config.checkpoint, storage_of(config)),
        done=done,
        resumed=done > 0 or unfinished(config.checkpoint, stored.request, stored.targets) is not None,
        quarantine=rejects_table(config, stored) if config.quarantine is not None else None,
    )


def refuse_missing(plan: ReplayPlan) -> None:
    """Stop if requested records have expired, unless that was accepted."""
    if plan.missing and not plan.stored.request.accept_missing:
        raise MissingError(
            "REPLAY_RANGE_GONE",
            "some of the records to be replayed have expired (topic retention)",
            context={str(one.at): _describe_missing(one) for one in plan.missing[:8]},
            hint="replay what is left: --accept-missing; the targets keep their rows for expired records",
        )


def apply_replay(
    plan: ReplayPlan,
    listener: Listener = lambda event: None,
    stop: StopRequest | None = None,
    session: Any = None,
    log: Path | None = None,
) -> RunSummary | None:
    """Complete the replay and return its results; None if it was stopped first: the same call continues it."""
    refuse_missing(plan)
    stored = plan.stored
    stored.write()
    bounded = _bounded(plan.config, stored, _pipeline(plan.config, stored))
    summary = run_bounded(bounded, listener, stop, session, log)
    if not bounded.finished:
        return None
    if stored.in_place:
        release_redrives(plan.config, stored)
        commits = commit_numbers(bounded.pipeline.sinks)
        count = mark_replayed(plan.config, stored, commits)
        if count:
            listener(Notice(f"it also wrote {count:,} quarantined records: they no longer need a redrive"))
    stored.finish({"batches": len(bounded.batches), "offsets": plan.offsets, **_counts(summary)})
    return summary


def give_up_replay(config: PipelineConfig, replay: str) -> list[str]:
    """End a replay in place that will not be finished, so that redrives continue; the sinks that it blocked.

    Only the targets are asked: what it noted next to the checkpoint may be lost.
    """
    held = give_up(config, replay)
    if not held:
        replay_called(config.checkpoint, replay)
    return held


def _new(
    live: Pipeline,
    request: ReplayRequest,
    targets: tuple[TargetChoice, ...],
    cluster: Cluster,
    log: Mapping[TopicPartition, LogBounds],
    notices: list[str],
) -> tuple[StoredReplay, list[Missing]]:
    topics = {at.topic for at in log}
    start, end = parse_point("--from", request.start, topics), parse_point("--to", request.end, topics)
    asked = [set(point.offsets) for point in (start, end) if point.offsets]
    if request.partitions is not None:
        asked.append(parse_partitions(request.partitions, topics))
    read = _topics_read(live, targets)
    chosen = [at for at in choose(asked, log) if read is None or at.topic in read]
    position = position_of(SparkCheckpoint(live.config.checkpoint, live.storage))
    starts = resolve(start, chosen, cluster, log, {})
    ends = resolve(end, chosen, cluster, log, position or {})
    beyond = [at for at in chosen if end.offsets and ends[at] > log[at].end]
    if beyond:
        notices.append(f"the log ends before --to in {some(beyond, 4)}: the replay ends there")
    if any(one.way is not Way.INTO for one in targets):
        capped = {at: min(ends[at], (position or {}).get(at, starts[at])) for at in chosen}
        later = [at for at in chosen if capped[at] < min(ends[at], log[at].end)]
        if later:
            notices.append(
                f"--to is limited to the committed offsets of the live run, in {some(later, 4)}: it writes the rest "
                f"itself"
            )
        ends = capped
    ranges = between(starts, ends, log)
    if not ranges:
        raise MissingError(
            "REPLAY_EMPTY",
            "there is nothing to replay between --from and --to",
            context={
                "--from": request.start,
                "--to": request.end,
                "live run": "has committed nothing yet" if position is None else "has committed",
                **{str(at): f"the log holds {log[at].start}-{log[at].end}" for at in chosen[:4]},
            },
            hint="\n".join(notices) or None,
        )
    missing = lost_before(start, starts, ends, log, first_times(live.reader, ranges) if start.time else {})
    size = live.config.source.max_offsets or BATCH_OFFSETS
    topic_ids = cluster.topic_ids({r.topic for r in ranges})
    name = replay_id(live, ranges, topic_ids, targets)
    return new_replay(live.config.checkpoint, name, request, tuple(ranges), size, targets, topic_ids), missing


def _to_begin(config: PipelineConfig, first: StoredReplay, *, again: bool) -> StoredReplay:
    """The replay as its targets want it: where it was interrupted it goes on, and where it was done it is refused.

    With `again` one that was done is done once more, under the next name. So is one whose targets were removed, while
    its rejects are still there: they are of an earlier life.
    """
    stored, number = first, 1
    while True:
        pipeline = _pipeline(config, stored)
        held = [sink.position() for sink in pipeline.sinks if sink.guarantee is Guarantee.EXACTLY_ONCE]
        if all(_holds_all(position, stored) for position in held) if held else stored.finished:
            if not again:
                raise _finished(stored, "its targets have it", pipeline)
            if not stored.in_place:
                raise _finished(stored, "--again would write every row a second time", pipeline)
        elif any(position is not None for position in held) or not _has_old_rejects(config, stored, pipeline):
            return replace(stored, batch_offsets=_batch_offsets(stored, held))
        number += 1
        stored = new_replay(
            config.checkpoint,
            f"{first.id}-{number}",
            first.request,
            first.ranges,
            first.batch_offsets,
            first.targets,
            first.topic_ids,
        )


def _holds_all(position: Position | None, stored: StoredReplay) -> bool:
    if position is None or position.last.batch_id < 0 or position.last.query_id != stored.query_id:
        return False
    return all(position.next.get(r.topic_partition, 0) >= r.end for r in stored.ranges)


def _has_old_rejects(config: PipelineConfig, stored: StoredReplay, pipeline: Pipeline) -> bool:
    if batches_done(_bounded(config, stored, pipeline)):
        return False
    held = [position for one in pipeline.quarantines if (position := one.position()) is not None]
    return any(position.last.batch_id > 0 for position in held)


def _batch_offsets(stored: StoredReplay, held: Sequence[Position | None]) -> int:
    """The size of the batches that an interrupted replay was cut into, by what its targets hold of it."""
    if stored.at_once:
        return stored.batch_offsets
    for position in held:
        if position is None or position.last.batch_id < 0:
            continue
        size = sum(map(len, position.last.ranges))
        if not _holds_all(position, stored):
            return size
        if position.last.batch_id > 0:
            return (sum(map(len, stored.ranges)) - size) // position.last.batch_id
        return max(size, stored.batch_offsets)
    return stored.batch_offsets


def _finished(stored: StoredReplay, why: str, pipeline: Pipeline | None = None) -> MissingError:
    markers = [topic for sink in (pipeline.sinks if pipeline else ()) if (topic := getattr(sink, "markers", None))]
    ways = (
        "to write it into the same targets again: --again"
        if stored.in_place
        else "to write it again, choose another target: --into TARGET; or remove this one"
        + (f", and of a topic its markers too: {', '.join(markers)}" if markers else "")
    )
    return MissingError(
        "REPLAY_FINISHED",
        f"replay {stored.id} is already done: {why}",
        context={
            "targets": ", ".join(one.into or one.sink for one in stored.targets),
            "ranges": ", ".join(map(str, stored.ranges[:8])),
        },
        hint=ways,
    )


def _refuse_doubling(config: PipelineConfig, stored: StoredReplay, pipeline: Pipeline) -> None:
    """Refuse to write records to another target that has rows of them already, by another replay or definition."""
    for number, (choice, sink) in enumerate(zip(stored.targets, pipeline.sinks, strict=True)):
        if choice.way is not Way.INTO or sink.position() is not None:
            continue
        held = _holds_some(sink, stored.ranges)
        if held is None:
            held = any(_overlaps(one, stored.ranges) for one in _earlier(config, stored, sink, number))
        if held:
            raise MissingError(
                "REPLAY_TARGET_HOLDS",
                f"sink {choice.sink}: the target already has rows of some of these records",
                context={"target": sink.target, "ranges": ", ".join(map(str, stored.ranges[:8]))},
                hint=f"write to another target: --into {choice.sink}=TARGET; or remove this one",
            )


def _holds_some(sink: Sink, ranges: Sequence[OffsetRange]) -> bool | None:
    """Whether a target has a row of some record in these ranges; None if it cannot say."""
    for part in cut(ranges, _ASKED_AT_ONCE):
        try:
            held = sink.records_held(part)
        except TerminalError as error:
            if error.code != "SINK_NEEDS_SPARK":
                raise
            return None
        if held is None or held:
            return None if held is None else True
    return False


def _earlier(config: PipelineConfig, stored: StoredReplay, sink: Sink, number: int) -> Iterator[Position]:
    """Where other replays of the pipeline stand in the target of a sink."""
    for writer in sink.other_writers():
        name, _, its_sink = writer.rpartition("/")
        replay = name.removeprefix(replay_of(config.name, ""))
        if its_sink == sink.name and replay != name:
            other = replace(stored, id=replay)
            position = _pipeline(config, other).sinks[number].position()
            if position is not None:
                yield position


def _overlaps(position: Position, ranges: Sequence[OffsetRange]) -> bool:
    return any(position.next.get(r.topic_partition, 0) > r.start for r in ranges)


def _pipeline(config: PipelineConfig, stored: StoredReplay) -> Pipeline:
    """The pipeline of a replay: its own name, the sinks that were chosen, written as was chosen."""
    into = stored.into
    gone = sorted(set(into) - {sink.name for sink in config.sinks})
    if gone:
        raise MissingError(
            "REPLAY_SINK_GONE",
            f"replay {stored.id} writes to sinks that are no longer in the file",
            context={"gone": ", ".join(gone), "in the file": ", ".join(sink.name for sink in config.sinks)},
            hint="add them again until the replay is finished",
        )
    mine = narrowed(config, into, name=stored.pipeline(config.name), checkpoint=str(stored.folder))
    sinks = tuple(retargeted(sink, into[sink.name]) for sink in mine.sinks)
    changes: dict[str, Any] = {"sinks": sinks}
    if config.quarantine is not None:
        changes["quarantine"] = config.quarantine.model_copy(
            update={"table": rejects_table(config, stored), "topic": None}
        )
    pipeline = build(mine.model_copy(update=changes))
    return prepared_for(replace(pipeline, targets=replace(pipeline.targets, gaps=None)), stored.targets, stored.ranges)


def _bounded(config: PipelineConfig, stored: StoredReplay, pipeline: Pipeline) -> BoundedRun:
    return BoundedRun(
        pipeline,
        stored.query_id,
        cut(stored.ranges, stored.batch_offsets),
        stored.folder,
        at_once=stored.at_once,
        settle=partial(_settle, config, stored),
        topic_ids=stored.topic_ids,
        beside=config.checkpoint,
    )


def _settle(config: PipelineConfig, stored: StoredReplay) -> None:
    """Before rows are replaced in place: quarantine the rejects, and make redrives wait."""
    if stored.in_place:
        hold_redrives(config, stored, quarantine_rejects(config, stored))


def _planned(choice: TargetChoice, sink: Sink) -> PlannedTarget:
    replaces = sink.would_replace() if choice.way is Way.REPLACED else None
    return PlannedTarget(choice.sink, sink.target, choice.way, replaces)


def _refuse_state(live: Pipeline) -> None:
    if live.stateful:
        raise MissingError(
            "REPLAY_HAS_STATE",
            f"pipeline {live.config.name}: a step is stateful, and a replay does not have its state",
            hint="run a copy of the pipeline from where you want, with its own tables and checkpoint:\n"
            "penstock checkpoint fork FILE --to PATH --offsets ...",
        )


def _topics_read(live: Pipeline, targets: Iterable[TargetChoice]) -> set[str] | None:
    """The topics that lead to the targets; None for all."""
    names = {choice.sink for choice in targets}
    flows = [flow for flow in live.flows if any(inlet.sink.name in names for inlet in flow.inlets)]
    if any(flow.config.topics is None for flow in flows):
        return None
    return {topic for flow in flows for topic in flow.config.topics or ()}


def _counts(summary: RunSummary) -> dict[str, Any]:
    """What the last run of the replay did; of one that was killed before nothing is known."""
    figures = {name: getattr(summary, name) for name in ("rows_in", "rows_out", "quarantined")}
    return {**figures, "seconds": round(summary.seconds, 3)}


def _describe_missing(one: Missing) -> str:
    asked = f"asked from {one.start}, " if one.start is not None else ""
    return f"{asked}{one.reason}"

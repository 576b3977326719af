"""A replay: some offsets of the topics again, through the pipeline as it is now, the live run untouched.

`plan_replay` asks the broker, the checkpoint and the targets, and writes nothing; `apply_replay` does it: a run of
its own, bounded, with a folder and a token space of its own, that goes on where it was when it is started again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.lock import held_by
from penstock.config import PipelineConfig
from penstock.contracts import Sink, SlotSink
from penstock.errors import MissingError, PenstockError
from penstock.kafka import Cluster, LogBounds
from penstock.kafka.topics import TopicAdmin
from penstock.model import OffsetRange, TopicPartition
from penstock.ops.redrive_ways import narrowed
from penstock.ops.replay_folder import ReplayRequest, StoredReplay, new_replay, replay_called, unfinished
from penstock.ops.replay_marks import mark_replayed
from penstock.ops.replay_ranges import (
    Missing,
    between,
    choose,
    lost_before,
    parse_partitions,
    parse_point,
    position_of,
    resolve,
)
from penstock.ops.replay_targets import ReplacingSink, TargetChoice, Way, choose_targets, prepared_for, retargeted
from penstock.ops.replay_times import first_times, times_of
from penstock.runtime.bounded import BoundedRun, cut, run_bounded
from penstock.runtime.build import Pipeline, build
from penstock.runtime.listener import Listener, Notice
from penstock.runtime.options import RunSummary
from penstock.runtime.patience import StopRequest
from penstock.runtime.preflight import check_brokers
from penstock.runtime.reaching import storage_of

BATCH_OFFSETS = 500_000


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
    """About when the first and the last of the records were written."""
    missing: tuple[Missing, ...]
    notices: tuple[str, ...]
    running: str | None
    """Who runs the live stream now."""
    done: int = 0
    """Batches that are done: it was begun before, and goes on."""
    resumed: bool = False

    @property
    def name(self) -> str:
        """Its token space, and its name in the quarantine."""
        return f"{self.config.name}.replay-{self.stored.id}"

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
        return any(one.way is Way.REPLACED for one in self.targets)

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
            "batches": self.batches,
            "batches_done": self.done,
            "targets": [{**asdict(one), "way": one.way.name.lower()} for one in self.targets],
            "running": self.running,
            "notices": list(self.notices),
        }


def plan_replay(config: PipelineConfig, request: ReplayRequest | None, resume: str | None = None) -> ReplayPlan:
    """Only look: what a replay would read, write and replace. `resume` is the id of one that was begun."""
    live = build(config)
    _refuse_state(live)
    cluster = Cluster(live.settings)
    log = check_brokers(cluster, live)
    missing: list[Missing] = []
    notices: list[str] = []
    found: StoredReplay | None = None
    if resume is not None:
        found = stored = replay_called(config.checkpoint, resume)
        if stored.finished:
            raise MissingError(
                "REPLAY_FINISHED",
                f"replay {resume} is finished: there is nothing to go on with",
                context={"folder": stored.folder},
                hint="to replay the same once more, leave --resume out",
            )
    else:
        assert request is not None, "a replay is asked for, or named by its id"
        targets = choose_targets(live, request.sinks, request.into)
        found = unfinished(config.checkpoint, request, targets)
        stored, missing = (found, []) if found is not None else _new(live, request, targets, cluster, log, notices)
    pipeline = _pipeline(config, stored)
    bounded = _bounded(stored, pipeline, config.checkpoint)
    return ReplayPlan(
        config=config,
        stored=stored,
        targets=tuple(_planned(choice, sink) for choice, sink in zip(stored.targets, pipeline.sinks, strict=True)),
        batches=len(bounded.batches),
        times=times_of(live.reader, stored.ranges),
        missing=tuple(missing),
        notices=tuple(notices),
        running=held_by(config.checkpoint, storage_of(config)),
        done=bounded.done,
        resumed=found is not None,
    )


def refuse_missing(plan: ReplayPlan) -> None:
    """Stop where retention has eaten some of what was asked for, unless that was accepted."""
    if plan.missing and not plan.stored.request.accept_missing:
        raise MissingError(
            "REPLAY_RANGE_GONE",
            "retention has eaten some of what is to be replayed",
            context={str(one.at): _told(one) for one in plan.missing[:8]},
            hint="replay what is left: --accept-missing; what is not there any more stays in the targets as it is",
        )


def apply_replay(
    plan: ReplayPlan,
    listener: Listener = lambda event: None,
    stop: StopRequest | None = None,
    session: Any = None,
    log: Path | None = None,
) -> RunSummary | None:
    """Carry the replay to its end: what it did; none where a stop came first, and the same call goes on."""
    refuse_missing(plan)
    stored = plan.stored
    stored.write()
    pipeline = _pipeline(plan.config, stored)
    bounded = _bounded(stored, pipeline, plan.config.checkpoint)
    summary = run_bounded(bounded, listener, stop, session, log)
    if not bounded.finished:
        return None
    if not stored.finished:
        _mark(plan, listener)
        _delete_markers(pipeline, listener)
        stored.finish({"batches": len(bounded.batches), "offsets": plan.offsets, **_counts(summary)})
    return summary


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
        notices.append(f"the log ends before --to in {_some(beyond)}: the replay ends there too")
    if any(one.way is not Way.INTO for one in targets):
        capped = {at: min(ends[at], (position or {}).get(at, starts[at])) for at in chosen}
        later = [at for at in chosen if capped[at] < min(ends[at], log[at].end)]
        if later:
            notices.append(
                f"--to is cut to where the live run has committed, in {_some(later)}: it writes the rest itself"
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
    return new_replay(live.config.checkpoint, request, tuple(ranges), size, targets), missing


def _pipeline(config: PipelineConfig, stored: StoredReplay) -> Pipeline:
    """The pipeline of a replay: its own name, the sinks that were chosen, written as was chosen."""
    into = {choice.sink: choice.into for choice in stored.targets}
    gone = sorted(set(into) - {sink.name for sink in config.sinks})
    if gone:
        raise MissingError(
            "REPLAY_SINK_GONE",
            f"replay {stored.id} writes to sinks that the file no longer has",
            context={"gone": ", ".join(gone), "in the file": ", ".join(sink.name for sink in config.sinks)},
            hint="put them back until the replay is finished",
        )
    mine = narrowed(config, into, name=f"{config.name}.replay-{stored.id}", checkpoint=str(stored.folder))
    sinks = tuple(retargeted(sink, into[sink.name]) for sink in mine.sinks)
    pipeline = build(mine.model_copy(update={"sinks": sinks}))
    return prepared_for(replace(pipeline, targets=replace(pipeline.targets, gaps=None)), stored.targets, stored.ranges)


def _bounded(stored: StoredReplay, pipeline: Pipeline, live_checkpoint: str) -> BoundedRun:
    at_once = any(one.way is Way.REPLACED for one in stored.targets)
    return BoundedRun(
        pipeline,
        stored.query_id,
        cut(stored.ranges, stored.batch_offsets),
        stored.folder,
        at_once=at_once,
        beside=live_checkpoint,
    )


def _mark(plan: ReplayPlan, listener: Listener) -> None:
    """Quarantined records that are in the pipeline's own targets now need no redrive."""
    stored = plan.stored
    sinks = [one.sink for one in stored.targets if one.way is not Way.INTO]
    if sinks:
        count = mark_replayed(plan.config, f"replay-{stored.id}", stored.query_id, stored.ranges, sinks)
        if count:
            listener(Notice(f"{count:,} quarantined records came in with it: they need no redrive any more"))


def _planned(choice: TargetChoice, sink: Sink) -> PlannedTarget:
    replaces = None
    if choice.way is Way.REPLACED and isinstance(sink, ReplacingSink):
        replaces = sink.would_replace()
    return PlannedTarget(choice.sink, sink.target, choice.way, replaces)


def _refuse_state(live: Pipeline) -> None:
    if live.stateful:
        raise MissingError(
            "REPLAY_HAS_STATE",
            f"pipeline {live.config.name}: a step remembers rows from batch to batch, and a replay has not seen those",
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


def _delete_markers(pipeline: Pipeline, listener: Listener) -> None:
    """Nobody needs to know any more which slot of the replay wrote what."""
    for sink in (*pipeline.sinks, *pipeline.targets.topics):
        if isinstance(sink, SlotSink):
            markers, settings = getattr(sink, "markers", None), getattr(sink, "settings", None)
            if markers is None or settings is None:
                continue
            try:
                TopicAdmin(settings).delete(markers)
            except PenstockError as error:
                listener(
                    Notice(f"the topic {markers} of this replay can be deleted, and could not be: {error.summary}")
                )


def _counts(summary: RunSummary) -> dict[str, Any]:
    """What the last run of the replay did; of one that was killed before nothing is known."""
    figures = {name: getattr(summary, name) for name in ("rows_in", "rows_out", "quarantined")}
    return {**figures, "seconds": round(summary.seconds, 3)}


def _told(one: Missing) -> str:
    asked = f"asked from {one.start}, " if one.start is not None else ""
    return f"{asked}{one.reason}"


def _some(places: Sequence[TopicPartition], limit: int = 4) -> str:
    rest = len(places) - limit
    return ", ".join(map(str, places[:limit])) + (f" and {rest} more" if rest > 0 else "")

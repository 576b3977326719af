"""Before a run: do the brokers, the checkpoint and the sinks agree? What would the run start from?

Used by `plan`, which prints the results, and by `run`, which stops on a problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from penstock.assembly.build import Pipeline
from penstock.checkpoint import Offsets, SparkCheckpoint
from penstock.checkpoint.findings import Finding, file_findings
from penstock.checkpoint.logs import CheckpointFiles, read_files
from penstock.errors import MissingError, TerminalError, TransientError, transient_is_fatal
from penstock.kafka import Cluster, LogBounds
from penstock.kafka.failures import REFUSALS
from penstock.kafka.groups import GroupOffsets
from penstock.model import BatchToken, Guarantee, OffsetRange, Position, TopicPartition, Verdict
from penstock.preflight.agreement import compare_sinks, next_token, ranges_behind, rename_findings
from penstock.preflight.loss import log_findings, partition_findings
from penstock.preflight.options import RunOptions
from penstock.preflight.recreated import recreated_topics, topic_recreated
from penstock.preflight.standings import Standing, carried_number, former_names, renamed_sinks, standings
from penstock.sinks.commit import contradiction

EARLIEST, LATEST = -2, -1
_GROUP_SECONDS = 5.0


@dataclass(frozen=True)
class StartPoint:
    """Where a run starts: at the checkpoint, or for a first run at the file's start or the targets' positions."""

    origin: str
    offsets: Offsets
    explicit: Offsets | None
    notice: str | None = None


@dataclass(frozen=True)
class Agreement:
    """How the checkpoint and the targets agree before a run, and what must be done first."""

    resumed: Offsets | None = None
    """With --resume-from-table: where the new checkpoint starts."""
    behind: Mapping[str, tuple[OffsetRange, ...]] = field(default_factory=dict)
    """The ranges that each target must catch up on before the first batch."""
    next: BatchToken | None = None
    """The next batch of the checkpoint, if targets must catch up before it."""
    torn: Mapping[str, BatchToken] = field(default_factory=dict)
    """The incomplete last batch of a Kafka sink, which must be repeated first."""
    moved: str | None = None
    """Why positions that contradict the start are moved on purpose; None if not requested."""
    notices: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    """The number of commits of each target."""


def check_brokers(cluster: Cluster, pipeline: Pipeline) -> dict[TopicPartition, LogBounds]:
    """The partitions and their bounds; brokers that are away at the start are missing, not passing."""
    with transient_is_fatal():
        partitions = cluster.partitions(pipeline.subscription)
        if pipeline.settings.is_secured:
            cluster.refuse_unreadable(at.topic for at in partitions)
            refuse_closed_group(pipeline, partitions)
        return cluster.bounds(partitions)


def refuse_closed_group(pipeline: Pipeline, partitions: Sequence[TopicPartition]) -> None:
    """Stop if the user has no permission for the consumer group: every commit to it would fail.

    Only for a source with `security`: otherwise a run reports it once and continues.
    """
    config = pipeline.config
    if config.source.security is None or config.group is None:
        return
    # That no broker looks after the group yet, on a new cluster, stops nothing.
    with suppress(TransientError), closing(GroupOffsets(pipeline.settings, config.group, _GROUP_SECONDS)) as group:
        group.committed(partitions[:1])


def check_checkpoint(checkpoint: SparkCheckpoint) -> None:
    """Stop at the first damage of the checkpoint that a run would lose or repeat records by."""
    for finding in file_findings(checkpoint):
        if finding.blocks:
            raise finding.as_error()


def check_agreement(
    pipeline: Pipeline,
    checkpoint: SparkCheckpoint,
    bounds: Mapping[TopicPartition, LogBounds] | None = None,
    recreated: frozenset[str] = frozenset(),
    options: RunOptions = RunOptions(),
    topic_ids: Mapping[str, str] | None = None,
) -> Agreement:
    """Stop if a target contradicts the checkpoint, unless the options resolve it.

    Also if partitions were left out, before Spark starts a batch without them.
    """
    held = standings(pipeline.targets)
    agreed = _AgreementCheck(pipeline, checkpoint, held, bounds, recreated, options, topic_ids or {}).agree()
    moved = agreed.moved is not None
    return agreed if moved else replace(agreed, numbers={s.sink: s.position.number for s in held if s.position})


_MOVABLE = frozenset(
    verdict.value
    for verdict in (
        Verdict.TARGET_WENT_BACK,
        Verdict.FENCED,
        Verdict.CHECKPOINT_WENT_BACK,
        Verdict.TOKEN_MISMATCH,
    )
)
_ACCEPTED = "--accept-duplicates"


@dataclass(frozen=True)
class _AgreementCheck:
    """What `check_agreement` compares."""

    pipeline: Pipeline
    checkpoint: SparkCheckpoint
    held: Sequence[Standing]
    bounds: Mapping[TopicPartition, LogBounds] | None
    recreated: frozenset[str]
    options: RunOptions
    topic_ids: Mapping[str, str]

    @property
    def log_starts(self) -> Offsets:
        """The log starts, as far as they are known."""
        return {at: log.start for at, log in (self.bounds or {}).items()}

    def agree(self) -> Agreement:
        """Compare the targets with the batches of the checkpoint."""
        pipeline, checkpoint, held, options = self.pipeline, self.checkpoint, self.held, self.options
        files = read_files(checkpoint.path, checkpoint.storage)
        for one in held:
            if one.fault is not None and (one.fault.code in REFUSALS or files.begun is None):
                with transient_is_fatal():
                    raise one.fault
        initial, noted = checkpoint.initial(), checkpoint.sinks_noted()
        former = former_names(pipeline.config, pipeline.settings, pipeline.sinks, held, noted)
        if files.begun is None and initial is None:
            for finding in rename_findings(former, held, None):
                raise finding.as_error()
            return self._agree_fresh()
        found = compare_sinks(checkpoint.path, files, held, files.committed, noted, former)
        if self.bounds is not None and files.begun is not None:
            found += self._partition_findings(files, files.begun)
        blocking = [one for one in found if one.blocks]
        notices = tuple(f"{one.summary}; {one.way_out}" for one in found if not one.blocks)
        token = next_token(files, files.committed)
        if options.catch_up and token is not None:
            lacking = _lacking(held, token.starts, initial or self.log_starts)
            # The target of a renamed sink ends where the next batch starts: nothing is missing in it.
            lacking = {name: r for name, r in lacking.items() if name not in renamed_sinks(former, held)}
            blocking = [one for one in blocking if one.code != Verdict.TARGET_WENT_BACK.value]
            if not blocking and any(lacking.values()) and pipeline.stateful:
                raise _sinks_disagree(pipeline, held)
            if not blocking:
                return Agreement(behind=lacking, next=token, notices=notices)
        movable = all(one.code in _MOVABLE for one in blocking)
        if options.accept_duplicates and movable:
            return Agreement(moved=_ACCEPTED if blocking else None, notices=notices)
        if blocking and options.resume_from_table and movable:
            raise _needs_fresh(checkpoint, files.begun)
        for finding in blocking:
            if files.begun is None and finding.code in _MOVABLE:
                raise _other_run(checkpoint, held)
            raise finding.as_error()
        return Agreement(notices=notices)

    def _partition_findings(self, files: CheckpointFiles, begun: int) -> list[Finding]:
        """Partitions that were left out, or are gone."""
        bounds, checkpoint = self.bounds or {}, self.checkpoint
        found = partition_findings(checkpoint.path, files, self.held, bounds, self.recreated)
        position = checkpoint.ends(begun) if files.committed == begun else checkpoint.starts(begun)
        lost = log_findings(position, bounds, self.pipeline.config.source.on_data_loss)
        return found + [one for one in lost if one.code == "PARTITION_GONE" and one.blocks]

    def _agree_fresh(self) -> Agreement:
        """A fresh checkpoint: the targets must have no rows of this pipeline, unless the options allow it."""
        exact = [one for one in self.held if one.guarantee is Guarantee.EXACTLY_ONCE]
        if all(one.furthest is None for one in exact):
            return Agreement()
        if self.options.resume_from_table:
            return self._resume(exact)
        if self.options.accept_duplicates:
            return Agreement(moved=_ACCEPTED)
        raise _other_run(self.checkpoint, self.held)

    def _resume(self, held: Sequence[Standing]) -> Agreement:
        """Start where the furthest target ends; the others catch up first."""
        pipeline, options = self.pipeline, self.options
        positions = {one.sink: one.furthest for one in held}
        furthest = _furthest(positions.values())
        known = {topic: i[-1] for p in positions.values() if p is not None for topic, i in p.topic_ids.items() if i}
        changed = recreated_topics(known, dict(self.topic_ids))
        if changed and (pipeline.stateful or pipeline.config.source.on_data_loss == "fail"):
            raise topic_recreated(changed, known, dict(self.topic_ids), stateful=pipeline.stateful)
        furthest = {at: end for at, end in furthest.items() if at.topic not in changed}
        empty = [one.sink for one in held if positions[one.sink] is None and not one.sparse]
        beginning = self.log_starts
        first = _first_batch(held)
        if first is not None:
            # The run died in its first batch, when only the quarantine was committed: that is what the sinks lack.
            empty, beginning = [], {**beginning, **first.starts}
        lacking = _lacking(held, furthest, beginning)
        for one in held:
            if one.sparse and one.sink in lacking and not options.catch_up:
                ranges = tuple(OffsetRange(p.topic, p.partition, o, o) for p, o in furthest.items())
                options_needed = "--resume-from-table --catch-up"
                token = BatchToken("", "", 0, ranges)
                raise contradiction(one.sink, Verdict.TARGET_WENT_BACK, one.position, token, options_needed)
        torn = {one.sink: one.begun.last for one in held if one.begun is not None and one.torn is not None}
        if (empty and not options.catch_up) or (pipeline.stateful and (any(lacking.values()) or torn)):
            raise _sinks_disagree(pipeline, held)
        notices = [f"sink {name} is caught up first: {len(r)} ranges" for name, r in lacking.items() if r]
        return Agreement(resumed=furthest, behind=lacking, torn=torn, notices=tuple(notices))


def _furthest(positions: Iterable[Position | None]) -> Offsets:
    """The greatest next offset of each partition."""
    found: Offsets = {}
    for position in positions:
        for at, end in position.next.items() if position is not None else ():
            found[at] = max(end, found.get(at, 0))
    return found


def _sinks_disagree(pipeline: Pipeline, held: Sequence[Standing]) -> TerminalError:
    positions = {one.sink: one.furthest for one in held}
    return TerminalError(
        "RESUME_SINKS_DISAGREE",
        "the targets do not end at the same offsets"
        + (", and the state of a step cannot catch up" if pipeline.stateful else ""),
        context={sink: p.describe() if p is not None else "holds nothing" for sink, p in positions.items()},
        hint="undo the restore of the target, or start over with new tables and a new checkpoint"
        if pipeline.stateful
        else "fill the empty targets from the beginning of the log:\n"
        "  penstock run FILE --resume-from-table --catch-up\n"
        "or remove them from the file, resume, and add them again: they then start with the next batch",
    )


def _first_batch(held: Sequence[Standing]) -> BatchToken | None:
    """The first batch of a run, if only a quarantine has rows of it."""
    if any(one.furthest is not None for one in held if not one.sparse):
        return None
    found = [one.token for one in held if one.sparse and one.token is not None]
    return next((token for token in found if token.batch_id == 0), None)


def _lacking(held: Sequence[Standing], to: Offsets, beginning: Offsets) -> dict[str, tuple[OffsetRange, ...]]:
    """What each target lacks up to some offsets.

    A quarantine has lost commits if the sinks' positions have a greater number. The lost records can be anywhere up to
    the furthest sink, including in a batch that only some sinks have committed.
    """
    found = {}
    sinks = _furthest(one.furthest for one in held if not one.sparse)
    furthest = {at: max(end, sinks.get(at, 0)) for at, end in to.items()}
    for one in held:
        if one.guarantee is not Guarantee.EXACTLY_ONCE or one.torn is not None:
            continue
        if one.sparse and (one.position.number if one.position is not None else 0) >= carried_number(one.sink, held):
            continue
        ranges = ranges_behind(None, furthest, beginning) if one.sparse else ranges_behind(one.position, to, beginning)
        if ranges or one.sparse:
            found[one.sink] = tuple(ranges)
    return found


def _other_run(checkpoint: SparkCheckpoint, held: Sequence[Standing]) -> TerminalError:
    one, position = next((one, one.furthest) for one in held if one.furthest is not None)
    assert position is not None
    return TerminalError(
        "SINK_HOLDS_OTHER_RUN",
        f"sink {one.sink} already has batches of pipeline {position.last.pipeline} from another checkpoint",
        context={
            "checkpoint": f"{checkpoint.path}, query {checkpoint.query_id() or 'none: it is fresh'}",
            "target": position.describe(),
        },
        hint="four ways out:\n"
        "  restore a backup of the checkpoint:  penstock checkpoint restore FILE\n"
        "  continue where the targets end:      penstock run FILE --resume-from-table\n"
        "  write to other targets:              other paths and tables, the quarantine's too; rename Kafka sinks\n"
        "  read again, with duplicates:         penstock run FILE --accept-duplicates",
    )


def _needs_fresh(checkpoint: SparkCheckpoint, begun: int | None) -> TerminalError:
    return TerminalError(
        "RESUME_NEEDS_FRESH_CHECKPOINT",
        f"--resume-from-table starts a fresh checkpoint, but {checkpoint.path} has its own offsets to continue from",
        context={"last batch begun": begun if begun is not None else "none, only where the first batch starts"},
        hint="point `checkpoint:` at an empty folder; the old one is not changed",
    )


def start_point(
    pipeline: Pipeline,
    checkpoint: SparkCheckpoint,
    bounds: dict[TopicPartition, LogBounds],
    cluster: Cluster,
    resumed: Offsets | None,
) -> StartPoint:
    """What the run would start from, with a notice if the file's `start` is not used."""
    start = pipeline.config.source.start
    begun = checkpoint.last_begun()
    if begun is not None:
        done = checkpoint.last_committed()
        offsets = checkpoint.ends(done) if done is not None else checkpoint.starts(0)
        notice = None
        used = checkpoint.start_used()
        if used is not None and used != describe_start(start):
            notice = (
                f"`start: {describe_start(start)}` applies to the first run only and is ignored: this checkpoint "
                f"started with `{used}` and continues from its own offsets"
            )
        return StartPoint(f"checkpoint, after batch {done if done is not None else 'none'}", offsets, None, notice)
    initial = checkpoint.initial()
    if initial is not None:
        # A fork, an adopted checkpoint, or a first run that died before its first batch: Spark begins there.
        return StartPoint("checkpoint, before its first batch", initial, None)
    if resumed is not None:
        explicit = {at: resumed.get(at, EARLIEST) for at in bounds}
        return StartPoint("the positions of the targets", _resolved(explicit, bounds), explicit)
    if isinstance(start, datetime):
        found = {at: (o if o >= 0 else LATEST) for at, o in cluster.offsets_at(bounds, start).items()}
        return StartPoint(f"first run, from {describe_start(start)}", _resolved(found, bounds), None)
    if isinstance(start, str):
        where = dict.fromkeys(bounds, EARLIEST if start == "earliest" else LATEST)
        return StartPoint(f"first run, {start}", _resolved(where, bounds), None)
    named = {TopicPartition(t, int(p)): o for t, parts in start.items() for p, o in parts.items()}
    unknown = sorted(named.keys() - bounds.keys())
    if unknown:
        raise MissingError(
            "PARTITION_MISSING",
            f"source.start contains {', '.join(map(str, unknown))}, which the source does not have",
            context={"partitions": len(bounds)},
        )
    explicit = {at: named.get(at, EARLIEST) for at in bounds}
    # With `on_data_loss: record` what lies before the log start is a gap of the first batch.
    records = pipeline.config.source.on_data_loss == "record"
    outside = {at: o for at, o in named.items() if o > bounds[at].end or (0 <= o < bounds[at].start and not records)}
    if outside:
        raise MissingError(
            "START_OUT_OF_RANGE",
            "source.start contains offsets that are not in the log",
            context={f"{at} {o}": f"the log holds {bounds[at].start}-{bounds[at].end}" for at, o in outside.items()},
        )
    return StartPoint("first run, offsets in the file", _resolved(explicit, bounds), explicit)


def describe_start(start: object) -> str:
    """`start` as one would write it."""
    return start.isoformat() if isinstance(start, datetime) else str(start)


def _resolved(offsets: Offsets, bounds: dict[TopicPartition, LogBounds]) -> Offsets:
    place = {EARLIEST: lambda b: b.start, LATEST: lambda b: b.end}
    return {at: place[o](bounds[at]) if o in place else o for at, o in offsets.items()}

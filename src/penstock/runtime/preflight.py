"""Before a run: do the brokers, the checkpoint and the sinks agree? What would the run start from?

The same answers serve `plan`, which prints them, and `run`, which stops on what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime

from penstock.checkpoint import Offsets, SparkCheckpoint
from penstock.checkpoint.findings import file_findings
from penstock.checkpoint.logs import read_files
from penstock.contracts import Sink, SlotSink
from penstock.errors import MissingError, TerminalError, TransientError
from penstock.kafka import Cluster, LogBounds
from penstock.kafka.failures import REFUSALS
from penstock.kafka.groups import GroupOffsets
from penstock.model import BatchToken, Guarantee, TopicPartition
from penstock.runtime.agreement import compare_sinks
from penstock.runtime.build import Pipeline
from penstock.runtime.faults import nothing_passes
from penstock.runtime.source_agreement import log_findings, partition_findings
from penstock.runtime.standings import standings

EARLIEST, LATEST = -2, -1
_GROUP_SECONDS = 5.0


@dataclass(frozen=True)
class StartPoint:
    """Where a run begins: from the checkpoint, or for a first run by the file or by a sink's own offsets."""

    origin: str
    offsets: Offsets
    explicit: Offsets | None
    notice: str | None = None


def check_brokers(cluster: Cluster, pipeline: Pipeline) -> dict[TopicPartition, LogBounds]:
    """The partitions and their bounds; brokers that are away at the start are missing, not passing."""
    with nothing_passes():
        partitions = cluster.partitions(pipeline.subscription)
        if pipeline.settings.is_secured:
            cluster.refuse_unreadable(at.topic for at in partitions)
            refuse_closed_group(pipeline, partitions)
        return cluster.bounds(partitions)


def refuse_closed_group(pipeline: Pipeline, partitions: Sequence[TopicPartition]) -> None:
    """Stop where the user may not use the consumer group: a run would tell it nothing, batch after batch.

    Only for a source with `security`: elsewhere a run says so once, and goes on.
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
) -> list[str]:
    """Stop where a sink is ahead of the checkpoint or behind it; what is worth a word is given back.

    And where partitions were left out: before Spark begins a batch without them, which would stay begun.
    """
    begun = checkpoint.last_begun()
    if begun is None:
        return []
    held, files = standings(pipeline), read_files(checkpoint.path, checkpoint.storage)
    for one in held:
        if one.fault is not None and one.fault.code in REFUSALS:
            raise one.fault
    found = compare_sinks(checkpoint.path, files, held, files.committed)
    if bounds is not None:
        found += partition_findings(checkpoint.path, files, held, bounds, recreated)
        position = checkpoint.ends(begun) if checkpoint.last_committed() == begun else checkpoint.starts(begun)
        lost = log_findings(position, bounds, pipeline.config.source.on_data_loss)
        found += [one for one in lost if one.code == "PARTITION_GONE" and one.blocks]
    for finding in found:
        if finding.blocks:
            raise finding.as_error()
    return [f"{finding.summary}; {finding.way_out}" for finding in found]


def check_sinks(
    pipeline: Pipeline, checkpoint: SparkCheckpoint, *, resume: bool, accept_duplicates: bool
) -> Offsets | None:
    """Stop where a sink holds commits of another checkpoint; with `resume` give the offsets it holds."""
    query_id = checkpoint.query_id()
    commits = _last_commits(pipeline.sinks)
    if commits and all(last.query_id == query_id for last in commits.values()):
        # The quarantine keeps no token of a batch without bad records, so its newest may be of an earlier query.
        return None
    commits |= _last_commits(pipeline.quarantines)
    foreign = {name: last for name, last in commits.items() if last.query_id != query_id}
    if not foreign or _continues(checkpoint, [foreign[s.name] for s in pipeline.sinks if s.name in foreign]):
        return None
    if resume:
        return _resume_offsets(pipeline, commits, checkpoint)
    if accept_duplicates:
        return None
    name, last = next(iter(foreign.items()))
    raise TerminalError(
        "SINK_HOLDS_OTHER_RUN",
        f"sink {name} already holds batches of pipeline {last.pipeline} from another checkpoint",
        context={
            "checkpoint": f"{checkpoint.path}, query {query_id or 'none: it is fresh'}",
            "sink": f"query {last.query_id}, batch {last.batch_id}, {last.describe_ranges()}",
        },
        hint="four ways out:\n"
        "  put a backup of it back:          penstock checkpoint restore FILE\n"
        "  go on where the table ends:       penstock run FILE --resume-from-table\n"
        "  write to another table:           change the sink's path or table (a Kafka sink: its name), and run again\n"
        "  read again, duplicates and all:   penstock run FILE --accept-duplicates",
    )


def _last_commits(sinks: Sequence[Sink]) -> dict[str, BatchToken]:
    with nothing_passes():
        return {sink.name: last for sink in sinks if (last := sink.last_commit()) is not None}


def start_point(
    pipeline: Pipeline,
    checkpoint: SparkCheckpoint,
    bounds: dict[TopicPartition, LogBounds],
    cluster: Cluster,
    resumed: Offsets | None,
) -> StartPoint:
    """What the run would start from, and an honest word where the file's `start` is not used."""
    start = pipeline.config.source.start
    begun = checkpoint.last_begun()
    if begun is not None:
        done = checkpoint.last_committed()
        offsets = checkpoint.ends(done) if done is not None else checkpoint.starts(0)
        notice = None
        used = checkpoint.start_used()
        if used is not None and used != describe_start(start):
            notice = (
                f"`start: {describe_start(start)}` is for a first run only and is not used: this checkpoint began with "
                f"`{used}` and goes on where it stands"
            )
        return StartPoint(f"checkpoint, after batch {done if done is not None else 'none'}", offsets, None, notice)
    initial = checkpoint.initial()
    if initial is not None:
        # A fork, an adopted checkpoint, or a first run that died before its first batch: Spark begins there.
        return StartPoint("checkpoint, before its first batch", initial, None)
    if resumed is not None:
        explicit = {at: resumed.get(at, EARLIEST) for at in bounds}
        return StartPoint("the offsets stored in the table", _resolved(explicit, bounds), explicit)
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
            f"source.start names {', '.join(map(str, unknown))}, which the source does not have",
            context={"partitions": len(bounds)},
        )
    explicit = {at: named.get(at, EARLIEST) for at in bounds}
    outside = {at: o for at, o in named.items() if o >= 0 and not bounds[at].start <= o <= bounds[at].end}
    if outside:
        raise MissingError(
            "START_OUT_OF_RANGE",
            "source.start names offsets that the log does not have",
            context={f"{at} {o}": f"the log holds {bounds[at].start}-{bounds[at].end}" for at, o in outside.items()},
        )
    return StartPoint("first run, offsets in the file", _resolved(explicit, bounds), explicit)


def describe_start(start: object) -> str:
    """`start` as one would write it."""
    return start.isoformat() if isinstance(start, datetime) else str(start)


def _resolved(offsets: Offsets, bounds: dict[TopicPartition, LogBounds]) -> Offsets:
    place = {EARLIEST: lambda b: b.start, LATEST: lambda b: b.end}
    return {at: place[o](bounds[at]) if o in place else o for at, o in offsets.items()}


def _continues(checkpoint: SparkCheckpoint, commits: Sequence[BatchToken]) -> bool:
    """Whether the checkpoint began exactly where the sinks' commits end: a resumed run that then crashed."""
    initial = checkpoint.initial()
    return (
        initial is not None
        and bool(commits)
        and all(initial.get(at) == end for token in commits for at, end in token.ends.items())
    )


def _resume_offsets(pipeline: Pipeline, commits: dict[str, BatchToken], checkpoint: SparkCheckpoint) -> Offsets:
    sinks = [sink for sink in pipeline.sinks if sink.guarantee is Guarantee.EXACTLY_ONCE]
    begun = checkpoint.last_begun()
    if begun is not None or checkpoint.initial() is not None:
        raise TerminalError(
            "RESUME_NEEDS_FRESH_CHECKPOINT",
            f"--resume-from-table starts a fresh checkpoint, but {checkpoint.path} has its own place to go on from",
            context={"last batch begun": begun if begun is not None else "none; but where the first one starts"},
            hint="point `checkpoint:` at an empty folder; the old one stays as it is",
        )
    torn = {sink.name: state for sink in sinks if isinstance(sink, SlotSink) and (state := sink.torn()) is not None}
    if torn:
        raise TerminalError(
            "RESUME_BATCH_TORN",
            "the last batch of a Kafka sink is not whole, so the sink has no offsets to go on from",
            context=torn,
            hint="run once more with the old checkpoint, which makes the batch whole; or use --accept-duplicates",
        )
    ends = {sink.name: commits[sink.name].ends for sink in sinks if sink.name in commits}
    for quarantine in pipeline.quarantines:
        ahead = commits[quarantine.name].ends if quarantine.name in commits else {}
        if any(end < ahead.get(at, 0) for held in ends.values() for at, end in held.items()):
            ends[quarantine.name] = ahead
    if len(ends) < len(sinks) or len({tuple(sorted(held.items())) for held in ends.values()}) > 1:
        raise TerminalError(
            "RESUME_SINKS_DISAGREE",
            "the sinks do not end at the same offsets, so no start suits them all",
            context={
                name: ", ".join(f"{at} {end}" for at, end in sorted(held.items())[:8]) for name, held in ends.items()
            },
            hint="give each sink a pipeline of its own, or use --accept-duplicates",
        )
    return next(iter(ends.values()))

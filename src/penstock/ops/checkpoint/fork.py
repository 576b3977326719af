"""A new checkpoint that starts at chosen offsets; the old one is not changed.

Without state, the new one has only the start offsets of its first batch. With state it is a copy up to a batch, and
continues after it. Either has its own query id: to the sinks it is another run. How a new checkpoint is started at
given offsets, compared with the log and written as Spark would have, is here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from fsspec.implementations.local import LocalFileSystem

from penstock.assembly.build import Pipeline, build
from penstock.assembly.reaching import checkpoint_of
from penstock.checkpoint import Offsets, SparkCheckpoint
from penstock.checkpoint.backup import belongs, copy_files, missing_files
from penstock.config import PipelineConfig
from penstock.errors import MissingError, TerminalError
from penstock.kafka import Cluster, LogBounds
from penstock.model import Guarantee, TopicPartition
from penstock.ops.points import parse_point, resolve
from penstock.preflight.checks import check_brokers
from penstock.preflight.recreated import recreated_topics
from penstock.preflight.standings import Standing, standings
from penstock.storage import Storage
from penstock.wording import some

_OF_ITS_QUERY = frozenset({"metadata", ".metadata.crc", ".penstock.again"})


@dataclass(frozen=True)
class ForkPlan:
    """A checkpoint to be written."""

    pipeline: str
    source: str
    """The original checkpoint."""
    to: str
    query_id: str
    origin: str
    """Where it starts, for people."""
    starts: tuple[Offsets, ...]
    """Where each source starts."""
    batch: int | None
    """With state: the last batch to copy from the old checkpoint."""
    topic_ids: dict[str, str]
    sinks: tuple[str, ...]
    """What a run with it finds in the sinks."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "pipeline": self.pipeline,
            "from": self.source,
            "to": self.to,
            "query_id": self.query_id,
            "origin": self.origin,
            "with_state": self.batch is not None,
            "starts": starts_json(self.starts),
            "sinks": list(self.sinks),
        }


def plan_fork(config: PipelineConfig, to: str, at: int | None = None, offsets: str | None = None) -> ForkPlan:
    """Find the start of the new checkpoint, and compare it with the log and the sinks."""
    pipeline, checkpoint = build(config), checkpoint_of(config)
    refuse_occupied(to, "--to", checkpoint.storage)
    cluster = Cluster(pipeline.settings)
    bounds = check_brokers(cluster, pipeline)
    batch = None
    if offsets is not None:
        starts, origin = parse_offsets(offsets, bounds, cluster), f"at the offsets of {offsets}"
        refuse_outside(starts, bounds, "asked for")
    else:
        batch = _batch(checkpoint, at)
        starts, origin = checkpoint.ends(batch), f"after batch {batch} of {config.checkpoint}"
        _refuse_recreated(checkpoint, cluster, starts)
        refuse_outside(starts, bounds, f"batch {batch} ended at")
        if pipeline.stateful:
            _refuse_without_state(checkpoint, batch)
    return ForkPlan(
        pipeline=config.name,
        source=config.checkpoint,
        to=to,
        query_id=str(uuid4()),
        origin=origin,
        starts=tuple(by_source(pipeline, starts)),
        batch=batch if pipeline.stateful else None,
        topic_ids=checkpoint.topic_ids() if offsets is None else {},
        sinks=_meeting(pipeline, starts, standings(pipeline.targets)),
    )


def apply_fork(plan: ForkPlan, storage: Storage = Storage()) -> None:
    """Write the new checkpoint."""
    refuse_occupied(plan.to, "--to", storage)
    put_in_place(plan.to, lambda folder: _write(plan, folder, storage), storage)


def _write(plan: ForkPlan, folder: str, storage: Storage) -> None:
    batch, fresh = plan.batch, SparkCheckpoint(folder, storage)
    if batch is None:
        write_fresh(fresh, plan.query_id, plan.starts, plan.topic_ids)
        return
    names = SparkCheckpoint(plan.source, storage).sizes()
    kept = [name for name in names if belongs(name, batch) and name not in _OF_ITS_QUERY]
    copy_files(plan.source, folder, kept, lambda file: None, storage)
    fresh.put_metadata(plan.query_id)
    _refuse_without_state(fresh, batch)


def _batch(checkpoint: SparkCheckpoint, asked: int | None) -> int:
    done = checkpoint.last_committed()
    if done is None or (asked is not None and asked > done):
        raise MissingError(
            "BATCH_MISSING",
            f"checkpoint {checkpoint.path} has no committed batch {asked if asked is not None else ''}".rstrip(),
            context={"last batch committed": done if done is not None else "none"},
            hint="set the start instead: --offsets earliest",
        )
    return done if asked is None else asked


def _refuse_recreated(checkpoint: SparkCheckpoint, cluster: Cluster, starts: Offsets) -> None:
    noted, now = checkpoint.topic_ids(), cluster.topic_ids({at.topic for at in starts})
    recreated = recreated_topics(noted, now)
    if recreated:
        raise MissingError(
            "TOPIC_RECREATED",
            f"the offsets of {checkpoint.path} belong to topics that were re-created since",
            context={topic: f"was {noted[topic]}, is {now[topic]}" for topic in sorted(recreated)},
            hint="set the start in the new one: --offsets earliest",
        )


def _refuse_without_state(checkpoint: SparkCheckpoint, batch: int) -> None:
    missing = missing_files(checkpoint, batch)
    if missing:
        raise TerminalError(
            "BATCH_STATE_GONE",
            f"checkpoint {checkpoint.path} no longer has all files of batch {batch}",
            context={"missing": ", ".join(missing[:8])},
            hint="Spark keeps the last 100 batches; use a later one, or a backup",
        )


def _meeting(pipeline: Pipeline, starts: Offsets, found: Sequence[Standing]) -> tuple[str, ...]:
    """What a run with the new checkpoint will find in each sink."""
    lines = []
    for one in found:
        if one.sparse:
            continue
        if one.guarantee is Guarantee.AT_LEAST_ONCE:
            lines.append(f"sink {one.sink} stores no token: it gets every record that is read")
        elif one.error is not None:
            lines.append(f"the position of sink {one.sink} cannot be read: {one.error}")
        elif one.token is None:
            lines.append(f"sink {one.sink} has no batch of this pipeline: a run writes to it from the start")
        elif pipeline.stateful or any(starts.get(at) != end for at, end in one.token.ends.items()):
            lines.append(
                f"sink {one.sink} has batch {one.token.batch_id} of another checkpoint"
                f"{_difference(starts, one.token.ends)}: a run stops with SINK_HOLDS_OTHER_RUN; use another "
                "table, or read again with --accept-duplicates"
            )
        else:
            lines.append(f"sink {one.sink} ends exactly there: a run continues without a gap")
    return tuple(lines)


def _difference(starts: Offsets, ends: Offsets) -> str:
    again = sum(max(0, end - starts[at]) for at, end in ends.items() if at in starts)
    never = sum(max(0, starts[at] - end) for at, end in ends.items() if at in starts)
    parts = [f"{again:,} of its offsets would be read again"] if again else []
    parts += [f"{never:,} offsets after it would never be read"] if never else []
    return f" ({', '.join(parts)})" if parts else ""


def parse_offsets(spec: str, bounds: Mapping[TopicPartition, LogBounds], cluster: Cluster) -> Offsets:
    """`earliest`, `latest`, an RFC 3339 time, or `topic:partition=offset,...` for every partition."""
    point = parse_point("--offsets", spec, {at.topic for at in bounds})
    if not point.offsets:
        return resolve(point, bounds, cluster, bounds, {})
    offsets = point.offsets
    if offsets.keys() != bounds.keys():
        lacking, unknown = sorted(bounds.keys() - offsets.keys()), sorted(offsets.keys() - bounds.keys())
        raise MissingError(
            "OFFSETS_INCOMPLETE",
            "--offsets must list every partition that the pipeline reads, and no other",
            context={"not named": some(lacking) or "none", "not read": some(unknown) or "none"},
        )
    return offsets


def refuse_outside(offsets: Offsets, bounds: Mapping[TopicPartition, LogBounds], what: str) -> None:
    """Raise if the start offsets are not in the log, or not yet."""
    outside = {
        str(at): f"{what} {offset}, the log holds {bounds[at].start}-{bounds[at].end}"
        if at in bounds
        else f"{what} {offset}, but the partition does not exist"
        for at, offset in sorted(offsets.items())
        if at not in bounds or not bounds[at].start <= offset <= bounds[at].end
    }
    if outside:
        raise MissingError(
            "OFFSETS_OUTSIDE_LOG",
            f"{len(outside)} of {len(offsets)} offsets are not in the log: expired, or the topic was re-created",
            context=dict(list(outside.items())[:8]),
            hint="nothing was written; to continue with the available records: --offsets earliest",
        )


def by_source(pipeline: Pipeline, offsets: Offsets) -> list[Offsets]:
    """The offsets of each of Spark's sources, in its order: that of the joined frame, the left one first."""
    layouts = [layout for flow in pipeline.flows if (layout := flow.layout()) is not None]
    inputs = layouts[0].inputs if layouts else ()
    if len(inputs) < 2:
        return [offsets]
    return [{at: o for at, o in offsets.items() if at.topic in (one.topics or ())} for one in inputs]


def starts_json(starts: Iterable[Offsets]) -> list[dict[str, Any]]:
    """For `--json`: the start of each partition of each source."""
    return [
        {"topic": at.topic, "partition": at.partition, "offset": offset}
        for one in starts
        for at, offset in sorted(one.items())
    ]


def write_fresh(
    checkpoint: SparkCheckpoint, query_id: str, starts: Sequence[Offsets], topic_ids: dict[str, str]
) -> None:
    """A checkpoint whose first batch starts at `starts`, one per source; Spark's metadata file is written last."""
    checkpoint.put_initial(starts)
    if topic_ids:
        checkpoint.note_topic_ids(topic_ids)
    checkpoint.put_metadata(query_id)


def put_in_place(path: str, write: Callable[[str], None], storage: Storage = Storage()) -> None:
    """Write a checkpoint into a folder that is empty or missing: completely or, thanks to a rename, not at all."""
    filesystem, root = storage.filesystem(path)
    if not isinstance(filesystem, LocalFileSystem):
        write(path)
        return
    target = Path(root)
    begun = target.parent / f".{target.name}.{uuid4().hex[:8]}.part"
    begun.mkdir(parents=True)
    try:
        write(str(begun))
        begun.rename(target)
    except BaseException:
        filesystem.rm(str(begun), recursive=True)
        raise


def refuse_occupied(path: str, option: str, storage: Storage = Storage()) -> None:
    """Raise if a folder that must be empty is not."""
    filesystem, root = storage.filesystem(path)
    try:
        there = [str(found).rsplit("/", 1)[-1] for found in filesystem.ls(root, detail=False)]
    except FileNotFoundError:
        return
    if there:
        raise MissingError(
            "CHECKPOINT_OCCUPIED",
            f"{option} {path} is not empty",
            context={"found": ", ".join(sorted(there)[:8])},
            hint="use an empty or new folder: checkpoints are never overwritten",
        )

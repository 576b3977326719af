"""A new checkpoint that begins at given offsets: they are held against the log, and written as Spark would have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

from fsspec.implementations.local import LocalFileSystem

from penstock.assembly.build import Pipeline
from penstock.checkpoint import Offsets, SparkCheckpoint
from penstock.checkpoint.writing import put_initial, put_metadata
from penstock.errors import MissingError
from penstock.kafka import Cluster, LogBounds
from penstock.model import TopicPartition
from penstock.ops.points import parse_point, resolve
from penstock.storage import Storage


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
            "--offsets must name every partition that the pipeline reads, and no other",
            context={"not named": _some(lacking), "not read": _some(unknown)},
        )
    return offsets


def refuse_outside(offsets: Offsets, bounds: Mapping[TopicPartition, LogBounds], what: str) -> None:
    """Raise where the log no longer has, or does not have yet, what would be read first."""
    outside = {
        str(at): f"{what} {offset}, the log holds {bounds[at].start}-{bounds[at].end}"
        if at in bounds
        else f"{what} {offset}, and there is no such partition"
        for at, offset in sorted(offsets.items())
        if at not in bounds or not bounds[at].start <= offset <= bounds[at].end
    }
    if outside:
        raise MissingError(
            "OFFSETS_OUTSIDE_LOG",
            f"{len(outside)} of {len(offsets)} offsets are not in the log: expired, or the topic was created again",
            context=dict(list(outside.items())[:8]),
            hint="nothing was written; to go on from what there is, begin at the log's own start: --offsets earliest",
        )


def by_source(pipeline: Pipeline, offsets: Offsets) -> list[Offsets]:
    """The offsets of each of Spark's sources, in its order: that of the joined frame, the left one first."""
    layouts = [layout for flow in pipeline.flows if (layout := flow.layout()) is not None]
    inputs = layouts[0].inputs if layouts else ()
    if len(inputs) < 2:
        return [offsets]
    return [{at: o for at, o in offsets.items() if at.topic in (one.topics or ())} for one in inputs]


def write_fresh(
    path: str, query_id: str, starts: Sequence[Offsets], topic_ids: dict[str, str], storage: Storage = Storage()
) -> None:
    """A checkpoint whose first batch begins at `starts`, one a source; Spark's metadata file is written last."""
    put_initial(path, starts, storage)
    if topic_ids:
        SparkCheckpoint(path, storage).note_topic_ids(topic_ids)
    put_metadata(path, query_id, storage)


def put_in_place(path: str, write: Callable[[str], None], storage: Storage = Storage()) -> None:
    """Have a checkpoint written in a folder that is empty or not there: whole, or (by a rename) not at all."""
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
    """Raise where a folder that must be empty is not."""
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
            hint="name a folder that is empty or not there: nothing is ever written over a checkpoint",
        )


def _some(places: Sequence[TopicPartition], limit: int = 8) -> str:
    rest = len(places) - limit
    return ", ".join(map(str, places[:limit])) + (f" and {rest} more" if rest > 0 else "") or "none"

"""The positions that a table's snapshots carry, and which of them the table still holds.

A commit stores its position in the summary of its snapshot. The newest one has a tag as well, set in the same step:
no expiry of snapshots loses the position, and a tagged snapshot that is no ancestor of the current one shows that the
table was rolled back to before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from penstock.model import BatchToken, Position

TOKEN = "penstock.token"
PIPELINE = "penstock.pipeline"
SINK = "penstock.sink"
REASON = "penstock.reason"
TAG_PREFIX = "penstock_"


@dataclass(frozen=True, slots=True)
class OwnSnapshot:
    """A commit of one pipeline and sink."""

    snapshot: Snapshot
    position: Position


@dataclass(frozen=True, slots=True)
class History:
    """What one pipeline and sink have committed to a table, as far back as its snapshots go."""

    held: tuple[OwnSnapshot, ...]
    """The commits of the table, newest first, as far as needed to know the position."""
    lost: OwnSnapshot | None
    """The newest commit, if a rollback removed it."""

    @property
    def position(self) -> Position | None:
        """The position of the table; none where it never had a commit."""
        if self.held:
            newest, *older = (own.position for own in self.held)
            return Position.united(newest, older)
        return Position.nothing_left(self.lost.position) if self.lost is not None else None


def summary_of(pipeline: str, sink: str, position: Position) -> dict[str, str]:
    """What the snapshot of a commit says about itself."""
    reason = {REASON: position.last.reason} if position.last.reason is not None else {}
    return {PIPELINE: pipeline, SINK: sink, TOKEN: position.to_json(), **reason}


def mark_of(pipeline: str, sink: str) -> str:
    """The name of this sink's tag, and how the names of its branches begin."""
    return f"{TAG_PREFIX}{hashlib.sha256(f'{pipeline}/{sink}'.encode()).hexdigest()[:12]}"


def history_of(metadata: TableMetadata, pipeline: str, sink: str) -> History:
    """The commits of one pipeline and sink."""
    lineage = _ancestors(metadata, metadata.current_snapshot())
    lost = None
    ref = metadata.refs.get(mark_of(pipeline, sink))
    tagged = metadata.snapshot_by_id(ref.snapshot_id) if ref is not None else None
    if tagged is not None and all(tagged.snapshot_id != each.snapshot_id for each in lineage):
        if _was_rolled_back(metadata, tagged, lineage):
            lost = next(_own([tagged], pipeline, sink), None)
        else:
            lineage += _ancestors(metadata, tagged)
    return History(tuple(_needed(_own(lineage, pipeline, sink))), lost)


def other_writers(metadata: TableMetadata, pipeline: str, sink: str) -> list[str]:
    """The other pipelines and sinks with a position in some snapshot."""
    return sorted("/".join(writer) for writer in writers_of(metadata) - {(pipeline, sink)})


def writers_of(metadata: TableMetadata) -> set[tuple[str, str]]:
    """Every pipeline and sink with a position in some snapshot."""
    said = map(_said, metadata.snapshots)
    return {(each[PIPELINE], each[SINK]) for each in said if {TOKEN, PIPELINE, SINK} <= each.keys()}


def snapshots_of(metadata: TableMetadata, pipeline: str, sink: str, token: BatchToken) -> list[Snapshot]:
    """Every snapshot that carries the token of a batch: a batch may be committed again, with further rows or none."""
    own = _own(metadata.snapshots, pipeline, sink)
    batches = ((each.snapshot, each.position.last) for each in own)
    return [each for each, last in batches if (last.query_id, last.batch_id) == (token.query_id, token.batch_id)]


def files_added(snapshot: Snapshot, io: FileIO) -> set[str]:
    """The data files that a commit added, by their whole paths."""
    return {
        entry.data_file.file_path
        for manifest in snapshot.manifests(io)
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
        if entry.snapshot_id == snapshot.snapshot_id
    }


def _was_rolled_back(metadata: TableMetadata, tagged: Snapshot, lineage: list[Snapshot]) -> bool:
    """Whether a snapshot that is no known ancestor was taken out, and has not only lost its link to an expiry."""
    if not lineage or (tagged.sequence_number or 0) > (lineage[-1].sequence_number or 0):
        return True  # the ancestors are known from before it on
    current = {snapshot.snapshot_id for snapshot in lineage}
    return any(snapshot.snapshot_id in current for snapshot in _ancestors(metadata, tagged))


def _ancestors(metadata: TableMetadata, snapshot: Snapshot | None) -> list[Snapshot]:
    """A snapshot and those before it, up to the first one that has expired."""
    by_id = {found.snapshot_id: found for found in metadata.snapshots}
    chain = []
    while snapshot is not None:
        chain.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = by_id.get(parent) if parent is not None else None
    return chain


def _own(snapshots: list[Snapshot], pipeline: str, sink: str) -> Iterator[OwnSnapshot]:
    for snapshot in snapshots:
        said = _said(snapshot)
        if said.get(PIPELINE) == pipeline and said.get(SINK) == sink and TOKEN in said:
            yield OwnSnapshot(snapshot, Position.from_json(said[TOKEN]))


def _needed(commits: Iterator[OwnSnapshot]) -> Iterator[OwnSnapshot]:
    """Those up to the newest one that names every partition: versions before 0.8 stored the last batch alone."""
    for own in commits:
        yield own
        if own.position.number > 0:
            return


def _said(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}

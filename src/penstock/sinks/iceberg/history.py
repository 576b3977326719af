"""This pipeline's commits among a table's snapshots, newest first, with what a roll-back took out marked.

A commit carries its token in the summary of its snapshot. The newest one has a tag as well, set with it, so that
no expiry of snapshots loses the token, and so that a snapshot which is no ancestor of the current one is known to
have been current once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from penstock.errors import TerminalError
from penstock.model import BatchToken
from penstock.sinks.failures import other_offsets

TOKEN = "penstock.token"
PIPELINE = "penstock.pipeline"
SINK = "penstock.sink"


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A commit of this pipeline. `kept` is false when the table was rolled back to before it."""

    snapshot: Snapshot
    token: BatchToken
    kept: bool


def summary_of(token: BatchToken, sink: str) -> dict[str, str]:
    """What a snapshot says about itself."""
    return {PIPELINE: token.pipeline, SINK: sink, TOKEN: token.to_json()}


def mark_of(pipeline: str, sink: str) -> str:
    """The name of this sink's tag, and how the names of its branches begin."""
    return f"penstock_{hashlib.sha256(f'{pipeline}/{sink}'.encode()).hexdigest()[:12]}"


def commits_of(metadata: TableMetadata, pipeline: str, sink: str) -> Iterator[TableCommit]:
    """Yield the commits of one pipeline and sink, newest first, as far back as the snapshots go."""
    chain = _ancestors(metadata, metadata.current_snapshot())
    tagged = _tagged(metadata, pipeline, sink)
    aside = tagged if tagged is not None and tagged.snapshot_id not in {s.snapshot_id for s in chain} else None
    if aside is not None and _rolled_back(metadata, aside, chain):
        yield from _own([aside], pipeline, sink, kept=False)
    yield from _own(chain, pipeline, sink, kept=True)
    if aside is not None and not _rolled_back(metadata, aside, chain):
        yield from _own([aside], pipeline, sink, kept=True)


def newest_of(metadata: TableMetadata, token: BatchToken, sink: str) -> TableCommit | None:
    """The newest commit of the token's query."""
    commits = commits_of(metadata, token.pipeline, sink)
    return next((commit for commit in commits if commit.token.query_id == token.query_id), None)


def holds(metadata: TableMetadata, token: BatchToken, sink: str) -> bool:
    """Whether the batch is in the table. Raises where it has other offsets or was taken back."""
    newest = newest_of(metadata, token, sink)
    if newest is None:
        return False
    if not newest.kept:
        raise _restored(newest, token, sink)
    if newest.token.batch_id == token.batch_id and newest.token.ranges != token.ranges:
        raise other_offsets(sink, token, newest.token)
    return newest.token.batch_id >= token.batch_id


def files_added(commit: TableCommit, io: FileIO) -> set[str]:
    """The data files that a commit added, by their whole paths."""
    number = commit.snapshot.snapshot_id
    return {
        entry.data_file.file_path
        for manifest in commit.snapshot.manifests(io)
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
        if entry.snapshot_id == number
    }


def _tagged(metadata: TableMetadata, pipeline: str, sink: str) -> Snapshot | None:
    ref = metadata.refs.get(mark_of(pipeline, sink))
    return metadata.snapshot_by_id(ref.snapshot_id) if ref is not None else None


def _rolled_back(metadata: TableMetadata, aside: Snapshot, chain: list[Snapshot]) -> bool:
    """Whether a snapshot that is no known ancestor was left behind, or only lost its link to an expiry."""
    if not chain or (aside.sequence_number or 0) > (chain[0].sequence_number or 0):
        return True
    current = {snapshot.snapshot_id for snapshot in chain}
    return any(snapshot.snapshot_id in current for snapshot in _ancestors(metadata, aside))


def _ancestors(metadata: TableMetadata, snapshot: Snapshot | None) -> list[Snapshot]:
    """A snapshot and those before it, up to the first one that has expired."""
    by_id = {found.snapshot_id: found for found in metadata.snapshots}
    chain = []
    while snapshot is not None:
        chain.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = by_id.get(parent) if parent is not None else None
    return chain


def _own(snapshots: list[Snapshot], pipeline: str, sink: str, *, kept: bool) -> Iterator[TableCommit]:
    for snapshot in snapshots:
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        if said.get(PIPELINE) == pipeline and said.get(SINK) == sink and TOKEN in said:
            yield TableCommit(snapshot, BatchToken.from_json(said[TOKEN]), kept)


def _restored(lost: TableCommit, token: BatchToken, sink: str) -> TerminalError:
    snapshot = lost.snapshot.snapshot_id
    return TerminalError(
        "SINK_TABLE_RESTORED",
        f"sink {sink}: a roll-back of the table took batches of this pipeline back",
        context={
            "checkpoint": f"batch {token.batch_id}: {token.describe_ranges()}",
            "taken back": f"up to batch {lost.token.batch_id}, snapshot {snapshot}",
        },
        hint=(
            "to write those batches again: a new checkpoint and run --resume-from-table\n"
            f"to undo the roll-back: CALL ...system.set_current_snapshot(table => ..., snapshot_id => {snapshot})"
        ),
    )

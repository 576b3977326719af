"""Parquet files, exactly once: staged in tasks out of sight, made visible by one rename a batch.

The commit links the staged files into a new folder beside the target, adds the manifest with the token, makes all
of it durable, and renames that folder to the batch's own name. A rename onto a folder that holds something fails,
so of two drivers with one batch exactly one lands; whatever is raised, the target is looked at again before
anything is decided. Only local paths: object stores have no rename of a folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from penstock.errors import MissingError, TerminalError
from penstock.model import COMPUTED, COORDINATES, BatchToken, Guarantee, Manifest, SlotAttempt
from penstock.sinks.evolution import Fitting
from penstock.sinks.failures import is_passing, other_offsets, sink_failure, sink_failures
from penstock.sinks.files import TableFolder
from penstock.sinks.parquet.batches import Batches, sync_folders
from penstock.sinks.parquet.columns import (
    COMMON_METADATA,
    Columns,
    changing,
    check_columns,
    merge_columns,
    write_columns,
)
from penstock.sinks.parquet.stage import ParquetStage, StagedFile

COMMIT_TRIES = 5


class ParquetSink:
    """Implements `contracts.Sink` over one folder of Parquet files."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        pipeline: str,
        name: str,
        path: str,
        *,
        partition_by: Sequence[str] | None = (),
        keep_coordinates: bool = True,
    ) -> None:
        self.pipeline = pipeline
        self.name = name
        self.path = path
        self.partition_by = tuple(partition_by or ())
        self.keep_coordinates = keep_coordinates
        local = TableFolder(path).local
        self._local = local.resolve() if local else None
        self._batches = Batches(self._local or Path(), pipeline, name)
        self._fitting = Fitting(name, what="the folder")
        self._columns: Columns | None = None
        self._agreed: Columns | None = None

    @property
    def target(self) -> str:
        """The folder."""
        return self.path

    def prepare(self, schema: pa.Schema) -> None:
        """Make the folder, or check that its files and these rows can be read together; note new columns."""
        root, columns = self._root(), self._writable(schema)
        with sink_failures(self.name, "preparing the folder"):
            self._refuse_others(root)
            self._agree(root, columns)
        self._columns = columns

    def check(self, schema: pa.Schema) -> None:
        """Look whether the files that are there and these rows can be read together."""
        self.changes(schema)

    def changes(self, schema: pa.Schema) -> list[str]:
        """Only look: what `prepare` would note for these rows. Files have their own columns: none is ever changed."""
        root, columns = self._root(), self._writable(schema)
        with sink_failures(self.name, "looking at the folder"):
            self._refuse_others(root)
            held = Columns.read(root)
            if held is None:
                return ["create table"]
            merge_columns(self.name, columns, held)
            return replace(self._fitting, evolve="add_columns").fit(columns.all, held.all, whole=False).told()

    def last_commit(self) -> BatchToken | None:
        """The token of the newest batch in the folder, whichever query committed it."""
        self._root()
        with sink_failures(self.name, "reading the manifests"):
            newest = self._batches.newest()
        return newest.token if newest else None

    def holds(self, token: BatchToken) -> bool:
        """Whether the batch is in the folder, or was: a later one is. Raises where it has other offsets."""
        self._root()
        with sink_failures(self.name, "reading the manifests"):
            found = self._batches.find(token)
            if found is None:
                newest = self._batches.newest_id(token.query_id)
                return newest is not None and newest > token.batch_id
        if found.token.ranges != token.ranges:
            raise other_offsets(self.name, token, found.token)
        return True

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> ParquetStage:
        """In a task: begin the files of one attempt of a slot."""
        self._root()
        written = self._written(schema)
        if self._agreed is not None:
            written = self._fitting.staged(written, self._agreed.all)
        columns = Columns.of(written, self.partition_by)
        folder = TableFolder(str(self._batches.staging(token)))
        return ParquetStage(self.name, folder, writer, columns.files, self.partition_by)

    def commit(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Make the batch's folder with the staged files appear at once. An empty batch has a folder too."""
        files = [item for manifest in manifests for item in manifest.items if isinstance(item, StagedFile)]
        failure: OSError | None = None
        for _ in range(COMMIT_TRIES):
            if self.holds(token):
                break
            try:
                self._land(token, files)
                break
            except OSError as error:  # landed or not: only the folder knows
                failure = error
                if not is_passing(error):
                    break
        if failure is not None and not self.holds(token):
            raise sink_failure(self.name, f"committing batch {token.batch_id}", failure) from failure
        self._batches.clear(token)  # nothing that is staged for this batch can ever be committed now

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove what is staged for the batch, once it is committed: before that another driver may need it."""
        self._root()
        with sink_failures(self.name, f"removing strays of batch {token.batch_id}"):
            found = self._batches.find(token)
            if found is not None and found.token == token:
                self._batches.clear(token)

    def _root(self) -> Path:
        if self._local is None:
            raise MissingError(
                "SINK_PATH_UNSUPPORTED",
                f"sink {self.name}: only a local path can show whole batches: this needs the rename of a folder",
                context={"path": self.path},
                hint="give a local path, or use a sink of type delta or iceberg",
            )
        return self._local

    def _written(self, schema: pa.Schema) -> pa.Schema:
        kept = [field for field in schema if not field.name.startswith(COMPUTED)]
        return pa.schema([field for field in kept if self.keep_coordinates or field.name != COORDINATES])

    def _writable(self, schema: pa.Schema) -> Columns:
        return check_columns(self.name, self._written(schema), self.partition_by)

    def _refuse_others(self, root: Path) -> None:
        """Refuse a folder of somebody else's files, whose readers would see both, and one that nothing moves into."""
        if root.is_mount():
            raise MissingError(
                "SINK_PATH_UNSUPPORTED",
                f"sink {self.name}: a mount point has no place beside it from which a batch could be renamed into it",
                context={"path": self.path},
                hint="give a folder below it",
            )
        if not root.exists() or (root.is_dir() and Columns.read(root) is not None):
            return
        found = [root.name] if root.is_file() else sorted(path.name for path in root.iterdir())
        if found:
            raise MissingError(
                "SINK_PATH_NOT_A_TABLE",
                f"sink {self.name}: the folder holds files that no Parquet sink wrote",
                context={"path": self.path, "found": found[0]},
                hint="give the sink an empty folder",
            )

    def _agree(self, root: Path, columns: Columns) -> None:
        """Add these columns to those of the target; refused where they contradict."""
        with changing(root):
            held = Columns.read(root)
            self._agreed = columns if held is None else merge_columns(self.name, columns, held)
            if self._agreed != held:
                write_columns(root, self._agreed)
                sync_folders([root, root.parent])

    def _land(self, token: BatchToken, files: Sequence[StagedFile]) -> None:
        root = self._root()
        held = Columns.read(root)
        if held is None:
            raise TerminalError(
                "SINK_TABLE_GONE",
                f"sink {self.name}: the folder's {COMMON_METADATA} is not there any more",
                context={"path": self.path},
                hint="a new start makes a new one; batches that are gone are not written again",
            )
        if self._columns is not None and held != self._agreed:
            self._agree(root, self._columns)
        gathered = self._batches.gathering(token)
        try:
            self._batches.gather(gathered, token, files, self._columns or held)
            self._batches.publish(gathered, token)
        except OSError:
            shutil.rmtree(gathered, ignore_errors=True)
            raise

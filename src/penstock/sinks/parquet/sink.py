"""Parquet files, exactly once: staged in tasks out of sight, made visible batch by batch, each with its token.

On a local disk the commit links the staged files into a new folder beside the target, adds the manifest with the token,
makes all of it durable, and renames that folder to the batch's own name. A rename onto a folder that holds something
fails, so of two drivers with one batch exactly one lands; whatever is raised, the target is looked at again before
anything is decided. An object store, which has no such rename, is written as `objects` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.errors import MissingError, TerminalError, TransientError
from penstock.model import COMPUTED, COORDINATES, BatchToken, Guarantee, Manifest, SlotAttempt
from penstock.sinks.evolution import Fitting
from penstock.sinks.failures import is_passing, other_offsets, sink_failure, sink_failures
from penstock.sinks.parquet.batches import Batches
from penstock.sinks.parquet.columns import COMMON_METADATA, Columns, check_columns, merge_columns
from penstock.sinks.parquet.local import LocalPlace
from penstock.sinks.parquet.objects import ObjectPlace
from penstock.sinks.parquet.stage import ParquetStage, StagedFile
from penstock.storage import Storage, is_object_uri, local_path

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
        storage: Storage = Storage(),
    ) -> None:
        self.pipeline = pipeline
        self.name = name
        self.path = path
        self.partition_by = tuple(partition_by or ())
        self.keep_coordinates = keep_coordinates
        self._place = _place(pipeline, name, path, storage)
        self._fitting = Fitting(name, what="the folder")
        self._columns: Columns | None = None
        self._agreed: Columns | None = None

    @property
    def target(self) -> str:
        """The folder."""
        return self.path

    @property
    def _batches(self) -> Batches:
        return self._at().batches

    def prepare(self, schema: pa.Schema) -> None:
        """Make the folder, or check that its files and these rows can be read together; note new columns."""
        place, columns = self._at(), self._writable(schema)
        with sink_failures(self.name, "preparing the folder"):
            place.refuse_others()
            self._agree(columns)
            place.settle()
        self._columns = columns

    def check(self, schema: pa.Schema) -> None:
        """Look whether the files that are there and these rows can be read together."""
        self.changes(schema)

    def changes(self, schema: pa.Schema) -> list[str]:
        """Only look: what `prepare` would note for these rows. Files have their own columns: none is ever changed."""
        place, columns = self._at(), self._writable(schema)
        with sink_failures(self.name, "looking at the folder"):
            place.refuse_others()
            held = place.columns()
            if held is None:
                return ["create table"]
            merge_columns(self.name, columns, held)
            return replace(self._fitting, evolve="add_columns").fit(columns.all, held.all, whole=False).told()

    def last_commit(self) -> BatchToken | None:
        """The token of the newest batch in the folder, whichever query committed it."""
        with sink_failures(self.name, "reading the manifests"):
            newest = self._batches.newest()
        return newest.token if newest else None

    def holds(self, token: BatchToken) -> bool:
        """Whether the batch is in the folder, or was: a later one is. Raises where it has other offsets."""
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
        written = self._written(schema)
        if self._agreed is not None:
            written = self._fitting.staged(written, self._agreed.all)
        columns = Columns.of(written, self.partition_by)
        return ParquetStage(self.name, self._at().staging(token), writer, columns.files, self.partition_by)

    def commit(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Make the batch with the staged files appear. An empty batch has a folder too."""
        files = [item for manifest in manifests for item in manifest.items if isinstance(item, StagedFile)]
        failure: OSError | TransientError | None = None
        for _ in range(COMMIT_TRIES):
            if self.holds(token):
                break
            try:
                self._land(token, files)
                break
            except (OSError, TransientError) as error:  # landed or not: only the folder knows
                failure = error
                if isinstance(error, OSError) and not is_passing(error):
                    break
        if failure is not None and not self.holds(token):
            if isinstance(failure, TransientError):
                raise failure
            raise sink_failure(self.name, f"committing batch {token.batch_id}", failure) from failure
        self._clear(token)  # nothing that is staged for this batch can ever be committed now

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove what is staged for the batch, once it is committed: before that another driver may need it."""
        with sink_failures(self.name, f"removing strays of batch {token.batch_id}"):
            found = self._batches.find(token)
            if found is not None and found.token == token:
                self._clear(token)

    def _at(self) -> LocalPlace | ObjectPlace:
        if self._place is None:
            raise MissingError(
                "SINK_PATH_UNSUPPORTED",
                f"sink {self.name}: neither a local path nor an object store: nothing there shows whole batches",
                context={"path": self.path},
                hint="give a local path or one of s3://, gs:// and abfss://, or use a sink of type delta or iceberg",
            )
        return self._place

    def _written(self, schema: pa.Schema) -> pa.Schema:
        kept = [field for field in schema if not field.name.startswith(COMPUTED)]
        return pa.schema([field for field in kept if self.keep_coordinates or field.name != COORDINATES])

    def _writable(self, schema: pa.Schema) -> Columns:
        return check_columns(self.name, self._written(schema), self.partition_by)

    def _agree(self, columns: Columns) -> None:
        """Add these columns to those of the target; refused where they contradict."""
        self._agreed = self._at().agree(
            lambda held: columns if held is None else merge_columns(self.name, columns, held)
        )

    def _land(self, token: BatchToken, files: Sequence[StagedFile]) -> None:
        held = self._at().columns()
        if held is None:
            raise TerminalError(
                "SINK_TABLE_GONE",
                f"sink {self.name}: the folder's {COMMON_METADATA} is not there any more",
                context={"path": self.path},
                hint="a new start makes a new one; batches that are gone are not written again",
            )
        if self._columns is not None and held != self._agreed:
            self._agree(self._columns)
        self._at().land(token, files, self._columns or held)

    def _clear(self, token: BatchToken) -> None:
        place = self._at()
        if isinstance(place, ObjectPlace):
            # What another driver committed may still have to be copied out of what is staged.
            place.batches.complete(token)
        place.batches.clear(token)


def _place(pipeline: str, name: str, path: str, storage: Storage) -> LocalPlace | ObjectPlace | None:
    if is_object_uri(path):
        return ObjectPlace(name, path, pipeline, storage)
    root = local_path(path)
    return LocalPlace(name, root.resolve(), pipeline) if root is not None else None

"""Files in a folder, exactly once: staged in tasks out of sight, made visible batch by batch, each with a position.

On a local disk the commit links the staged files into a new folder outside the target, adds the manifest with the
position, makes all of it durable, and renames that folder to the name of the commit's number. A rename onto a folder
that holds something fails, so of two drivers exactly one lands on a position. An object store, which has no such
rename, is written as `objects` says.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.dataset as ds

from penstock.contracts import BaseSink
from penstock.errors import MissingError, TerminalError
from penstock.model import (
    COORDINATES,
    BatchToken,
    Guarantee,
    Manifest,
    OffsetRange,
    Position,
    SlotAttempt,
    Verdict,
    decide,
)
from penstock.sinks.commit import position_moved
from penstock.sinks.evolution import written_columns
from penstock.sinks.failures import sink_failures
from penstock.sinks.files import ParquetFiles, TableFolder
from penstock.sinks.files.stage import StagedFile, items_of
from penstock.sinks.files.writer import SlotFiles
from penstock.sinks.parquet.columns import (
    COMMON_METADATA,
    Columns,
    check_columns,
    fit_columns,
    fitting,
    merge_columns,
)
from penstock.sinks.parquet.local import LocalTarget
from penstock.sinks.parquet.objects import ObjectTarget
from penstock.sinks.parquet.stage import FolderStage
from penstock.sinks.parquet.target import FolderLayout, FolderTarget
from penstock.sinks.replacing import records_in
from penstock.storage import Storage, is_object_uri, local_path


class FolderSink(BaseSink):
    """Implements `contracts.Sink` over one folder of files; a subclass chooses the file format."""

    guarantee = Guarantee.EXACTLY_ONCE
    layout: ClassVar[FolderLayout]
    format: ClassVar[str | ds.FileFormat]
    """How Arrow reads the files."""
    no_maintenance = "a folder of files has no log: its files are the batches, and compacting them would duplicate rows"

    def __init__(
        self,
        pipeline: str,
        name: str,
        path: str,
        *,
        partition_by: Sequence[str] = (),
        keep_coordinates: bool = True,
        storage: Storage = Storage(),
    ) -> None:
        self.pipeline = pipeline
        self.name = name
        self.path = path
        self.partition_by = tuple(partition_by)
        self.keep_coordinates = keep_coordinates
        self._place = _target(pipeline, name, path, self.layout, storage)
        self._columns: Columns | None = None
        self._agreed: Columns | None = None

    @property
    def target(self) -> str:
        """The folder."""
        return self.path

    def prepare(self, schema: pa.Schema) -> None:
        """Make the folder, or check that its files and these rows can be read together; note new columns."""
        place, columns = self._at(), self._writable(schema)
        with sink_failures(self.name, "preparing the folder"):
            place.refuse_others()
            self._agree(columns)
            place.settle()
        self._columns = columns

    def check(self, schema: pa.Schema) -> None:
        """Check whether the existing files and these rows can be read together."""
        self.changes(schema)

    def changes(self, schema: pa.Schema) -> list[str]:
        """Read only: which columns `prepare` would add. Files have their own columns: none is ever changed."""
        place, columns = self._at(), self._writable(schema)
        with sink_failures(self.name, "looking at the folder"):
            place.refuse_others()
            held = place.columns()
            if held is None:
                return ["create table"]
            return fit_columns(self.name, columns, held).changes()

    def position(self) -> Position | None:
        """The position in the newest manifest, whichever query committed it."""
        with sink_failures(self.name, "reading the manifests"):
            return self._at().position()

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> FolderStage:
        """In a task: begin the files of one attempt of a slot."""
        written = self._written(schema)
        if self._agreed is not None:
            written = fitting(self.name).staged(written, self._agreed.all)
        columns = Columns.of(written, self.partition_by)
        files = self._files(self._at().staging(token), writer, columns.files)
        return FolderStage(self.name, files, writer, columns.files, self.partition_by)

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """Make the batch with the staged files appear. An empty batch has a folder too."""
        files = items_of(manifests, StagedFile)
        target, columns = self._at(), self._columns_to_land()
        with sink_failures(self.name, f"committing batch {position.last.batch_id}"):
            try:
                target.land(position, files, columns, onto)
            except FileExistsError as error:
                raise position_moved(self.name) from error
            except FileNotFoundError as error:
                # Another driver may have committed the batch, and removed what was staged.
                if target.position() != onto:
                    raise position_moved(self.name) from error
                raise

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Remove what is staged for the batch, once it is committed: before that another driver may need it."""
        with sink_failures(self.name, f"removing leftovers of batch {token.batch_id}"):
            target = self._at()
            held = target.position()
            if held is not None and decide(held, token) is Verdict.COMMITTED:
                target.settle()
                target.clear(token)

    def records_held(self, ranges: Sequence[OffsetRange]) -> set[tuple[str, int, int]] | None:
        """The records in these ranges that some row of the folder came from."""
        with sink_failures(self.name, "reading the coordinates"):
            target = self._at()
            columns = target.columns()
            if not self.keep_coordinates or (columns is not None and COORDINATES not in columns.files.names):
                return None
            return records_in(*target.files(), ranges, self.format)

    def other_writers(self) -> Sequence[str]:
        """The other pipelines and sinks that have batches in the folder."""
        with sink_failures(self.name, "reading the manifests"):
            return self._at().other_writers()

    @abstractmethod
    def _files(self, folder: TableFolder, writer: SlotAttempt, columns: pa.Schema) -> SlotFiles[Any, Any]:
        """In a task: the files of one attempt of a slot."""

    def _at(self) -> FolderTarget:
        if self._place is None:
            raise MissingError(
                "SINK_PATH_UNSUPPORTED",
                f"sink {self.name}: neither a local path nor an object store: nothing there shows whole batches",
                context={"path": self.path},
                hint="use a local path, s3://, gs:// or abfss://, or a sink of type delta or iceberg",
            )
        return self._place

    def _written(self, schema: pa.Schema) -> pa.Schema:
        kept = written_columns(schema, keep_coordinates=self.keep_coordinates)
        return pa.schema([field.remove_metadata() for field in kept])

    def _writable(self, schema: pa.Schema) -> Columns:
        return check_columns(self.name, self._written(schema), self.partition_by)

    def _agree(self, columns: Columns) -> None:
        """Add these columns to those of the target; refused where they contradict."""
        self._agreed = self._at().agree(
            lambda held: columns if held is None else merge_columns(self.name, columns, held)
        )

    def _columns_to_land(self) -> Columns:
        """The columns of the rows, which the target has by now."""
        with sink_failures(self.name, "looking at the folder"):
            held = self._at().columns()
            if held is None:
                raise TerminalError(
                    "SINK_TABLE_GONE",
                    f"sink {self.name}: the folder's {self.layout.columns_file} no longer exists",
                    context={"path": self.path},
                    hint="a new start makes a new one; batches that are gone are not written again",
                )
            if self._columns is not None and held != self._agreed:
                self._agree(self._columns)
        return self._columns or held


class ParquetSink(FolderSink):
    """A folder of Parquet files."""

    layout = FolderLayout("Parquet", "*.parquet", COMMON_METADATA)
    format = "parquet"

    def _files(self, folder: TableFolder, writer: SlotAttempt, columns: pa.Schema) -> ParquetFiles:
        return ParquetFiles(folder, "part-", writer, columns)


def _target(pipeline: str, name: str, path: str, layout: FolderLayout, storage: Storage) -> FolderTarget | None:
    if is_object_uri(path):
        return ObjectTarget(name, path, pipeline, layout, storage)
    root = local_path(path)
    return LocalTarget(name, root.resolve(), pipeline, layout) if root is not None else None

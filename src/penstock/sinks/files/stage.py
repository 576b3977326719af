"""One attempt of one slot for a sink that stages files: rows in, a manifest of durable files out.

Staged files are invisible: nothing names them before the commit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from penstock.model import Manifest, Refusal, SlotAttempt
from penstock.model.stored_manifests import stored_as
from penstock.sinks.evolution import cast_rows
from penstock.sinks.failures import sink_failures
from penstock.sinks.files.writer import ParquetFiles, SlotFiles, WrittenFile, WrittenParquet
from penstock.sinks.merging import refuse_null_keys

STAGED = "_penstock/staged"
"""The folder inside a table's folder for rows that are committed through Spark. Table formats ignore such names."""

Failures = Callable[[str, str], AbstractContextManager[None]]
Written = TypeVar("Written", bound=WrittenFile)


class FileStage(ABC, Generic[Written]):
    """Implements `contracts.Stage`. A subclass places the rows and describes the files."""

    def __init__(
        self, sink: str, writer: SlotAttempt, files: SlotFiles[Any, Written], failures: Failures = sink_failures
    ) -> None:
        self._sink = sink
        self._writer = writer
        self._files = files
        self._failures = failures

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Take rows; return those that the target cannot hold."""
        with self._failures(self._sink, "staging rows"):
            return self._place(rows)

    def finish(self) -> Manifest:
        """Close every file, make it durable, and describe it in the manifest."""
        with self._failures(self._sink, "finishing staged files"):
            written = self._files.finish()
            items = self._items(written)
        rows, size = sum(file.rows for file in written), sum(file.size_bytes for file in written)
        return Manifest(self._sink, self._writer, rows, size, items)

    def abort(self) -> None:
        """Remove what was written. What cannot be removed goes with `discard` or with a clean-up of the table."""
        self._files.abort()

    @abstractmethod
    def _place(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Add the rows to the files; return those that the target cannot hold."""

    @abstractmethod
    def _items(self, written: Sequence[Written]) -> tuple[object, ...]:
        """The files as items of the manifest."""


Item = TypeVar("Item")


def items_of(manifests: Sequence[Manifest], kind: type[Item]) -> list[Item]:
    """The items of one kind in all manifests."""
    return [item for manifest in manifests for item in manifest.items if isinstance(item, kind)]


@stored_as("file")
@dataclass(frozen=True, slots=True)
class StagedFile:
    """A staged file: the item of a manifest. `path` is inside the folder of the table's data files, or of the batch."""

    path: str
    size_bytes: int
    rows: int


class RowsStage(FileStage[WrittenParquet]):
    """Stages rows for a commit through Spark, in plain Parquet files that no log names. Null keys are refused."""

    def __init__(
        self,
        sink: str,
        writer: SlotAttempt,
        files: ParquetFiles,
        schema: pa.Schema,
        keys: Sequence[str],
        failures: Failures,
    ) -> None:
        super().__init__(sink, writer, files, failures)
        self._schema = schema
        self._keys = tuple(keys)

    def _place(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        rows, without_key = refuse_null_keys(self._sink, cast_rows(rows, self._schema), self._keys)
        rows, refused = self._refuse(rows)
        if rows.num_rows:
            self._note_bounds(rows)
            self._files.add("", rows)
        return [*without_key, *refused]

    @abstractmethod
    def _refuse(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Refusal]]:
        """Refuse rows that the table cannot partition, or that no merge could find again."""

    @abstractmethod
    def _note_bounds(self, rows: pa.RecordBatch) -> None:
        """Note the bounds of the rows, for the condition of the merge."""


class DataFileStage(FileStage[WrittenParquet]):
    """Stages data files of a table: one partition per file."""

    file_schema: pa.Schema
    """The columns of the files."""

    def __init__(
        self, sink: str, writer: SlotAttempt, files: ParquetFiles, schema: pa.Schema, failures: Failures
    ) -> None:
        super().__init__(sink, writer, files, failures)
        self._schema = schema
        self._values: dict[str, tuple[Any, ...]] = {}

    def add(self, values: tuple[Any, ...], rows: pa.RecordBatch) -> None:
        """Take rows of one partition, in the schema of the files."""
        self._files.add(self._folder(values), rows)

    def _place(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        for values, part in self._split(cast_rows(rows, self._schema)):
            self.add(values, part)
        return ()

    def _items(self, written: Sequence[WrittenParquet]) -> tuple[object, ...]:
        return tuple(self._item(file, self._values[file.folder]) for file in written)

    def _folder(self, values: tuple[Any, ...]) -> str:
        """A folder for these values alone: two of them may have the same text, but a file has only one partition."""
        name = folder = self._folder_name(values)
        while self._values.setdefault(folder, values) != values:
            folder = f"{name}~{len(self._values)}"
        return folder

    @abstractmethod
    def _split(self, rows: pa.RecordBatch) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
        """The rows of each partition, with its values."""

    @abstractmethod
    def _folder_name(self, values: tuple[Any, ...]) -> str:
        """The folder of a partition."""

    @abstractmethod
    def _item(self, file: WrittenParquet, values: tuple[Any, ...]) -> StagedFile:
        """A file as an item of the manifest."""

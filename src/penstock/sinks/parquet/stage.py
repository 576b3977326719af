"""One attempt of one slot: rows in, durable files out, where no reader looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote

import pyarrow as pa

from penstock.model import Manifest, Refusal, SlotAttempt
from penstock.sinks.evolution import cast_rows
from penstock.sinks.failures import sink_failures
from penstock.sinks.files import PartitionValues, WrittenFile, folder_of, split_by_values
from penstock.sinks.files.folder import NULL_FOLDER
from penstock.sinks.merging import refusals

PARTITION_VALUE = "SINK_PARTITION_VALUE"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file to be part of the batch: the item of a manifest. `path` is within the batch's folder."""

    path: str
    rows: int
    size_bytes: int


class FileWriter(Protocol):
    """The files of one attempt of a slot, of one kind."""

    def add(self, folder: str, rows: pa.RecordBatch) -> None:
        """Take some rows for a folder, relative to the root and empty for the root itself."""
        ...

    def finish(self) -> Sequence[WrittenFile | StagedFile]:
        """Close every file and make it durable."""
        ...

    def abort(self) -> None:
        """Remove what was written. Never raises."""
        ...


class FolderStage:
    """Implements `contracts.Stage`."""

    def __init__(
        self, sink: str, files: FileWriter, writer: SlotAttempt, columns: pa.Schema, partition_by: Sequence[str]
    ) -> None:
        self._sink = sink
        self._writer = writer
        self._columns = columns
        self._partition_by = tuple(partition_by)
        self._files = files

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Take some rows; refuse those whose partition value no folder name can hold."""
        refused: list[Refusal] = []
        with sink_failures(self._sink, "staging rows"):
            for values, part in split_by_values(rows, self._partition_by):
                folder = folder_of(self._partition_by, values)
                if _says(folder, self._partition_by, values):
                    self._files.add(folder, cast_rows(part, self._columns))
                else:
                    message = f"sink {self._sink}: a partition value that no folder name can hold"
                    refused += refusals(self._sink, part, PARTITION_VALUE, message)
        return refused

    def finish(self) -> Manifest:
        """Close every file, make it durable, and say what there is."""
        with sink_failures(self._sink, "finishing staged files"):
            staged = tuple(StagedFile(file.path, file.rows, file.size_bytes) for file in self._files.finish())
        size = sum(file.size_bytes for file in staged)
        return Manifest(self._sink, self._writer, sum(file.rows for file in staged), size, staged)

    def abort(self) -> None:
        """Remove what was written. What cannot be removed is invisible, and goes with the batch's `discard`."""
        self._files.abort()


def _says(folder: str, columns: Sequence[str], values: PartitionValues) -> bool:
    """Whether readers get the values back from the folder's name: a long one is cut, and one text means null."""
    texts = [NULL_FOLDER if value is None else value for value in values]
    written = [f"{column}={text}" for column, text in zip(columns, texts, strict=True)]
    return [unquote(part) for part in folder.split("/") if part] == written and NULL_FOLDER not in values

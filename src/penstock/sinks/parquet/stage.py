"""One attempt of one slot for a folder of files: rows in, durable files out, where no reader looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from penstock.model import Refusal, SlotAttempt
from penstock.sinks.evolution import cast_rows
from penstock.sinks.files import PartitionValues, folder_of, split_by_values
from penstock.sinks.files.folder import NULL_FOLDER
from penstock.sinks.files.stage import FileStage, StagedFile
from penstock.sinks.files.writer import SlotFiles, WrittenFile
from penstock.sinks.merging import PARTITION_VALUE, refusals


class FolderStage(FileStage[WrittenFile]):
    """Implements `contracts.Stage`."""

    def __init__(
        self,
        sink: str,
        files: SlotFiles[Any, WrittenFile],
        writer: SlotAttempt,
        columns: pa.Schema,
        partition_by: Sequence[str],
    ) -> None:
        super().__init__(sink, writer, files)
        self._columns = columns
        self._partition_by = tuple(partition_by)

    def _place(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Refuses rows whose partition value cannot be read back from the folder's name."""
        refused: list[Refusal] = []
        for values, part in split_by_values(rows, self._partition_by):
            folder = folder_of(self._partition_by, values)
            if _reads_back(folder, self._partition_by, values):
                self._files.add(folder, cast_rows(part, self._columns))
            else:
                message = f"sink {self._sink}: a partition value that is not possible in a folder name"
                refused += refusals(self._sink, part, PARTITION_VALUE, message)
        return refused

    def _items(self, written: Sequence[WrittenFile]) -> tuple[object, ...]:
        return tuple(StagedFile(file.path, file.size_bytes, file.rows) for file in written)


def _reads_back(folder: str, columns: Sequence[str], values: PartitionValues) -> bool:
    """Whether readers get the values back from the folder's name: a long one is cut, and one text means null."""
    texts = [NULL_FOLDER if value is None else value for value in values]
    written = [f"{column}={text}" for column, text in zip(columns, texts, strict=True)]
    return [unquote(part) for part in folder.split("/") if part] == written and NULL_FOLDER not in values

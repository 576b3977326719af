"""A folder of JSON lines: how a slot writes its files, and how they are read back for their coordinates."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, cast

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.json as pj

from penstock.model import SlotAttempt
from penstock.sinks.files import TableFolder
from penstock.sinks.files.writer import TARGET_FILE_BYTES, SlotFiles, WrittenFile
from penstock.sinks.parquet.sink import FolderSink
from penstock.sinks.parquet.target import FolderLayout
from penstock.sinks.row_json import json_rows

Compression = Literal["none", "gzip"]

_ENDINGS: dict[Compression, str] = {"none": ".jsonl", "gzip": ".jsonl.gz"}
_LONGEST_LINE = 64 << 20
_LINES_AT_ONCE = 8_192


class JsonLinesSink(FolderSink):
    """A folder of files with a row as JSON in each line."""

    layout = FolderLayout("JSON lines", "*.jsonl*", "_columns.parquet")
    format = ds.JsonFileFormat(read_options=pj.ReadOptions(block_size=_LONGEST_LINE))

    def __init__(self, *given: Any, compression: Compression = "none", **named: Any) -> None:
        super().__init__(*given, **named)
        self._compression = compression

    def _files(self, folder: TableFolder, writer: SlotAttempt, columns: pa.Schema) -> JsonLinesFiles:
        return JsonLinesFiles(folder, writer, self._compression)


@dataclass(slots=True)
class _OpenLines:
    path: str
    raw: BinaryIO
    lines: BinaryIO
    rows: int = 0

    def close(self) -> None:
        if self.lines is not self.raw:
            self.lines.close()


class JsonLinesFiles(SlotFiles[_OpenLines, WrittenFile]):
    """Files of JSON lines."""

    def __init__(
        self,
        root: TableFolder,
        writer: SlotAttempt,
        compression: Compression,
        target_file_bytes: int = TARGET_FILE_BYTES,
    ) -> None:
        super().__init__(root, "part-", writer, _ENDINGS[compression], target_file_bytes)

    def add(self, folder: str, rows: pa.RecordBatch) -> None:
        """Take rows for a folder, relative to the root; empty for the root itself."""
        file = self._file(folder)
        for start in range(0, rows.num_rows, _LINES_AT_ONCE):
            some = rows.slice(start, _LINES_AT_ONCE)
            file.lines.write("\n".join([*json_rows(some).to_pylist(), ""]).encode())
            file.rows += some.num_rows
        self._close_if_full(folder)

    def _begin(self, path: str, raw: BinaryIO) -> _OpenLines:
        # No name and no time in the header: the same rows give the same bytes.
        lines = gzip.GzipFile("", "wb", 6, raw, mtime=0) if self._ending.endswith(".gz") else raw
        return _OpenLines(path, raw, cast(BinaryIO, lines))

    def _describe(self, file: _OpenLines, folder: str, size_bytes: int) -> WrittenFile:
        return WrittenFile(file.path, folder, size_bytes, file.rows)

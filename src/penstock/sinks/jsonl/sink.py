"""A folder of JSON lines: how a slot writes its files, and how they are read back for their coordinates."""

from __future__ import annotations

import gzip
import secrets
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, cast

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.json as pj

from penstock.model import SlotAttempt
from penstock.sinks.files import TableFolder
from penstock.sinks.files.writer import OPEN_FILES, TARGET_FILE_BYTES
from penstock.sinks.parquet.sink import FolderSink
from penstock.sinks.parquet.stage import FileWriter, StagedFile
from penstock.sinks.parquet.target import Layout
from penstock.sinks.row_json import json_rows

Compression = Literal["none", "gzip"]

_ENDINGS: dict[Compression, str] = {"none": ".jsonl", "gzip": ".jsonl.gz"}
_LONGEST_LINE = 64 << 20
_LINES_AT_ONCE = 8_192


class JsonLinesSink(FolderSink):
    """A folder of files with a row as JSON in each line."""

    layout = Layout("JSON lines", "*.jsonl*", "_columns.parquet")
    format = ds.JsonFileFormat(read_options=pj.ReadOptions(block_size=_LONGEST_LINE))

    def __init__(self, *given: Any, compression: Compression = "none", **named: Any) -> None:
        super().__init__(*given, **named)
        self._compression = compression

    def _files(self, folder: TableFolder, writer: SlotAttempt, columns: pa.Schema) -> FileWriter:
        return JsonLinesFiles(folder, writer, self._compression)


@dataclass(slots=True)
class _OpenFile:
    path: str
    raw: BinaryIO
    lines: BinaryIO
    rows: int = 0


class JsonLinesFiles:
    """The files of one attempt of a slot: one a folder, until it has grown to `target_file_bytes`."""

    def __init__(
        self,
        root: TableFolder,
        writer: SlotAttempt,
        compression: Compression,
        target_file_bytes: int = TARGET_FILE_BYTES,
    ) -> None:
        self._root = root
        self._ending = _ENDINGS[compression]
        self._target = target_file_bytes
        # The random end keeps an attempt that is run again after a restart off the files of the first.
        attempt = writer.attempt.replace("/", ".")
        self._name = f"part-{writer.slot}-{attempt}-{secrets.token_hex(4)}"
        self._open: dict[str, _OpenFile] = {}
        self._closed: list[StagedFile] = []
        self._begun: list[str] = []

    def add(self, folder: str, rows: pa.RecordBatch) -> None:
        """Take some rows for a folder, relative to the root and empty for the root itself."""
        file = self._open.pop(folder, None) or self._begin(folder)
        self._open[folder] = file  # last in order: the one used most recently
        for start in range(0, rows.num_rows, _LINES_AT_ONCE):
            some = rows.slice(start, _LINES_AT_ONCE)
            file.lines.write("\n".join([*json_rows(some).to_pylist(), ""]).encode())
            file.rows += some.num_rows
        if file.raw.tell() >= self._target:
            self._close(folder)

    def finish(self) -> Sequence[StagedFile]:
        """Close every file and make it durable."""
        for folder in list(self._open):
            self._close(folder)
        self._root.sync(file.path for file in self._closed)
        return self._closed

    def abort(self) -> None:
        """Remove what was written. What cannot be removed is invisible, as everything staged is."""
        for file in self._open.values():
            with suppress(Exception), ExitStack() as closing:
                closing.callback(file.raw.close)
                closing.callback(file.lines.close)
        for path in self._begun:
            with suppress(Exception):
                self._root.remove(path)
        self._open, self._closed, self._begun = {}, [], []

    def _begin(self, folder: str) -> _OpenFile:
        while len(self._open) >= OPEN_FILES:
            self._close(next(iter(self._open)))
        path = f"{folder}/{self._name}-{len(self._begun)}{self._ending}".lstrip("/")
        raw = self._root.open(path)
        self._begun.append(path)
        # No name and no time in the header: the same rows give the same bytes.
        lines = gzip.GzipFile("", "wb", 6, raw, mtime=0) if self._ending.endswith(".gz") else raw
        return _OpenFile(path, raw, cast(BinaryIO, lines))

    def _close(self, folder: str) -> None:
        file = self._open.pop(folder)
        if file.lines is not file.raw:
            file.lines.close()
        size = file.raw.tell()
        file.raw.close()
        self._closed.append(StagedFile(file.path, file.rows, size))

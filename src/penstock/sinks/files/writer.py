"""The files of one attempt of one slot: rows in, closed and durable Parquet files out.

One file a folder, until it has grown past the wanted size: then the next one is begun. Memory is bounded: rows wait in
small batches, and when too much waits, the folders with most of them get a row group. Open files are bounded as well:
past the bound the one written longest ago is closed, and should its folder come again, it gets another file.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as types

from penstock.model import BatchToken, SlotAttempt
from penstock.sinks.files.folder import TableFolder
from penstock.sinks.files.leaves import Leaf, dictionary_columns, leaves_of
from penstock.sinks.files.sizing import TARGET_FILE_BYTES

ROW_GROUP_ROWS = 262_144
WAITING_BYTES = 64 * 1024 * 1024
OPEN_FILES = 256
_STAGED = re.compile(r"part-\w{1,8}-\d+-[0-9a-f]{12}-")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A closed file. `folder` is as it was given; `with_nan` are the float leaves that hold a NaN."""

    path: str
    folder: str
    size_bytes: int
    footer: pq.FileMetaData
    with_nan: frozenset[Leaf]

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return int(self.footer.num_rows)


@dataclass(slots=True)
class _Waiting:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class _OpenFile:
    path: str
    raw: BinaryIO
    parquet: pq.ParquetWriter
    footers: list[pq.FileMetaData]
    with_nan: set[Leaf] = field(default_factory=set)


class ParquetFiles:
    """Files under names that begin with `prefix` and hold the slot and attempt. `watched` are looked at for NaN."""

    def __init__(
        self,
        root: TableFolder,
        prefix: str,
        writer: SlotAttempt,
        schema: pa.Schema,
        watched: Sequence[Leaf] = (),
        target_file_bytes: int = TARGET_FILE_BYTES,
    ) -> None:
        self._root = root
        self._schema = schema
        self._target = target_file_bytes
        # The random end keeps a batch that is run again after a restart, with the same attempt, off files
        # that are committed already.
        attempt = re.sub(r"[^A-Za-z0-9]+", ".", writer.attempt)
        self._name = f"{prefix}{writer.slot}-{attempt}-{secrets.token_hex(4)}"
        self._dictionary_columns = dictionary_columns(leaves_of(schema))
        self._watched = list(watched)
        self._waiting: dict[str, _Waiting] = {}
        self._open: dict[str, _OpenFile] = {}
        self._written: list[WrittenFile] = []
        self._files = 0

    def add(self, folder: str, rows: pa.RecordBatch) -> None:
        """Take some rows for a folder, relative to the root and empty for the root itself."""
        waiting = self._waiting.setdefault(folder, _Waiting())
        waiting.batches.append(rows)
        waiting.rows += rows.num_rows
        waiting.size_bytes += rows.nbytes
        if waiting.rows >= ROW_GROUP_ROWS or waiting.size_bytes >= self._target:
            self._flush(folder)
        self._relieve()

    def finish(self) -> list[WrittenFile]:
        """Close every file and make it durable."""
        for folder in sorted(self._waiting):
            self._flush(folder)
            if folder in self._open:
                self._close(folder)
        for folder in list(self._open):
            self._close(folder)
        self._root.sync(file.path for file in self._written)
        return self._written

    def abort(self) -> None:
        """Remove what was written. What cannot be removed is invisible, as everything staged is."""
        for file in self._open.values():
            with suppress(Exception):
                file.parquet.close()
            with suppress(Exception):
                file.raw.close()
        for path in [*(file.path for file in self._open.values()), *(file.path for file in self._written)]:
            with suppress(Exception):
                self._root.remove(path)
        self._waiting, self._open, self._written = {}, {}, []

    def _relieve(self) -> None:
        held = sum(waiting.size_bytes for waiting in self._waiting.values())
        if held <= WAITING_BYTES:
            return
        for folder in sorted(self._waiting, key=lambda f: self._waiting[f].size_bytes, reverse=True):
            if held <= WAITING_BYTES // 2:
                break
            held -= self._waiting[folder].size_bytes
            self._flush(folder)

    def _flush(self, folder: str) -> None:
        """Write what waits for a folder as one row group."""
        waiting = self._waiting.pop(folder, None)
        if waiting is None:
            return
        file = self._open.pop(folder, None) or self._begin(folder)
        self._open[folder] = file  # last in order: the one used most recently
        table = pa.Table.from_batches(waiting.batches)
        file.with_nan |= leaves_with_nan(table, self._watched)
        file.parquet.write_table(table, row_group_size=table.num_rows)
        if file.raw.tell() >= self._target:
            self._close(folder)

    def _begin(self, folder: str) -> _OpenFile:
        while len(self._open) >= OPEN_FILES:
            self._close(next(iter(self._open)))
        path = f"{folder}/{self._name}-{self._files}.parquet".lstrip("/")
        self._files += 1
        raw = self._root.open(path)
        footers: list[pq.FileMetaData] = []
        parquet = pq.ParquetWriter(
            raw,
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=self._dictionary_columns,
            store_schema=False,
            metadata_collector=footers,
        )
        return _OpenFile(path, raw, parquet, footers)

    def _close(self, folder: str) -> None:
        file = self._open.pop(folder)
        file.parquet.close()
        size = file.raw.tell()
        file.raw.close()
        [footer] = file.footers
        self._written.append(WrittenFile(file.path, folder, size, footer, frozenset(file.with_nan)))


def staged_prefix(kind: str, pipeline: str, sink: str, token: BatchToken) -> str:
    """How the names of a batch's files begin.

    Folders are shared: the mark keeps writers with alike query ids from removing each other's files.
    """
    mark = hashlib.sha256(f"{pipeline}/{sink}/{token.query_id}".encode()).hexdigest()[:12]
    return f"{kind}-{token.label}-{mark}-"


def staged_batch(name: str) -> str | None:
    """How the names of the batch begin that a file was staged for; none where it is no file that a sink staged."""
    found = _STAGED.match(name.rpartition("/")[2])
    return found[0] if found is not None else None


def leaves_with_nan(rows: pa.Table, leaves: Sequence[Leaf]) -> set[Leaf]:
    """The float leaves that hold a NaN. Parquet leaves NaN out of its bounds, SQL sorts it above all."""
    found = set()
    for leaf in leaves:
        if types.is_floating(leaf.type):
            values = rows.column(leaf.names[0])
            for name in leaf.names[1:]:
                values = pc.struct_field(values, values.type.get_field_index(name))
            if pc.any(pc.is_nan(values)).as_py():
                found.add(leaf)
    return found

"""One attempt of one slot: rows in, Parquet files with statistics out, invisible until the log names them.

One file a partition value. Memory is bounded: rows wait in small batches, and when the stage holds too much,
the values with most of them are written as a row group. Open files are bounded as well: past the bound the
one written longest ago is closed, and should its value come again, it gets another file.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from penstock.model import Manifest, SlotAttempt
from penstock.sinks.delta.failures import sink_failures
from penstock.sinks.delta.files import TableFolder
from penstock.sinks.delta.leaves import Leaf, dictionary_columns, leaves_of
from penstock.sinks.delta.partitions import PartitionValues, folder_of, split_by_values
from penstock.sinks.delta.stats import file_statistics, indexed, leaves_with_nan

ROW_GROUP_ROWS = 262_144
WAITING_BYTES = 64 * 1024 * 1024
OPEN_FILES = 256


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file to be named in the log: the item of a Delta manifest."""

    path: str
    size_bytes: int
    rows: int
    partition_values: PartitionValues
    statistics: str

    def to_action(self, partition_by: Sequence[str]) -> AddAction:
        """The entry for the log. delta-rs writes the path URL-encoded, as the protocol wants it."""
        return AddAction(
            path=self.path,
            size=self.size_bytes,
            partition_values=dict(zip(partition_by, self.partition_values, strict=True)),
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=self.statistics,
        )


@dataclass(slots=True)
class _OpenFile:
    path: str
    raw: BinaryIO
    parquet: pq.ParquetWriter
    footers: list[pq.FileMetaData]
    with_nan: set[Leaf] = field(default_factory=set)


@dataclass(slots=True)
class _Waiting:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0


class DeltaStage:
    """Implements `contracts.Stage`."""

    def __init__(
        self,
        sink: str,
        folder: TableFolder,
        prefix: str,
        writer: SlotAttempt,
        schema: pa.Schema,
        partition_by: Sequence[str],
        indexed_columns: int,
    ) -> None:
        self._sink = sink
        self._folder = folder
        self._writer = writer
        self._schema = schema
        self._partition_by = tuple(partition_by)
        # The random end keeps a batch that is run again after a restart, with the same attempt, off files
        # that are committed already.
        attempt = re.sub(r"[^A-Za-z0-9]+", ".", writer.attempt)
        self._name = f"{prefix}{writer.slot}-{attempt}-{secrets.token_hex(4)}"
        self._file_schema = pa.schema([f for f in schema if f.name not in self._partition_by])
        leaves = leaves_of(self._file_schema)
        self._dictionary_columns = dictionary_columns(leaves)
        self._indexed = indexed(leaves, indexed_columns)
        self._waiting: dict[PartitionValues, _Waiting] = {}
        self._open: dict[PartitionValues, _OpenFile] = {}
        self._staged: list[StagedFile] = []
        self._files = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Take some rows. Columns beyond the schema are left out."""
        with sink_failures(self._sink, "staging rows"):
            arrays = [rows.column(name) for name in self._schema.names]
            rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            for values, part in split_by_values(rows, self._partition_by):
                waiting = self._waiting.setdefault(values, _Waiting())
                waiting.batches.append(part)
                waiting.rows += part.num_rows
                waiting.size_bytes += part.nbytes
                if waiting.rows >= ROW_GROUP_ROWS:
                    self._flush(values)
            self._relieve()

    def finish(self) -> Manifest:
        """Close every file, make it durable, and say what there is."""
        with sink_failures(self._sink, "finishing staged files"):
            for values in sorted(self._waiting, key=str):
                self._flush(values)
                self._close(values)
            for values in list(self._open):
                self._close(values)
            self._folder.sync(staged.path for staged in self._staged)
        rows = sum(staged.rows for staged in self._staged)
        size = sum(staged.size_bytes for staged in self._staged)
        return Manifest(self._sink, self._writer, rows, size, tuple(self._staged))

    def abort(self) -> None:
        """Remove what was written. What cannot be removed is invisible, and goes with the next VACUUM."""
        for file in self._open.values():
            with suppress(Exception):
                file.parquet.close()
            with suppress(Exception):
                file.raw.close()
        for path in [*(file.path for file in self._open.values()), *(staged.path for staged in self._staged)]:
            with suppress(Exception):
                self._folder.remove(path)
        self._waiting, self._open, self._staged = {}, {}, []

    def _relieve(self) -> None:
        held = sum(waiting.size_bytes for waiting in self._waiting.values())
        if held <= WAITING_BYTES:
            return
        for values in sorted(self._waiting, key=lambda v: self._waiting[v].size_bytes, reverse=True):
            if held <= WAITING_BYTES // 2:
                break
            held -= self._waiting[values].size_bytes
            self._flush(values)

    def _flush(self, values: PartitionValues) -> None:
        """Write what waits for some partition values as one row group."""
        waiting = self._waiting.pop(values, None)
        if waiting is None:
            return
        file = self._open.pop(values, None) or self._begin(values)
        self._open[values] = file  # last in order: the one used most recently
        table = pa.Table.from_batches(waiting.batches)
        file.with_nan |= leaves_with_nan(table, self._indexed)
        file.parquet.write_table(table, row_group_size=table.num_rows)

    def _begin(self, values: PartitionValues) -> _OpenFile:
        while len(self._open) >= OPEN_FILES:
            self._close(next(iter(self._open)))
        folder = folder_of(self._partition_by, values)
        path = f"{folder}/{self._name}-{self._files}.parquet".lstrip("/")
        self._files += 1
        raw = self._folder.open(path)
        footers: list[pq.FileMetaData] = []
        parquet = pq.ParquetWriter(
            raw,
            self._file_schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=self._dictionary_columns,
            store_schema=False,
            metadata_collector=footers,
        )
        return _OpenFile(path, raw, parquet, footers)

    def _close(self, values: PartitionValues) -> None:
        file = self._open.pop(values)
        file.parquet.close()
        size = file.raw.tell()
        file.raw.close()
        [footer] = file.footers
        statistics = file_statistics(footer, self._indexed, file.with_nan)
        self._staged.append(StagedFile(file.path, size, footer.num_rows, values, statistics))

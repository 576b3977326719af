"""One attempt of one slot: rows in, Parquet files with statistics out, invisible until the log names them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake.transaction import AddAction

from penstock.model import Manifest, Refusal, SlotAttempt
from penstock.sinks.delta.failures import sink_failures
from penstock.sinks.delta.stats import file_statistics, indexed
from penstock.sinks.evolution import cast_rows
from penstock.sinks.files import ParquetFiles, PartitionValues, TableFolder, folder_of, split_by_values
from penstock.sinks.files.leaves import leaves_of
from penstock.sinks.files.sizing import TARGET_FILE_BYTES


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
        target_file_bytes: int = TARGET_FILE_BYTES,
    ) -> None:
        self._sink = sink
        self._writer = writer
        self._schema = schema
        self._partition_by = tuple(partition_by)
        file_schema = pa.schema([f for f in schema if f.name not in self._partition_by])
        self._indexed = indexed(leaves_of(file_schema), indexed_columns)
        self.file_schema = file_schema
        self._files = ParquetFiles(folder, prefix, writer, file_schema, self._indexed, target_file_bytes)
        self._values: dict[str, PartitionValues] = {}

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Take some rows, in the types of the schema. Columns beyond it are left out."""
        with sink_failures(self._sink, "staging rows"):
            rows = cast_rows(rows, self._schema)
            for values, part in split_by_values(rows, self._partition_by):
                self.add(values, part)
        return ()

    def add(self, values: PartitionValues, part: pa.RecordBatch) -> None:
        """Take some rows of one partition, in the schema of its files."""
        folder = folder_of(self._partition_by, values)
        self._values[folder] = values
        self._files.add(folder, part)

    def finish(self) -> Manifest:
        """Close every file, make it durable, and say what there is."""
        with sink_failures(self._sink, "finishing staged files"):
            staged = tuple(
                StagedFile(
                    file.path,
                    file.size_bytes,
                    file.footer.num_rows,
                    self._values[file.folder],
                    file_statistics(file.footer, self._indexed, file.with_nan),
                )
                for file in self._files.finish()
            )
        size = sum(file.size_bytes for file in staged)
        return Manifest(self._sink, self._writer, sum(file.rows for file in staged), size, staged)

    def abort(self) -> None:
        """Remove what was written. What cannot be removed is invisible, and goes with the next VACUUM."""
        self._files.abort()

"""One attempt of one slot for an append: rows in, Parquet files with field ids and statistics out.

The rows that stay of a file, where others of it are replaced, are staged the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import (
    ArrowScan,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.typedef import Record

from penstock.model import COORDINATES, OffsetRange, Refusal, SlotAttempt
from penstock.model.stored_manifests import stored_as
from penstock.sinks.files import ParquetFiles, TableFolder
from penstock.sinks.files.stage import DataFileStage, StagedFile
from penstock.sinks.files.writer import TARGET_FILE_BYTES, WrittenParquet, leaves_of
from penstock.sinks.iceberg.failures import sink_failures
from penstock.sinks.iceberg.partitions import Layout, RowSplitter, Values
from penstock.sinks.iceberg.types import with_ids
from penstock.sinks.merging import refusals
from penstock.sinks.replacing import RangeReplacement, ranges_sql
from penstock.storage import Storage


@stored_as("iceberg file")
@dataclass(frozen=True, slots=True)
class StagedIcebergFile(StagedFile):
    """A file to be named in a manifest: the item of an Iceberg append."""

    values: Values
    statistics: Mapping[str, Any] = field(repr=False)

    def to_data_file(self, layout: Layout) -> DataFile:
        """The entry for the manifest."""
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{layout.data}/{self.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*self.values),
            file_size_in_bytes=self.size_bytes,
            sort_order_id=None,
            spec_id=layout.spec.spec_id,
            equality_ids=None,
            key_metadata=None,
            **self.statistics,
        )


class AppendStage(DataFileStage):
    """Implements `contracts.Stage`."""

    def __init__(
        self,
        sink: str,
        layout: Layout,
        prefix: str,
        writer: SlotAttempt,
        schema: pa.Schema,
        target_file_bytes: int = TARGET_FILE_BYTES,
        storage: Storage = Storage(),
    ) -> None:
        self.file_schema = with_ids(schema, layout.schema.as_struct())
        self._splitter = RowSplitter(layout.spec, layout.schema)
        self._plan = compute_statistics_plan(layout.schema, dict(layout.metrics))
        self._ids = parquet_path_to_id_mapping(layout.schema)
        watched = [leaf for leaf in leaves_of(self.file_schema) if leaf.names]
        folder = TableFolder(layout.data, storage)
        files = ParquetFiles(folder, prefix, writer, self.file_schema, watched, target_file_bytes)
        super().__init__(sink, writer, files, self.file_schema, sink_failures)

    def _place(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        rows, refused = self._refuse_nulls(rows)
        super()._place(rows)
        return refused

    def _split(self, rows: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        return self._splitter.split(rows)

    def _folder_name(self, values: Values) -> str:
        return self._splitter.folder(values)

    def _item(self, file: WrittenParquet, values: Values) -> StagedIcebergFile:
        return StagedIcebergFile(file.path, file.size_bytes, file.rows, values, self._statistics(file))

    def _refuse_nulls(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[Refusal]]:
        """A tombstone has nulls also in columns that no other record may lack."""
        required = [field.name for field in self._schema if not field.nullable]
        lacking = [name for name in required if rows.column(name).null_count]
        if not lacking:
            return rows, ()
        refused = reduce(pc.or_, [pc.is_null(rows.column(name)) for name in lacking])
        message = f"sink {self._sink}: the table requires {', '.join(lacking)}, which is null"
        return rows.filter(pc.invert(refused)), refusals(self._sink, rows.filter(refused), "SINK_ROW_REFUSED", message)

    def _statistics(self, file: WrittenParquet) -> dict[str, Any]:
        """The statistics of one file, from its footer. A bound that cannot be given exactly is left out."""
        try:
            found = data_file_statistics_from_parquet_metadata(file.footer, self._plan, self._ids).to_serialized_dict()
        except (OverflowError, ValueError):
            # A time beyond the years that Python knows: readers then look into the file instead.
            return {"record_count": file.rows}
        for leaf in file.with_nan:  # Parquet leaves NaN out of its bounds, SQL sorts it above all
            found["lower_bounds"].pop(self._ids[leaf.parquet_path], None)
            found["upper_bounds"].pop(self._ids[leaf.parquet_path], None)
        return found


class IcebergReplacement(RangeReplacement[Table, FileScanTask]):
    """Replaces rows of a table. `begin` opens a stage that writes data files of the table; reading needs none."""

    def __init__(
        self, ranges: Sequence[OffsetRange], begin: Callable[[SlotAttempt], AppendStage] | None = None
    ) -> None:
        super().__init__(ranges)
        self._stage = begin

    def _possible(self, table: Table, ranges: Sequence[OffsetRange]) -> Iterator[tuple[str, FileScanTask]]:
        condition = ranges_sql(ranges, lambda part: f"{COORDINATES}.{part}")
        for task in table.scan(row_filter=condition).plan_files():
            yield task.file.file_path, task

    def _coordinates(self, table: Table, file: FileScanTask) -> Iterator[pa.StructArray]:
        yield from (rows.column(0) for rows in _read(table, table.schema().select(COORDINATES), file))

    def _rows(self, table: Table, file: FileScanTask) -> Iterator[pa.RecordBatch]:
        yield from _read(table, table.schema(), file)

    def _begin(self, table: Table, writer: SlotAttempt) -> AppendStage:
        assert self._stage is not None
        return self._stage(writer)


def _read(table: Table, columns: Schema, file: FileScanTask) -> Iterator[pa.RecordBatch]:
    yield from ArrowScan(table.metadata, table.io, columns, AlwaysTrue()).to_record_batches([file])

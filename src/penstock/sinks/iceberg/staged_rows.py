"""One attempt of one slot for a commit through Spark: rows in, plain Parquet files next to the table out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.config.sinks import PartitionText
from penstock.model import MergeRules, Refusal, SlotAttempt
from penstock.model.stored_manifests import stored_as
from penstock.sinks.files import ParquetFiles, TableFolder
from penstock.sinks.files.stage import RowsStage, StagedFile
from penstock.sinks.files.writer import WrittenParquet
from penstock.sinks.iceberg.bounds import Bounds, bounds_of
from penstock.sinks.iceberg.failures import sink_failures
from penstock.sinks.iceberg.partitions import refuse_long_values


@stored_as("iceberg rows")
@dataclass(frozen=True, slots=True)
class StagedIcebergRows(StagedFile):
    """A file for Spark to read: the item of a merge."""

    bounds: Mapping[str, Bounds] = field(repr=False)


class IcebergRowsStage(RowsStage):
    """Implements `contracts.Stage`."""

    def __init__(
        self,
        sink: str,
        folder: TableFolder,
        prefix: str,
        writer: SlotAttempt,
        schema: pa.Schema,
        rules: MergeRules,
        partition_by: Sequence[PartitionText],
    ) -> None:
        schema = pa.schema([each.with_nullable(True) for each in schema])  # a tombstone has its keys alone
        super().__init__(sink, writer, ParquetFiles(folder, prefix, writer, schema), schema, rules.keys, sink_failures)
        self._partition_by = tuple(partition_by)
        self._bounded = {*rules.keys, *rules.prune_by}
        self._bounds: dict[str, Bounds] = {}

    def _refuse(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Refusal]]:
        return refuse_long_values(self._sink, rows, self._partition_by)

    def _items(self, written: Sequence[WrittenParquet]) -> tuple[object, ...]:
        return tuple(StagedIcebergRows(file.path, file.size_bytes, file.rows, dict(self._bounds)) for file in written)

    def _note_bounds(self, rows: pa.RecordBatch) -> None:
        for name in list(self._bounded):
            bounds, known = bounds_of(rows, name), self._bounds.pop(name, None)
            if bounds is None:
                self._bounded.remove(name)  # bounds of only some of the rows would miss the others
            else:
                self._bounds[name] = bounds if known is None else known.joined(bounds)

"""One attempt of one slot for a commit through Spark: rows in, plain Parquet files beside the table's out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.config.sinks import PartitionText
from penstock.model import Manifest, MergeRules, Refusal, SlotAttempt
from penstock.sinks.evolution import cast_rows
from penstock.sinks.files import ParquetFiles, TableFolder
from penstock.sinks.iceberg.bounds import Bounds, bounds_of
from penstock.sinks.iceberg.failures import sink_failures
from penstock.sinks.iceberg.partitions import refuse_long_values
from penstock.sinks.merging import refuse_null_keys


@dataclass(frozen=True, slots=True)
class StagedRows:
    """A file for Spark to read: the item of a merge."""

    path: str
    size_bytes: int
    rows: int
    bounds: Mapping[str, Bounds] = field(repr=False)


class RowsStage:
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
        self._sink = sink
        self._writer = writer
        self._schema = pa.schema([each.with_nullable(True) for each in schema])  # a tombstone has its keys alone
        self._keys = rules.keys
        self._partition_by = tuple(partition_by)
        self._bounded = {*rules.keys, *rules.prune_by}
        self._bounds: dict[str, Bounds] = {}
        self._files = ParquetFiles(folder, prefix, writer, self._schema)

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Take some rows; those that no merge could find again, or place, are given back."""
        with sink_failures(self._sink, "staging rows"):
            rows, refused = refuse_null_keys(self._sink, cast_rows(rows, self._schema), self._keys)
            rows, unfit = refuse_long_values(self._sink, rows, self._partition_by)
            if rows.num_rows:
                self._widen(rows)
                self._files.add("", rows)
        return [*refused, *unfit]

    def finish(self) -> Manifest:
        """Close the files, make them durable, and say what there is."""
        with sink_failures(self._sink, "finishing staged files"):
            staged = tuple(
                StagedRows(file.path, file.size_bytes, file.footer.num_rows, dict(self._bounds))
                for file in self._files.finish()
            )
        size = sum(file.size_bytes for file in staged)
        return Manifest(self._sink, self._writer, sum(file.rows for file in staged), size, staged)

    def abort(self) -> None:
        """Remove what was written. What cannot be removed is invisible, as everything staged is."""
        self._files.abort()

    def _widen(self, rows: pa.RecordBatch) -> None:
        for name in list(self._bounded):
            bounds, known = bounds_of(rows, name), self._bounds.pop(name, None)
            if bounds is None:
                self._bounded.remove(name)  # a bound of some of the rows would be none
            else:
                self._bounds[name] = bounds if known is None else known.joined(bounds)

"""One attempt of one slot: rows in, Parquet files with statistics out, invisible until the log names them.

The statistics are the JSON text that Spark and delta-rs skip files by. They are taken from the Parquet footer, so they
cost no second pass. A bound that cannot be given exactly or rounded outward is left out: a missing bound reads a file
too many, a wrong one loses rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as types

from penstock.model import SlotAttempt
from penstock.model.stored_manifests import stored_as
from penstock.sinks.arrow_types import is_text
from penstock.sinks.delta.failures import sink_failures
from penstock.sinks.files import ParquetFiles, PartitionValues, TableFolder, folder_of, split_by_values
from penstock.sinks.files.stage import DataFileStage, StagedFile
from penstock.sinks.files.writer import TARGET_FILE_BYTES, Leaf, WrittenParquet, leaves_of

INDEXED_COLUMNS = 32
"""How many leaf columns get statistics when the table does not say (Delta's own default)."""

_PREFIX = 32
_LAST_CHARACTER = "\U0010ffff"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def indexed(leaves: Sequence[Leaf], limit: int = INDEXED_COLUMNS) -> list[Leaf]:
    """The leaves that get statistics: the first `limit`, those inside lists and maps left out. -1 is all."""
    return [leaf for leaf in (leaves if limit < 0 else leaves[:limit]) if leaf.names]


def file_statistics(footer: pq.FileMetaData, leaves: Iterable[Leaf], with_nan: Collection[Leaf]) -> str:
    """The statistics of one file as Delta's JSON."""
    minimums: dict[str, object] = {}
    maximums: dict[str, object] = {}
    nulls: dict[str, object] = {}
    for leaf in leaves:
        groups = [footer.row_group(group).column(leaf.column) for group in range(footer.num_row_groups)]
        statistics = [(group.statistics, group.num_values) for group in groups]
        if all(s is not None and s.has_null_count for s, _ in statistics):
            _put(nulls, leaf.names, sum(s.null_count for s, _ in statistics))
        else:
            continue
        valued = [s for s, values in statistics if s.null_count < values]
        if not valued or leaf in with_nan or not all(s.has_min_max for s in valued):
            continue
        _put(minimums, leaf.names, _lower(leaf.type, min(_raw(leaf.type, s)[0] for s in valued)))
        _put(maximums, leaf.names, _upper(leaf.type, max(_raw(leaf.type, s)[1] for s in valued)))
    return _to_json({"numRecords": footer.num_rows, "minValues": minimums, "maxValues": maximums, "nullCount": nulls})


def _raw(kind: pa.DataType, statistics: pq.Statistics) -> tuple[Any, Any]:
    # Times as plain integers: years beyond 9999 have no Python value. Text as bytes: these sort as Delta
    # sorts text. Decimals alone need their scale.
    return (statistics.min, statistics.max) if types.is_decimal(kind) else (statistics.min_raw, statistics.max_raw)


def _lower(kind: pa.DataType, value: object) -> object:
    if isinstance(value, bytes) and is_text(kind):
        return value.decode()[:_PREFIX]
    if isinstance(value, int) and types.is_timestamp(kind):
        return _timestamp(kind, value // 1000)
    return _exact(kind, value)


def _upper(kind: pa.DataType, value: object) -> object:
    if isinstance(value, bytes) and is_text(kind):
        return _above(value.decode())
    if isinstance(value, int) and types.is_timestamp(kind):
        return _timestamp(kind, -(-value // 1000))
    return _exact(kind, value)


def _above(text: str) -> str | None:
    """The text, or a prefix of it followed by the last of all characters: an upper bound."""
    for cut in range(_PREFIX, len(text)):
        if text[cut] != _LAST_CHARACTER:
            return text[:cut] + _LAST_CHARACTER
    return text if len(text) <= _PREFIX else None


def _timestamp(kind: pa.DataType, milliseconds: int) -> str | None:
    # Delta keeps milliseconds only: lower bounds are floored before this, upper ones rounded up.
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    zone = "Z" if kind.tz else ""
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}{zone}"


def _exact(kind: pa.DataType, value: object) -> object:
    if types.is_boolean(kind) or isinstance(value, bytes):
        return None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and types.is_date(kind):
        return _date(value)
    return value


def _date(days: int) -> str | None:
    try:
        return (_EPOCH + timedelta(days=days)).date().isoformat()
    except OverflowError:
        return None


def _put(tree: dict[str, object], names: Sequence[str], value: object) -> None:
    if value is None:
        return
    for name in names[:-1]:
        branch = tree.setdefault(name, {})
        assert isinstance(branch, dict)
        tree = branch
    tree[names[-1]] = value


def _to_json(value: object) -> str:
    """JSON with every digit of a decimal, which `json.dumps` cannot write."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_to_json(item)}" for name, item in value.items()) + "}"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value)


@stored_as("delta file")
@dataclass(frozen=True, slots=True)
class StagedDeltaFile(StagedFile):
    """A file to be named in the log: the item of a Delta manifest."""

    partition_values: PartitionValues
    statistics: str


class DeltaStage(DataFileStage):
    """Implements `contracts.Stage`. Columns beyond the schema are left out."""

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
        self._partition_by = tuple(partition_by)
        self.file_schema = pa.schema([f for f in schema if f.name not in self._partition_by])
        self._indexed = indexed(leaves_of(self.file_schema), indexed_columns)
        files = ParquetFiles(folder, prefix, writer, self.file_schema, self._indexed, target_file_bytes)
        super().__init__(sink, writer, files, schema, sink_failures)

    def _split(self, rows: pa.RecordBatch) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
        return split_by_values(rows, self._partition_by)

    def _folder_name(self, values: PartitionValues) -> str:
        return folder_of(self._partition_by, values)

    def _item(self, file: WrittenParquet, values: PartitionValues) -> StagedDeltaFile:
        statistics = file_statistics(file.footer, self._indexed, file.with_nan)
        return StagedDeltaFile(file.path, file.size_bytes, file.rows, values, statistics)

"""Records that were taken out of their topics, kept in one Parquet file and read by their offsets as if still there.

The file has a row group for each partition of each batch, so that a task reads what its ranges ask for and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from penstock.model import RAW_SCHEMA, OffsetRange

_ROWS_AT_ONCE = 20_000
_RANGES_AT_ONCE = 200


@dataclass(frozen=True)
class StoredReader:
    """Implements `contracts.Reader` over a file that `store` wrote. In a task the path must lead there too."""

    path: str

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """Yield the stored records that lie in `ranges`, in order within each partition."""
        for batch in self._batches(ranges, RAW_SCHEMA.names):
            yield pa.RecordBatch.from_arrays(
                [column.cast(field.type) for column, field in zip(batch.columns, RAW_SCHEMA, strict=True)],
                schema=RAW_SCHEMA,
            )

    def columns(self, ranges: Sequence[OffsetRange], names: Sequence[str]) -> pa.Table:
        """Some columns of the records that lie in `ranges`, also those that are not the record's own."""
        schema = pa.schema([self._file.schema.field(name) for name in names])
        return pa.Table.from_batches(self._batches(ranges, names), schema)

    def _batches(self, ranges: Sequence[OffsetRange], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        wanted = sorted(r for r in ranges if len(r))
        for start in range(0, len(wanted), _RANGES_AT_ONCE):
            inside = reduce(or_, map(_inside, wanted[start : start + _RANGES_AT_ONCE]))
            # With Arrow's own threads a process may abort at its exit, after all went well.
            found = self._file.to_batches(
                columns=list(names), filter=inside, batch_size=_ROWS_AT_ONCE, use_threads=False
            )
            yield from (batch for batch in found if batch.num_rows)

    @property
    def _file(self) -> Any:
        return ds.dataset(self.path, format="parquet")


def store(path: Path, schema: pa.Schema, groups: Iterable[pa.Table]) -> None:
    """Write records, a row group for each table; those of one partition are in order."""
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        for group in groups:
            file.write_table(group, row_group_size=max(1, group.num_rows))


def _inside(one: OffsetRange) -> Any:
    offset = pc.field("offset")
    at = (pc.field("topic") == one.topic) & (pc.field("partition") == one.partition)
    return at & (offset >= one.start) & (offset < one.end)

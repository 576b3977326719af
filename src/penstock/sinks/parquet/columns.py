"""The columns of all files of a target, kept in its `_common_metadata`, and what may be added to them.

`_common_metadata` is a Parquet footer without rows: Spark takes the columns of the whole folder from it, so new
columns are seen without `mergeSchema`. Readers that do not know it (pyarrow, DuckDB) take the columns of the first
file unless they are configured to union them. A column never changes its type: readers could not join the files; a
narrower one is cast to it.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.sinks.evolution import Fit, Fitting, check_names, check_partitions, union
from penstock.sinks.failures import mismatch
from penstock.sinks.files import check_partition_columns

COMMON_METADATA = "_common_metadata"
BATCH_COLUMN = "penstock_batch"
PARTITION_COLUMNS = b"penstock.partition_columns"
"""The key in the footer's metadata that holds the schema of the partition columns, as base64 of Arrow's form."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns inside the files, and those in the names of the folders, in their order."""

    files: pa.Schema
    partitions: pa.Schema

    @classmethod
    def of(cls, schema: pa.Schema, partition_by: Sequence[str]) -> Columns:
        """The columns of rows that are partitioned so."""
        inside = [field for field in schema if field.name not in partition_by]
        return cls(pa.schema(inside), pa.schema([schema.field(name) for name in partition_by]))

    @property
    def all(self) -> pa.Schema:
        """Both, those inside the files first."""
        return pa.schema([*self.files, *self.partitions])

    @classmethod
    def from_footer(cls, footer: bytes) -> Columns | None:
        """The columns in the content of `_common_metadata`; none where Penstock did not write it."""
        files = pq.read_schema(pa.BufferReader(footer))
        partitions = (files.metadata or {}).get(PARTITION_COLUMNS)
        if partitions is None:
            return None
        held = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(partitions)))
        return cls(files.remove_metadata(), held)

    def to_footer(self) -> bytes:
        """The columns as the content of `_common_metadata`."""
        partitions = base64.b64encode(self.partitions.serialize().to_pybytes())
        written = io.BytesIO()
        pq.write_metadata(self.files.with_metadata({PARTITION_COLUMNS: partitions}), written)
        return written.getvalue()


def check_columns(sink: str, schema: pa.Schema, partition_by: Sequence[str]) -> Columns:
    """The columns of the rows; refused where no folder of Parquet files can hold them as they are."""
    if BATCH_COLUMN in (name.lower() for name in schema.names):
        raise mismatch(sink, f"the column {BATCH_COLUMN} is the name of the batches", {"columns": schema.names})
    check_names(sink, schema, "Spark")
    check_partition_columns(sink, schema, partition_by, "files")
    columns = Columns.of(schema, partition_by)
    try:
        columns.to_footer()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise mismatch(sink, "a column of a type that Parquet does not have", {"type": error}) from error
    return columns


def fit_columns(sink: str, mine: Columns, held: Columns) -> Fit:
    """How rows with these columns go into the target. Refused where its files could not be read with theirs."""
    check_partitions(sink, mine.partitions.names, held.partitions.names, "folder")
    return fitting(sink).fit(mine.all, held.all, whole=False)


def fitting(sink: str) -> Fitting:
    """The rules for rows and the target's columns: files have columns of their own, so new ones may always be added."""
    return Fitting(sink, "add_columns", what="the folder")


def merge_columns(sink: str, mine: Columns, held: Columns) -> Columns:
    """The columns of the target once it has these rows too."""
    merged = union(list(held.all), list(fit_columns(sink, mine, held).taken), loosen=True)
    inside = [field for field in merged if field.name not in held.partitions.names]
    return Columns(pa.schema(inside), held.partitions)

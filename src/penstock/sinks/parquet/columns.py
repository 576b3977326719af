"""The columns of all files of a target, kept in its `_common_metadata`, and what may be added to them.

`_common_metadata` is a Parquet footer without rows: Spark takes the columns of the whole folder from it, so new
columns are seen without `mergeSchema`. Readers that do not know it (pyarrow, DuckDB) take the columns of the first
file unless they are told to join them all. A column never changes its type: readers could not join the files; a
narrower one is cast to it.
"""

from __future__ import annotations

import base64
import fcntl
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as types

from penstock.sinks.evolution import wide_enough
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
    def read(cls, root: Path, name: str = COMMON_METADATA) -> Columns | None:
        """The columns of the target, or none where it is no target of ours."""
        try:
            return cls.from_footer((root / name).read_bytes())
        except FileNotFoundError:
            return None

    @classmethod
    def from_footer(cls, footer: bytes) -> Columns | None:
        """The columns in the content of `_common_metadata`; none where a sink of ours did not write it."""
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
    folded = [name.lower() for name in [*schema.names, BATCH_COLUMN]]
    twice = sorted({name for name in folded if folded.count(name) > 1})
    if BATCH_COLUMN in twice:
        raise mismatch(sink, f"the column {BATCH_COLUMN} is the name of the batches", {"columns": schema.names})
    if twice:
        raise mismatch(sink, "columns that differ in case only, which Spark takes for one", {"columns": twice})
    check_partition_columns(sink, schema, partition_by, "files")
    columns = Columns.of(schema, partition_by)
    try:
        columns.to_footer()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise mismatch(sink, "a column of a type that Parquet does not have", {"type": error}) from error
    return columns


def merge_columns(sink: str, mine: Columns, held: Columns) -> Columns:
    """The columns of the target once it has these rows too. Refused where it holds them otherwise."""
    if mine.partitions.names != held.partitions.names:
        facts = {
            "pipeline": ", ".join(mine.partitions.names) or "none",
            "table": ", ".join(held.partitions.names) or "none",
        }
        raise mismatch(sink, "the files are partitioned otherwise", facts, "set partition_by as in the files")
    differing: dict[str, str] = {}
    files = _merge_fields("", list(mine.files), list(held.files), differing)
    _merge_fields("", list(mine.partitions), list(held.partitions), differing)
    if differing:
        hint = "cast the column in the pipeline, or write to another path"
        raise mismatch(sink, "the files have other columns", differing, hint)
    return Columns(pa.schema(files), held.partitions)


def beside(root: Path) -> Path:
    """The folder for what readers must not see: beside the target, so that what is in it can be renamed into it."""
    return root.parent / f".{root.name}.penstock"


@contextmanager
def changing(root: Path) -> Iterator[None]:
    """Make the folders, and keep other pipelines from changing the target's columns meanwhile."""
    for folder in (root, beside(root)):
        folder.mkdir(parents=True, exist_ok=True)
    with (beside(root) / "lock").open("wb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_columns(root: Path, columns: Columns, name: str = COMMON_METADATA) -> None:
    """Replace the file with the columns, whole at every moment. Only inside `changing`."""
    written = beside(root) / name
    with written.open("wb") as file:
        file.write(columns.to_footer())
        file.flush()
        os.fsync(file.fileno())
    written.rename(root / name)


def _merge_fields(
    path: str, mine: Sequence[pa.Field], held: Sequence[pa.Field], differing: dict[str, str]
) -> list[pa.Field]:
    """The fields of both, null where either side may lack them; where they contradict it is noted."""
    ours = {field.name.lower(): field for field in mine}
    theirs = {field.name.lower() for field in held}
    merged = []
    for its in held:
        name = f"{path}{its.name}"
        field = ours.get(its.name.lower())
        if field is None:
            merged.append(its.with_nullable(True))
        elif field.name != its.name:
            differing[name] = f"pipeline {field.name}, table {its.name}"
        else:
            kind = _merge_types(name, field.type, its.type, differing)
            merged.append(pa.field(its.name, kind, field.nullable or its.nullable))
    return merged + [field.with_nullable(True) for field in mine if field.name.lower() not in theirs]


def _merge_types(name: str, mine: pa.DataType, held: pa.DataType, differing: dict[str, str]) -> pa.DataType:
    if types.is_struct(mine) and types.is_struct(held):
        return pa.struct(_merge_fields(f"{name}.", list(mine), list(held), differing))
    if types.is_list(mine) and types.is_list(held):
        nullable = mine.value_field.nullable or held.value_field.nullable
        kind = _merge_types(f"{name}.element", mine.value_type, held.value_type, differing)
        return pa.list_(pa.field("element", kind, nullable))
    if types.is_map(mine) and types.is_map(held):
        key = _merge_types(f"{name}.key", mine.key_type, held.key_type, differing)
        return pa.map_(key, _merge_types(f"{name}.value", mine.item_type, held.item_type, differing))
    if mine != held and wide_enough(held, mine) != held:
        differing[name] = f"pipeline {mine}, table {held}"
    return held

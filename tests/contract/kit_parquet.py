"""Parquet files in the contract suite, read back by pyarrow as a Hive-partitioned folder."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.contract.faults import lose_answer, overtake
from tests.contract.kits import Evolve, Rows, files_below

from penstock.model import MergeRules
from penstock.sinks.parquet import ParquetSink
from penstock.sinks.parquet.sink import FolderSink


class ParquetKit:
    commits_in_task = False
    partitions = True
    evolves = False
    widens = False
    merges = False
    replaces = False
    kind: type[FolderSink] = ParquetSink
    commits_by = "_rename"
    """What makes a batch visible."""

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self.path = folder / "files"

    def sink(
        self,
        pipeline: str = "orders",
        name: str = "out",
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        rules: MergeRules | None = None,
    ) -> FolderSink:
        return self.kind(pipeline, name, str(self.path), partition_by=partition_by, keep_coordinates=keep_coordinates)

    def sink_losing_answer(self, *, landed: bool) -> FolderSink:
        sink = self.sink()
        lose_answer(sink._place, self.commits_by, landed=landed)
        return sink

    def sink_overtaken(self, overtaking: Callable[[], None]) -> FolderSink:
        sink = self.sink()
        overtake(sink._place, self.commits_by, overtaking)
        return sink

    def rows(self) -> Rows:
        return read_folder(str(self.path))

    def staged(self) -> set[str]:
        return {path.name for path in self.path.parent.rglob("*.parquet")}

    def trace(self) -> object:
        return files_below(self.path.parent)


def read_folder(path: str, filesystem: Any = None) -> Rows:
    """The rows. Partition values are taken as the text of the folder's name, and then cast."""
    columns = pq.read_schema(f"{path}/_common_metadata", filesystem=filesystem)
    partitions = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(columns.metadata[b"penstock.partition_columns"])))
    texts = pa.schema([pa.field(name, pa.string()) for name in partitions.names])
    hive = ds.partitioning(texts.insert(0, pa.field("penstock_batch", pa.string())), flavor="hive")
    schema = pa.schema([*columns, *texts])
    files = ds.dataset(path, schema, format="parquet", partitioning=hive, filesystem=filesystem)
    table = files.to_table(use_threads=False)
    return list(table.cast(pa.schema([*columns, *partitions])).to_pylist())

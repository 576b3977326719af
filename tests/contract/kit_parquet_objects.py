"""Parquet files in an object store, in the contract suite, read back by Arrow's own client as a folder."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.contract.faults import lose_answer, overtake
from tests.contract.kit_parquet import ParquetKit
from tests.contract.kits import Evolve, Rows

from penstock.model import MergeRules
from penstock.sinks.parquet import ParquetSink


class ParquetObjectsKit(ParquetKit):
    def __init__(self, folder: Path, request: pytest.FixtureRequest, store: str) -> None:
        self.server = request.getfixturevalue(store)
        self.bucket = self.server.bucket()

    def sink(
        self,
        pipeline: str = "orders",
        name: str = "out",
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        rules: MergeRules | None = None,
    ) -> ParquetSink:
        return ParquetSink(
            pipeline,
            name,
            self.server.uri(self.bucket, "lake/files"),
            partition_by=partition_by,
            keep_coordinates=keep_coordinates,
            storage=self.server.storage,
        )

    def sink_losing_answer(self, *, landed: bool) -> ParquetSink:
        sink = self.sink()
        lose_answer(sink._batches, "put_manifest", landed=landed)
        return sink

    def sink_overtaken(self, overtaking: Callable[[], None]) -> ParquetSink:
        sink = self.sink()
        overtake(sink._batches, "put_manifest", overtaking)
        return sink

    def rows(self) -> Rows:
        path, store = f"{self.bucket}/lake/files", self.server.arrow()
        columns = pq.read_schema(f"{path}/_common_metadata", filesystem=store)
        partitions = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(columns.metadata[b"penstock.partition_columns"])))
        texts = pa.schema([pa.field(name, pa.string()) for name in partitions.names])
        hive = ds.partitioning(texts.insert(0, pa.field("penstock_batch", pa.string())), flavor="hive")
        schema = pa.schema([*columns, *texts])
        files = ds.dataset(path, schema, format="parquet", partitioning=hive, filesystem=store)
        table = files.to_table(use_threads=False)
        return list(table.cast(pa.schema([*columns, *partitions])).to_pylist())

    def staged(self) -> set[str]:
        return {key.rpartition("/")[2] for key in self.server.keys(self.bucket) if key.endswith(".parquet")}

"""Delta append in an object store, in the contract suite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.contract.kit_delta import DeltaKit
from tests.contract.kits import Evolve, Rows

from penstock.model import MergeRules
from penstock.sinks import DeltaSink


class DeltaObjectsKit(DeltaKit):
    def __init__(self, folder: Path, request: pytest.FixtureRequest, store: str) -> None:
        self.server = request.getfixturevalue(store)
        self.bucket = self.server.bucket()
        self.uri = self.server.uri(self.bucket, "lake/table")

    def sink(
        self,
        pipeline: str = "orders",
        name: str = "out",
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        rules: MergeRules | None = None,
    ) -> DeltaSink:
        return DeltaSink(pipeline, name, self.uri, partition_by, evolve, keep_coordinates, self.server.storage)

    def rows(self) -> Rows:
        table = DeltaTable(self.uri, storage_options=self.server.storage.for_delta())
        found = QueryBuilder().register("held", table).execute("SELECT * FROM held")
        return list(pa.RecordBatchReader.from_stream(found).read_all().to_pylist())

    def staged(self) -> set[str]:
        return _parquet(self.server.keys(self.bucket))

    def trace(self) -> object:
        return sorted(self.server.keys(self.bucket))


def _parquet(keys: Sequence[str]) -> set[str]:
    return {key.rpartition("/")[2] for key in keys if key.endswith(".parquet") and "_delta_log" not in key}

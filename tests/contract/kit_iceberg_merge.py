"""Iceberg merge in the contract suite: written by Spark, read by pyiceberg."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.contract.kit_iceberg import TABLE, LosingAnswer, Overtaken, open_table
from tests.contract.kits import Evolve, Rows

from penstock.contracts import SqlEngine
from penstock.model import MergeRules
from penstock.sinks.iceberg import IcebergCatalog, IcebergSink
from penstock.spark.sql import SparkSql

BY_ID = MergeRules(keys=("id",))


class IcebergMergeKit:
    commits_in_task = False
    partitions = True
    evolves = True
    merges = True

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self.warehouse = folder / "warehouse"
        self.engine: SqlEngine = SparkSql(request.getfixturevalue("spark"))

    def sink(
        self,
        pipeline: str = "orders",
        name: str = "out",
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        rules: MergeRules | None = None,
    ) -> IcebergSink:
        sink = IcebergSink(
            pipeline,
            name,
            TABLE,
            str(self.warehouse),
            catalog=IcebergCatalog(),
            rules=rules or BY_ID,
            partition_by=partition_by,
            evolve=evolve,
            keep_coordinates=keep_coordinates,
        )
        sink.use(self.engine)
        return sink

    def sink_losing_answer(self, *, landed: bool) -> IcebergSink:
        sink = LosingAnswer(self.warehouse, landed=landed, rules=BY_ID)
        sink.use(self.engine)
        return sink

    def sink_overtaken(self, overtake: Callable[[], None]) -> IcebergSink:
        sink = Overtaken(self.warehouse, overtake=overtake, rules=BY_ID)
        sink.use(self.engine)
        return sink

    def rows(self) -> Rows:
        return list(open_table(self.warehouse).scan().to_arrow().to_pylist())

    def staged(self) -> set[str]:
        return {path.name for path in self.warehouse.rglob("*.parquet")}

"""Iceberg append in the contract suite, in the embedded catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from tests.contract.faults import lose_answer, overtake
from tests.contract.kits import Evolve, Rows, files_below

from penstock.model import MergeRules
from penstock.sinks.iceberg import IcebergCatalog, IcebergSink

TABLE = "shop.orders"


class IcebergKit:
    commits_in_task = False
    partitions = True
    evolves = True
    widens = True
    merges = False
    replaces = True

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self.warehouse = folder / "warehouse"

    def sink(
        self,
        pipeline: str = "orders",
        name: str = "out",
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        rules: MergeRules | None = None,
    ) -> IcebergSink:
        return IcebergSink(
            pipeline,
            name,
            TABLE,
            str(self.warehouse),
            catalog=IcebergCatalog(),
            rules=rules,
            partition_by=partition_by,
            evolve=evolve,
            keep_coordinates=keep_coordinates,
        )

    def sink_losing_answer(self, *, landed: bool) -> IcebergSink:
        sink = self.sink()
        lose_answer(sink, "_commit_snapshot", landed=landed)
        return sink

    def sink_overtaken(self, overtaking: Callable[[], None]) -> IcebergSink:
        sink = self.sink()
        overtake(sink, "_commit_snapshot", overtaking)
        return sink

    def rows(self) -> Rows:
        return list(open_table(self.warehouse).scan().to_arrow().to_pylist())

    def staged(self) -> set[str]:
        return {path.name for path in self.warehouse.rglob("*.parquet")}

    def trace(self) -> object:
        return files_below(self.warehouse.parent)


def open_table(warehouse: Path) -> Table:
    """The table by a reader of its own."""
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=f"file://{warehouse}")
    return catalog.load_table(TABLE)

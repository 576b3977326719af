"""Iceberg append in the contract suite, in the embedded catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from tests.contract.kits import Evolve, Rows

from penstock.model import BatchToken, MergeRules
from penstock.sinks.iceberg import IcebergCatalog, IcebergSink

TABLE = "shop.orders"


class IcebergKit:
    commits_in_task = False
    partitions = True
    evolves = True
    merges = False

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
            partition_by=partition_by,
            evolve=evolve,
            keep_coordinates=keep_coordinates,
        )

    def sink_losing_answer(self, *, landed: bool) -> IcebergSink:
        return LosingAnswer(self.warehouse, landed=landed)

    def sink_overtaken(self, overtake: Callable[[], None]) -> IcebergSink:
        return Overtaken(self.warehouse, overtake=overtake)

    def rows(self) -> Rows:
        return list(open_table(self.warehouse).scan().to_arrow().to_pylist())

    def staged(self) -> set[str]:
        return {path.name for path in self.warehouse.rglob("*.parquet")}


def open_table(warehouse: Path) -> Table:
    """The table by a reader of its own."""
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=f"file://{warehouse}")
    return catalog.load_table(TABLE)


class LosingAnswer(IcebergSink):
    """Its first commit ends in an error: after it landed, or before."""

    def __init__(self, warehouse: Path, *, landed: bool, rules: MergeRules | None = None) -> None:
        super().__init__("orders", "out", TABLE, str(warehouse), catalog=IcebergCatalog(), rules=rules)
        self._landed = landed
        self._lost = False

    def _land(self, token: BatchToken, items: Sequence[object], seen: Table) -> None:
        if self._lost:
            super()._land(token, items, seen)
            return
        self._lost = True
        if self._landed:
            super()._land(token, items, seen)
        raise ConnectionResetError("the answer is lost")


class Overtaken(IcebergSink):
    """Calls `overtake` between its look at the table and its first commit."""

    def __init__(self, warehouse: Path, *, overtake: Callable[[], None], rules: MergeRules | None = None) -> None:
        super().__init__("orders", "out", TABLE, str(warehouse), catalog=IcebergCatalog(), rules=rules)
        self._overtake: Callable[[], None] | None = overtake

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_overtake": None}

    def _land(self, token: BatchToken, items: Sequence[object], seen: Table) -> None:
        overtake, self._overtake = self._overtake, None
        if overtake is not None:
            overtake()
        super()._land(token, items, seen)

"""Delta append in the contract suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.contract.faults import lose_answer, overtake
from tests.contract.kits import Evolve, Rows, files_below
from tests.tables import read_table

from penstock.model import MergeRules
from penstock.sinks import DeltaSink


class DeltaKit:
    commits_in_task = False
    partitions = True
    evolves = True
    widens = False
    merges = False
    replaces = True

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self.path = folder / "table"

    def sink(
        self,
        pipeline: str = "orders",
        name: str = "out",
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        rules: MergeRules | None = None,
    ) -> DeltaSink:
        return DeltaSink(pipeline, name, str(self.path), partition_by, evolve, keep_coordinates)

    def sink_losing_answer(self, *, landed: bool) -> DeltaSink:
        sink = self.sink()
        lose_answer(sink, "_append", landed=landed)
        return sink

    def sink_overtaken(self, overtaking: Callable[[], None]) -> DeltaSink:
        sink = self.sink()
        overtake(sink, "_append", overtaking)
        return sink

    def rows(self) -> Rows:
        table: pa.Table = read_table(self.path)
        return list(table.to_pylist())

    def staged(self) -> set[str]:
        return {path.name for path in self.path.rglob("*.parquet") if "_delta_log" not in path.parts}

    def trace(self) -> object:
        return files_below(self.path.parent)

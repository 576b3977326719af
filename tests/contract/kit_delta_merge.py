"""Delta merge in the driver, by delta-rs, in the contract suite. It needs no Spark: it is given none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.contract.kits import Evolve, Rows
from tests.tables import read_table

from penstock.model import MergeRules
from penstock.sinks.delta import DeltaMergeSink

BY_ID = MergeRules(keys=("id",))


class DeltaMergeKit:
    commits_in_task = False
    partitions = True
    evolves = True
    merges = True

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
    ) -> DeltaMergeSink:
        return DeltaMergeSink(
            pipeline,
            name,
            str(self.path),
            rules or BY_ID,
            partition_by=partition_by,
            evolve=evolve,
            keep_coordinates=keep_coordinates,
        )

    def sink_losing_answer(self, *, landed: bool) -> DeltaMergeSink:
        return _LosingAnswer(self.path, landed=landed)

    def sink_overtaken(self, overtake: Callable[[], None]) -> DeltaMergeSink:
        return _Overtaken(self.path, overtake=overtake)

    def rows(self) -> Rows:
        table: pa.Table = read_table(self.path)
        return list(table.to_pylist())

    def staged(self) -> set[str]:
        return {path.name for path in self.path.rglob("*.parquet") if "_delta_log" not in path.parts}


class _LosingAnswer(DeltaMergeSink):
    def __init__(self, path: Path, *, landed: bool) -> None:
        super().__init__("orders", "out", str(path), BY_ID)
        self._landed = landed
        self._lost = False

    def _merge(self, *given: Any) -> None:
        if self._lost:
            super()._merge(*given)
            return
        self._lost = True
        if self._landed:
            super()._merge(*given)
        raise ConnectionResetError("the answer is lost")


class _Overtaken(DeltaMergeSink):
    def __init__(self, path: Path, *, overtake: Callable[[], None]) -> None:
        super().__init__("orders", "out", str(path), BY_ID)
        self._overtake: Callable[[], None] | None = overtake

    def _merge(self, *given: Any) -> None:
        overtake, self._overtake = self._overtake, None
        if overtake is not None:
            overtake()
        super()._merge(*given)

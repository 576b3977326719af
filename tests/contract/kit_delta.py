"""Delta append in the contract suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.contract.kits import Evolve, Rows
from tests.tables import read_table

from penstock.model import BatchToken, MergeRules
from penstock.sinks import DeltaSink


class DeltaKit:
    commits_in_task = False
    partitions = True
    evolves = True
    merges = False

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
        return _LosingAnswer(self.path, landed=landed)

    def sink_overtaken(self, overtake: Callable[[], None]) -> DeltaSink:
        return _Overtaken(self.path, overtake=overtake)

    def rows(self) -> Rows:
        table: pa.Table = read_table(self.path)
        return list(table.to_pylist())

    def staged(self) -> set[str]:
        return {path.name for path in self.path.rglob("*.parquet") if "_delta_log" not in path.parts}


class _LosingAnswer(DeltaSink):
    def __init__(self, path: Path, *, landed: bool) -> None:
        super().__init__("orders", "out", str(path))
        self._landed = landed
        self._lost = False

    def _append(self, token: BatchToken, files: Any) -> None:
        if self._lost:
            super()._append(token, files)
            return
        self._lost = True
        if self._landed:
            super()._append(token, files)
        raise ConnectionResetError("the answer is lost")


class _Overtaken(DeltaSink):
    def __init__(self, path: Path, *, overtake: Callable[[], None]) -> None:
        super().__init__("orders", "out", str(path))
        self._overtake: Callable[[], None] | None = overtake

    def _append(self, token: BatchToken, files: Any) -> None:
        overtake, self._overtake = self._overtake, None
        if overtake is not None:
            overtake()
        super()._append(token, files)

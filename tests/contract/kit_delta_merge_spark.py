"""Delta merge through Spark in the contract suite: even the smallest batch is left to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.contract.kits import Evolve, Rows
from tests.tables import read_table

from penstock.contracts import SqlEngine
from penstock.model import MergeRules
from penstock.sinks.delta import DeltaMergeSink
from penstock.spark.sql import SparkSql

BY_ID = MergeRules(keys=("id",))


class DeltaMergeSparkKit:
    commits_in_task = False
    partitions = True
    evolves = True
    merges = True

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self.path = folder / "table"
        self.engine: SqlEngine = SparkSql(request.getfixturevalue("spark"))

    def sink(
        self,
        pipeline: str = "orders",
        name: str = "out",
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
        rules: MergeRules | None = None,
    ) -> DeltaMergeSink:
        sink = DeltaMergeSink(
            pipeline,
            name,
            str(self.path),
            rules or BY_ID,
            partition_by=partition_by,
            evolve=evolve,
            keep_coordinates=keep_coordinates,
            driver_bytes=0,
        )
        sink.use(self.engine)
        return sink

    def sink_losing_answer(self, *, landed: bool) -> DeltaMergeSink:
        sink = self.sink()
        sink.use(LosingAnswer(self.engine, landed=landed))
        return sink

    def sink_overtaken(self, overtake: Callable[[], None]) -> DeltaMergeSink:
        sink = self.sink()
        sink.use(Overtaken(self.engine, overtake))
        return sink

    def rows(self) -> Rows:
        table: pa.Table = read_table(self.path)
        return list(table.to_pylist())

    def staged(self) -> set[str]:
        return {path.name for path in self.path.rglob("*.parquet") if "_delta_log" not in path.parts}


class LosingAnswer:
    """An engine whose first statement ends in an error: after it was run, or before."""

    def __init__(self, engine: SqlEngine, *, landed: bool) -> None:
        self._engine = engine
        self._landed = landed
        self._lost = False
        self.write = engine.write

    def run(self, *statements: str, **given: Any) -> list[dict[str, Any]]:
        if self._lost:
            return self._engine.run(*statements, **given)
        self._lost = True
        if self._landed:
            self._engine.run(*statements, **given)
        raise ConnectionResetError("the answer is lost")


class Overtaken:
    """An engine that calls `overtake` before its first statement."""

    def __init__(self, engine: SqlEngine, overtake: Callable[[], None]) -> None:
        self._engine = engine
        self._overtake: Callable[[], None] | None = overtake
        self.write = engine.write

    def run(self, *statements: str, **given: Any) -> list[dict[str, Any]]:
        overtake, self._overtake = self._overtake, None
        if overtake is not None:
            overtake()
        return self._engine.run(*statements, **given)

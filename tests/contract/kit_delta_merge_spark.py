"""Delta merge through Spark in the contract suite: even the smallest batch is left to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.contract.kit_delta_merge import DeltaMergeKit
from tests.contract.kits import Rows

from penstock.contracts import SqlEngine
from penstock.sinks.delta import DeltaMergeSink
from penstock.spark.sql import SparkSql


class DeltaMergeSparkKit(DeltaMergeKit):
    settings = {"driver_bytes": 0}
    widens = True

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(folder, request)
        self.engine: SqlEngine = SparkSql(request.getfixturevalue("spark"))

    def sink(self, *given: Any, **named: Any) -> DeltaMergeSink:
        sink = super().sink(*given, **named)
        sink.use(self.engine)
        return sink

    def rows(self) -> Rows:
        """By delta-rs; it does not read tables whose types were widened, and then Spark has to."""
        if "typeWidening" not in (DeltaTable(self.path).protocol().reader_features or ()):
            return super().rows()
        return self.engine.run(f"SELECT * FROM delta.`file:{self.path}`")

    def sink_losing_answer(self, *, landed: bool) -> DeltaMergeSink:
        sink = self.sink()
        sink.use(LosingAnswer(self.engine, landed=landed))
        return sink

    def sink_overtaken(self, overtaking: Callable[[], None]) -> DeltaMergeSink:
        sink = self.sink()
        sink.use(Overtaken(self.engine, overtaking))
        return sink


class LosingAnswer:
    """An engine whose first statement ends in an error: after it was run, or before."""

    def __init__(self, engine: SqlEngine, *, landed: bool) -> None:
        self._engine = engine
        self._landed = landed
        self._lost = False

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

    def run(self, *statements: str, **given: Any) -> list[dict[str, Any]]:
        overtake, self._overtake = self._overtake, None
        if overtake is not None:
            overtake()
        return self._engine.run(*statements, **given)

"""What the contract suite needs to know of a sink: how to make one, read it back, and break it.

Another sink joins the suite by a kit of its own in `KITS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa
from tests.tables import read_table

from penstock.contracts import Sink
from penstock.model import BatchToken
from penstock.sinks import DeltaSink

Rows = list[dict[str, Any]]
Evolve = Literal["fail", "add_columns"]


class SinkKit(Protocol):
    """One target, fresh for each test; every sink that it makes writes there."""

    def sink(
        self,
        pipeline: str = "orders",
        name: str = "out",
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
    ) -> Sink: ...

    def sink_losing_answer(self, *, landed: bool) -> Sink:
        """A sink whose first commit ends in an error: after it landed, or before."""
        ...

    def sink_overtaken(self, overtake: Callable[[], None]) -> Sink:
        """A sink that calls `overtake` between its look at the target and its first commit."""
        ...

    def rows(self) -> Rows:
        """What a reader that shares no code with the sink sees."""
        ...

    def staged(self) -> set[str]:
        """Names of everything that lies staged or committed at the target."""
        ...


class DeltaKit:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "table"

    def sink(
        self,
        pipeline: str = "orders",
        name: str = "out",
        partition_by: Sequence[str] = (),
        evolve: Evolve = "fail",
        keep_coordinates: bool = True,
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


KITS: dict[str, Callable[[Path], SinkKit]] = {"delta": DeltaKit}

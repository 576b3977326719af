"""Orders as most tests send them, one run of a pipeline to its end, and what its tables hold afterwards.

The names fit the `pipeline_file` fixture: its schema, its tables `lake/out` and `lake/quarantine`, its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tables import read_table

from penstock.config import load
from penstock.engine.listener import Event
from penstock.preflight.options import RunOptions, RunSummary
from penstock.supervision.run import run

EVENT_TIME = "2026-01-01T00:00:00Z"


def order(number: int, **more: Any) -> dict[str, Any]:
    """One order; `more` replaces or adds columns."""
    return {"order_id": number, "customer_id": "c", "amount": 1.5, "event_time": EVENT_TIME, **more}


def drain(
    file: Path, session: Any, listener: Callable[[Event], None] = lambda event: None, **options: Any
) -> RunSummary:
    """Run a pipeline until it has read what its topics hold now; `options` are those of `RunOptions`."""
    return run(load(file), RunOptions(**{"available_now": True, **options}), listener, session=session)


def ids(file: Path, table: str = "lake/out") -> list[int]:
    """The `order_id` of every row, sorted: a duplicate is there twice."""
    found: list[int] = read_table(file.parent / table, ["order_id"]).column(0).to_pylist()
    return sorted(found)


def rows_of(
    file: Path, table: str = "lake/out", by: str = "order_id", coordinates: bool = False
) -> list[dict[str, Any]]:
    """The rows of a table, sorted by a column (rows without it first); `coordinates` keeps the column `_penstock`."""
    found: list[dict[str, Any]] = read_table(file.parent / table).to_pylist()
    if not coordinates:
        found = [{name: value for name, value in row.items() if name != "_penstock"} for row in found]
    return sorted(found, key=lambda row: (row.get(by) is not None, row.get(by)))


def forget_commit(file: Path, batch: int = 0) -> None:
    """Leave what a driver leaves that died after the commits of the sinks and before the commit of Spark."""
    for name in (f"{batch}", f".{batch}.crc"):
        (file.parent / "checkpoints/orders/commits" / name).unlink(missing_ok=True)

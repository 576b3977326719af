"""How much Python a batch runs: as much for ten thousand rows as for a thousand, for they stay in Arrow.

A step, decoder or sink that does something for each row shows at once, on a machine of any speed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.costs import counting_python
from tests.unit.engine.memory_runs import SINKS, MemoryRun

FEW, MANY = 1_000, 10_000
STEPS: dict[str, list[dict[str, Any]]] = {
    "no-steps": [],
    "steps": [
        {"where": "amount >= 0"},
        {"derive": {"double": "amount * 2", "text": "concat('order ', CAST(order_id AS STRING))"}},
        {"dedupe": {"keys": ["order_id"]}},
        {"rename": {"double": "twice"}},
        {"drop": ["text"]},
    ],
}

MOST = {"delta": 15_000, "files": 20_000, "iceberg": 195_000}
"""Calls and lines: a tenth above what was counted with steps, on Python 3.11; Iceberg's are mostly its library's."""
MORE = {"delta": 2_000, "files": 2_000, "iceberg": 7_000}
"""For nine thousand rows more. Counted: at most 850, by what the garbage collector runs meanwhile; for Iceberg 4,500,
since every snapshot is in the next one's file."""


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("steps", STEPS)
def test_batch_of_many_rows_runs_hardly_more_python_than_one_of_few(tmp_path: Path, steps: str, sink: str) -> None:
    values = [{"order_id": number, "amount": float(number)} for number in range(FEW + FEW + MANY)]
    run = MemoryRun(tmp_path, [values], [sink], transforms=STEPS[steps], cuts=[[FEW], [FEW + FEW], [FEW + FEW + MANY]])
    counts: list[int] = []
    with counting_python() as count:
        run.run(lambda batch, phase: counts.append(count()) if phase == "offsets" else None)
        counts.append(count())
    # The first batch imports, and opens what stays open.
    few, many = counts[2] - counts[1], counts[3] - counts[2]
    assert (few < MOST[sink], many - few < MORE[sink]) == (True, True), (few, many)

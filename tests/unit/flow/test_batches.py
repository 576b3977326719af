"""What flow control reads out of a run's history."""

from __future__ import annotations

from pathlib import Path

from penstock.flow import Observed, observed_in
from penstock.metrics.history import History

BATCH = {"batch_id": 7, "offsets": 100, "rows_in": 98, "seconds": 1.5, "bytes_in": 9000, "lag": 5, "cap": 200}


def test_observed_in_history_of_a_run_gives_its_batches_in_order(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    history.add("started", lane="direct")
    history.add("batch", **BATCH, pressure=0.4, skipped=False)
    history.add("flow", batch_id=7, cap=400, before=200, reason="behind", text="")
    history.add("batch", **{**BATCH, "batch_id": 8, "skipped": True})
    assert observed_in(history.read()) == [
        Observed(7, 100, 98, 1.5, 9000, 5, 200, 0.4),
        Observed(8, 100, 98, 1.5, 9000, 5, 200, skipped=True),
    ]


def test_observed_in_entries_that_are_not_whole_are_left_out() -> None:
    broken = [{}, {"batch_id": 1}, {**BATCH, "offsets": "many"}, {**BATCH, "seconds": None}]
    assert observed_in([*broken, BATCH]) == [Observed(7, 100, 98, 1.5, 9000, 5, 200)]


def test_observed_in_batch_without_a_cap_has_none() -> None:
    assert observed_in([{**BATCH, "cap": None}])[0].cap == 0

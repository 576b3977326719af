"""What flow control reads out of a run's history."""

from __future__ import annotations

from pathlib import Path

from tests.batches import finished

from penstock.flow import Observed
from penstock.metrics.history import FlowChanged, History, RunStarted
from penstock.supervision.flow_control import observed, observed_in

FIGURES = {"offsets": 100, "rows_in": 98, "seconds": 1.5, "bytes_in": 9000, "lag": 5, "cap": 200}


def test_observed_in_history_of_a_run_gives_its_batches_in_order(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    history.add(RunStarted("direct"))
    history.add(finished(7, **FIGURES, pressure=0.4))
    history.add(FlowChanged(7, cap=400, before=200, reason="behind", text=""))
    history.add(finished(8, **FIGURES, skipped=True))
    assert observed_in(history.read()) == [
        Observed(7, 100, 98, 1.5, 9000, 5, 200, 0.4),
        Observed(8, 100, 98, 1.5, 9000, 5, 200, skipped=True),
    ]


def test_observed_batch_without_a_cap_has_none() -> None:
    assert observed(finished(7)).cap == 0

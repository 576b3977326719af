"""Records that the quarantine holds stay out of the targets when their batch runs again, and out of nothing else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engine.memory_runs import SINKS, MemoryRun

DEDUPE = {"dedupe": {"keys": ["order_id"]}}
EXPECT = {"expect": {"small": {"rule": "amount < 90"}}}
VALUES = [
    [{"order_id": 1, "amount": 1.0}, {"order_id": 2, "amount": 2.0}, b"not json"],
    [{"order_id": 1, "amount": 99.0}, {"order_id": 3, "amount": 3.0}, {"order_id": 3, "amount": 4.0}],
]
"""By the times of the records the second row of order 1 is the newer one, and no rule takes it."""


class Killed(BaseException):
    """The driver is dead: nothing may catch this and go on."""


def run_killed_at(run: MemoryRun, phase: str) -> None:
    def enter(batch: int, now: str) -> None:
        if now == phase:
            raise Killed

    with pytest.raises(Killed):
        run.run(enter)


def amounts(run: MemoryRun, sink: str) -> list[tuple[int, float]]:
    return sorted((row["order_id"], row["amount"]) for row in run.rows(sink))


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("phase", [f"commit:{sink}" for sink in SINKS])
def test_record_refused_behind_a_dedupe_when_its_batch_runs_again_still_drops_older_rows_of_its_key(
    tmp_path: Path, phase: str, slots: int
) -> None:
    run = MemoryRun(tmp_path, VALUES, transforms=[DEDUPE, EXPECT], cores=slots)
    run_killed_at(run, phase)
    [again] = run.run()
    for sink in SINKS:
        assert amounts(run, sink) == [(2, 2.0), (3, 4.0)], sink
    assert run.quarantined() == Counter({(0, 2): 1, (1, 0): 1})
    assert again.quarantined == 2


@pytest.mark.parametrize("slots", [1, 4])
def test_record_that_could_not_be_decoded_and_now_can_drops_no_row(tmp_path: Path, slots: int) -> None:
    strict: dict[str, Any] = {"schema": "order_id BIGINT, amount DOUBLE NOT NULL"}
    values = [[{"order_id": 1, "amount": 1.0}], [{"order_id": 1}]]
    run_killed_at(MemoryRun(tmp_path, values, transforms=[DEDUPE], cores=slots, **strict), "commit:delta")
    run = MemoryRun(tmp_path, values, transforms=[DEDUPE], cores=slots)
    run.run()
    for sink in SINKS:
        assert amounts(run, sink) == [(1, 1.0)], sink
    assert run.quarantined() == Counter({(1, 0): 1})


def test_record_refused_by_a_rule_that_is_taken_out_stays_out_of_the_targets(tmp_path: Path) -> None:
    run_killed_at(MemoryRun(tmp_path, VALUES, transforms=[EXPECT, DEDUPE]), "commit:delta")
    run = MemoryRun(tmp_path, VALUES, transforms=[DEDUPE])
    run.run()
    for sink in SINKS:
        assert (1, 99.0) not in amounts(run, sink), sink
    assert run.quarantined() == Counter({(0, 2): 1, (1, 0): 1})

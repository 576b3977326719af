"""The order of commits: gaps, quarantine, targets. Looked at before every phase of a batch, and by killing it there.

A target that had a batch before its bad records are in the quarantine would lose these for good: an edited definition
that takes them for good ones finds the batch committed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.engine.memory_runs import SINKS, MemoryRun

from penstock.quarantine import Gap

STRICT, LENIENT = "order_id BIGINT, amount DOUBLE NOT NULL", "order_id BIGINT, amount DOUBLE"
"""Under the first schema a record without an amount is bad, under the second it is good."""
PHASES = ("stage", "commit", "commit:quarantine", *(f"commit:{sink}" for sink in SINKS), "after")
BAD = {(0, 1), (1, 2)}


class Killed(BaseException):
    """The driver is dead: nothing may catch this and go on."""


def run_of(folder: Path, schema: str = STRICT, **more: Any) -> MemoryRun:
    """Two partitions; under the strict schema each has a bad record."""
    values = [
        [{"order_id": p * 10 + o, **({} if (p, o) in BAD else {"amount": 1.0})} for o in range(4)] for p in (0, 1)
    ]
    return MemoryRun(folder, values, schema=schema, **more)


def killed_at(run: MemoryRun, phase: str) -> None:
    def enter(batch: int, now: str) -> None:
        if now == phase:
            raise Killed

    if phase == "after":
        run.run()
        return
    with pytest.raises(Killed):
        run.run(enter)


def test_commit_order_at_each_phase_shows_gaps_then_quarantine_then_targets(tmp_path: Path) -> None:
    run = run_of(tmp_path, gaps={0: (Gap("orders", 0, 0, 5, "retention passed"),)})
    seen: list[tuple[str, list[str]]] = []

    def visible() -> list[str]:
        targets = [sink for sink in SINKS if run.rows(sink)]
        return [*["gaps"][: len(run.gap_ranges())], *["quarantine"][: len(run.quarantined())], *targets]

    run.run(lambda batch, phase: seen.append((phase, visible())))
    assert seen == [
        ("offsets", []),
        ("stage", []),
        ("commit", []),
        ("commit:quarantine", ["gaps"]),
        ("commit:delta", ["gaps", "quarantine"]),
        ("commit:iceberg", ["gaps", "quarantine", "delta"]),
        ("commit:files", ["gaps", "quarantine", "delta", "iceberg"]),
    ]
    assert visible() == ["gaps", "quarantine", *SINKS]


@pytest.mark.parametrize(
    ("before", "after", "phase"),
    [
        *(pytest.param(STRICT, LENIENT, phase, id=f"bad-turns-good-{phase}") for phase in PHASES),
        # Without bad records nothing is committed to the quarantine.
        *(
            pytest.param(LENIENT, STRICT, phase, id=f"good-turns-bad-{phase}")
            for phase in PHASES
            if phase != "commit:quarantine"
        ),
    ],
)
def test_driver_killed_at_a_phase_and_definition_edited_each_record_is_once_in_target_or_quarantine(
    tmp_path: Path, before: str, after: str, phase: str
) -> None:
    killed_at(run_of(tmp_path, before), phase)
    run = run_of(tmp_path, after)
    run.run()
    everything = {(partition, offset) for partition in (0, 1) for offset in range(4)}
    for sink in SINKS:
        assert run.places(sink) + run.quarantined(sink) == dict.fromkeys(everything, 1), sink
        assert run.places(sink).keys() >= everything - BAD

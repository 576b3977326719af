"""Pipelines on paper that several tests run: 100,000 offsets a second at best, one second before the first of them."""

from __future__ import annotations

from dataclasses import replace

from penstock.config.operation import FlowConfig
from penstock.flow.simulation import Arrivals, Burst, Simulated, Work, fixed, simulate

FLOW = FlowConfig()
TARGET = FLOW.target_batch.total_seconds()
LONGEST = FLOW.max_batch.total_seconds()
WORK = Work(fixed=1.0, per_offset=2e-5, cores=2)
BURST = Arrivals(10_000, (Burst(100_000, start=300, seconds=60),))
CAPS = tuple(int(1000 * 1.3**power) for power in range(12, 42))


def slow(after: float, until: float, *, fixed: float = 1.0, each: float = 1.0) -> Work:
    """The work, with a sink that is slower for a while."""
    return replace(WORK, load=lambda time: (fixed, each) if after <= time < until else (1.0, 1.0))


def best_fixed(work: Work, arrivals: Arrivals, seconds: float, after: float, below: float, waiting: float = 0) -> float:
    """The shortest time to catch up that any fixed cap gives without a batch over `max_batch`."""
    runs = (simulate(work, arrivals, fixed(cap), seconds, waiting=waiting, trigger=5) for cap in CAPS)
    times = [run.caught_up(after, below) for run in runs if run.longest <= LONGEST]
    return min(time for time in times if time is not None)


def changes_after(run: Simulated, time: float) -> list[str]:
    """What was changed from a time on, in words."""
    return [step.decision.text for step in run.changes if step.start > time]

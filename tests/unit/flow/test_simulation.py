"""The pipeline on paper keeps its own books."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.flow.simulation import Arrivals, Burst, Work, fixed, simulate

WORK = Work(fixed=1.0, per_offset=1e-3)


def test_arrivals_burst_counts_its_own_rate_while_it_lasts() -> None:
    arrivals = Arrivals(10, (Burst(100, start=10, seconds=5),))
    assert [arrivals.until(time) for time in (0, 10, 12, 15, 20)] == [0, 100, 300, 600, 650]


def test_simulate_backlog_is_what_arrived_and_was_not_committed() -> None:
    run = simulate(WORK, Arrivals(100), fixed(500), 10, waiting=1000)
    assert [(step.start, step.batch.offsets) for step in run.steps[:2]] == [(0.0, 500), (1.5, 500)]
    assert run.backlog(1.4) == pytest.approx(1140)
    assert run.backlog(1.6) == pytest.approx(660)
    assert run.steps[0].batch.backlog == 500


def test_simulate_rate_below_capacity_catches_up_and_above_never_does() -> None:
    assert simulate(WORK, Arrivals(100), fixed(5000), 300, waiting=10_000).caught_up(0, below=500) is not None
    assert simulate(WORK, Arrivals(2000), fixed(5000), 300, waiting=10_000).caught_up(0, below=500) is None


def test_simulate_trigger_starts_batches_on_its_beat() -> None:
    run = simulate(WORK, Arrivals(10), fixed(5000), 60, trigger=10)
    assert [step.start for step in run.steps] == [10, 20, 30, 40, 50]


def test_work_more_cores_than_partitions_are_of_no_use() -> None:
    assert replace(WORK, cores=64, partitions=4).busiest == replace(WORK, cores=4, partitions=4).busiest == 0.25


def test_work_hot_partition_is_what_a_batch_waits_for() -> None:
    assert replace(WORK, cores=4, partitions=4, hot=3).busiest == pytest.approx(0.5)


def test_simulate_same_seed_gives_the_same_run() -> None:
    noisy = replace(WORK, noise=0.3)
    runs = [simulate(noisy, Arrivals(100), fixed(500), 60, seed=seed).steps for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]

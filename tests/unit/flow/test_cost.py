"""The cost of a batch, learned from the ones before."""

from __future__ import annotations

import random

import pytest

from penstock.flow import Cost, Observed, estimate

SIZES = (2_000, 20_000, 200_000, 1_000_000, 1_000_000, 500_000, 1_000_000)


def batches(cost: Cost, sizes: tuple[int, ...], noise: float = 0.0) -> list[Observed]:
    dice = random.Random(1)
    return [
        Observed(at, size, size, cost.of(size) * dice.lognormvariate(0, noise), size * 200, 0, 10**6)
        for at, size in enumerate(sizes)
    ]


def close(found: Cost | None, cost: Cost, within: float = 0.02) -> bool:
    return (
        found is not None
        and found.fixed == pytest.approx(cost.fixed, rel=within)
        and found.per_offset == pytest.approx(cost.per_offset, rel=within)
    )


COST = Cost(1.5, 2e-5)


def test_estimate_no_batches_is_none() -> None:
    assert estimate([]) is None


def test_estimate_batches_of_several_sizes_tells_both_parts() -> None:
    assert close(estimate(batches(COST, SIZES)), COST)


def test_estimate_noisy_batches_is_near() -> None:
    assert close(estimate(batches(COST, SIZES * 4, noise=0.15)), COST, within=0.2)


def test_estimate_skipped_empty_and_impossible_batches_do_not_count() -> None:
    odd = [
        Observed(90, 10**6, 0, 0.01, 0, 0, 10**6, skipped=True),
        Observed(91, 0, 0, 9.0, 0, 0, 10**6),
        Observed(92, 1000, 0, float("nan"), 0, 0, 10**6),
        Observed(93, 1000, 0, -1.0, 0, 0, 10**6),
    ]
    assert close(estimate([*batches(COST, SIZES), *odd]), COST)


def test_estimate_tiny_batches_afterwards_tell_the_fixed_cost_and_do_not_spoil_the_other() -> None:
    tiny = batches(COST, (3, 1, 12, 5, 1, 7, 2, 4, 1, 9))
    assert close(estimate([*batches(COST, SIZES), *tiny]), COST)


def test_estimate_one_hiccup_is_passed_over() -> None:
    history = batches(COST, SIZES * 2)
    history[-3] = Observed(99, 1_000_000, 1_000_000, 300.0, 0, 0, 10**6)
    assert close(estimate(history), COST)


def test_estimate_change_is_believed_when_seen_twice() -> None:
    after = Cost(1.5, 5e-5)
    assert close(estimate([*batches(COST, SIZES), *batches(after, (1_000_000, 300_000))]), after, within=0.05)


def test_estimate_slow_drift_follows_the_newest() -> None:
    history = [
        Observed(at, size, size, COST.of(size) * (1 + at / 50), 0, 0, 10**6) for at, size in enumerate(SIZES * 8)
    ]
    found = estimate(history)
    assert found is not None
    assert found.of(1_000_000) == pytest.approx(COST.of(1_000_000) * (1 + len(history) / 50), rel=0.15)


def test_estimate_batches_of_one_size_puts_the_time_down_to_the_offsets() -> None:
    assert close(estimate(batches(COST, (1_000_000,) * 9)), Cost(0.0, 2.15e-5))

"""What the rules of the controller look at."""

from __future__ import annotations

import pytest
from tests.unit.flow.paper import FLOW, LONGEST

from penstock.config.operation import FlowConfig
from penstock.flow import Cost, Observed
from penstock.flow.controller import Situation, settled

SIZE = 100_000


def batches(*seconds: float) -> list[Observed]:
    return [Observed(at, SIZE, SIZE, took, SIZE * 200, 10**9, SIZE) for at, took in enumerate(seconds)]


def test_limit_of_batches_alike_leaves_a_fifth_and_of_batches_that_differ_more() -> None:
    alike, different = (Situation(FLOW, batches(*took), 2) for took in ((20,) * 8, (16, 25, 18, 27, 15, 24, 20, 17)))
    assert alike.limit == pytest.approx(0.8 * LONGEST)
    assert 0.4 * LONGEST <= different.limit < 0.7 * LONGEST


def test_surprise_is_how_many_times_as_long_as_foreseen_and_none_within_the_noise() -> None:
    assert Situation(FLOW, batches(20, 20, 20, 100), 2).surprise == pytest.approx(5)
    assert Situation(FLOW, batches(20, 20, 20, 30), 2).surprise == 1
    assert Situation(FLOW, batches(100), 2).surprise == 1


def test_settled_is_where_a_batch_takes_the_target_within_the_bounds_and_the_memory() -> None:
    cost = Cost(1.0, 1e-5)
    assert cost.of(settled(FLOW, cost, 2, 200.0)) == pytest.approx(20, rel=0.01)
    assert settled(FlowConfig(max_offsets=5000), cost, 2, 200.0) == 5000
    assert settled(FlowConfig(memory=1 << 20), cost, 2, 1024.0) == 1024

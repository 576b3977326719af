"""Whatever the history, the controller gives a cap within the bounds, and the same one for the same history."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config.operation import FlowConfig
from penstock.flow import REASONS, Observed, decide, estimate

counts = st.integers(-(10**18), 10**18) | st.integers(0, 10**7)
garbage = st.builds(
    Observed,
    batch_id=counts,
    offsets=counts,
    rows=counts,
    seconds=st.floats() | st.floats(0.01, 300),
    bytes_in=counts,
    backlog=counts,
    cap=counts,
    pressure=st.floats() | st.floats(0, 1),
    skipped=st.booleans(),
)
durations = st.timedeltas(timedelta(milliseconds=1), timedelta(days=1))
flows = st.builds(
    FlowConfig,
    target_batch=durations,
    max_batch=durations,
    min_offsets=st.integers(1, 10**7),
    max_offsets=st.none() | st.integers(1, 10**9),
    memory=st.none() | st.integers(1, 10**12),
)


@settings(max_examples=300, deadline=None)
@given(flows, st.lists(garbage, max_size=12), st.integers(-1, 1000))
def test_decide_any_history_gives_a_cap_within_the_bounds(
    flow: FlowConfig, history: list[Observed], cores: int
) -> None:
    decision = decide(flow, history, cores)
    high = flow.max_offsets or 10**12
    assert min(flow.min_offsets, high) <= decision.cap <= high
    assert decision.reason in REASONS
    assert decision.text
    assert decide(flow, list(history), cores) == decision


@settings(max_examples=200, deadline=None)
@given(st.lists(garbage, max_size=12))
def test_estimate_any_history_gives_a_cost_that_is_not_below_nothing(history: list[Observed]) -> None:
    cost = estimate(history)
    assert cost is None or (cost.fixed >= 0 and cost.per_offset >= 0 and cost.of(1) > 0)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.1, 60), st.floats(1e-6, 1e-2), st.integers(1, 12), st.integers(1_000, 10**6), st.floats(0.0, 0.7))
def test_decide_cost_that_holds_never_expects_a_batch_over_the_limit(
    fixed: float, each: float, batches: int, first: int, pressure: float
) -> None:
    flow = FlowConfig(min_offsets=1)
    history: list[Observed] = []
    cap = min(first, int(100 / each) or 1)
    for _ in range(batches):
        took = fixed + each * cap
        history.append(Observed(len(history), cap, cap, took, cap * 100, 10**12, cap, pressure))
        cap = decide(flow, history, 16).cap
        assert fixed + each * cap <= max(120, took)

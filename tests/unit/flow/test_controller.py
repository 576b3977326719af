"""Flow control in simulated runs: it learns, aims, shrinks at once, does not oscillate, and leaves well alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.flow.paper import BURST, FLOW, LONGEST, TARGET, WORK, best_fixed, changes_after, slow

from penstock.config.operation import FlowConfig
from penstock.flow import Decision, Observed, decide
from penstock.flow.simulation import Arrivals, Burst, Simulated, Work, adaptive, simulate

BILLIONS = 5e9


def run(
    work: Work, arrivals: Arrivals, seconds: float, waiting: float = 0, trigger: float = 5, seed: int = 0
) -> Simulated:
    return simulate(work, arrivals, adaptive(FLOW, 2), seconds, waiting=waiting, trigger=trigger, seed=seed)


def full(offsets: int, seconds: float, **changed: float) -> Observed:
    """A batch that was filled, with much behind it."""
    return Observed(0, offsets, offsets, seconds, offsets * 200, 10**9, offsets, **changed)  # type: ignore[arg-type]


def test_decide_nothing_known_starts_small_within_the_bounds() -> None:
    assert decide(FLOW, [], cores=16) == Decision(10_000, "start", "nothing is known yet: 10,000 offsets")
    assert decide(FlowConfig(max_offsets=500), []).cap == 500
    assert decide(FlowConfig(min_offsets=50_000), []).cap == 50_000


def test_decide_nothing_known_and_little_memory_starts_with_what_fits_if_every_record_is_as_large_as_kafka_takes() -> (
    None
):
    assert decide(FlowConfig(memory=2 << 30), []).cap == 2048


def test_run_unknown_backlog_of_billions_is_at_full_speed_after_few_batches_and_no_batch_is_long() -> None:
    done = run(WORK, Arrivals(10_000), 600, waiting=BILLIONS)
    assert done.longest <= TARGET * 1.2
    assert min(step.batch.seconds for step in done.steps[5:]) >= TARGET * 0.75


def test_run_unknown_backlog_of_wide_records_never_takes_more_bytes_than_allowed() -> None:
    flow = FlowConfig(memory=1 << 30)
    wide = replace(WORK, per_offset=2e-4, record_bytes=900_000)
    done = simulate(wide, Arrivals(10), adaptive(flow, 2), 600, waiting=1e7)
    assert max(step.batch.bytes_in for step in done.steps) <= 1 << 30
    assert not changes_after(done, 60)


def test_run_constant_backlog_settles_near_the_target_and_stays() -> None:
    done = run(WORK, Arrivals(20_000), 3600, waiting=BILLIONS)
    assert not changes_after(done, 200)
    assert all(0.75 * TARGET <= step.batch.seconds <= 1.2 * TARGET for step in done.steps[-50:])


def test_run_caught_up_stream_sees_no_decision() -> None:
    done = run(replace(WORK, noise=0.3), Arrivals(2_000), 3600, trigger=10)
    assert not changes_after(done, 60)
    assert done.steps[-1].decision.reason == "caught_up"


def test_run_burst_catches_up_as_fast_as_the_best_fixed_cap_with_no_long_batch() -> None:
    done = run(WORK, BURST, 1200)
    taken = done.caught_up(360, below=200_000)
    assert taken is not None and taken <= 1.1 * best_fixed(WORK, BURST, 1200, 360, 200_000)
    assert done.longest <= LONGEST


def test_run_burst_on_a_busy_pipeline_catches_up_as_fast_as_the_best_fixed_cap_with_no_long_batch() -> None:
    arrivals = Arrivals(40_000, (Burst(400_000, start=300, seconds=60),))
    done = run(WORK, arrivals, 2000)
    taken = done.caught_up(360, below=1_000_000)
    assert taken is not None and taken <= 1.1 * best_fixed(WORK, arrivals, 2000, 360, 1_000_000)
    assert done.longest <= LONGEST


def test_run_slow_sink_appears_is_answered_by_the_next_batch_and_grown_back_when_it_goes() -> None:
    work = slow(300, 900, each=5)
    done = run(work, Arrivals(10_000), 1800, waiting=BILLIONS)
    first, second, *_ = (step for step in done.steps if step.end > 300)
    assert first.batch.seconds <= LONGEST and second.decision.reason == "slow"
    assert all(step.batch.seconds <= 1.3 * TARGET for step in done.steps if 420 <= step.start < 900)
    assert all(
        step.batch.seconds >= 0.75 * TARGET for step in done.steps if 450 <= step.start < 880 or step.start > 1100
    )
    assert len(changes_after(done, 300)) <= 8


@pytest.mark.parametrize("times", [3, 10, 40])
@pytest.mark.parametrize("moment", range(240, 264, 3))
def test_run_slow_sink_appears_within_a_batch_makes_no_long_one_after_it(times: float, moment: float) -> None:
    done = run(slow(moment, 5000, each=times), Arrivals(100), 1200, waiting=BILLIONS, trigger=0)
    before, first, *after = (step.batch.seconds for step in done.steps if step.end > moment - TARGET)
    # A batch that it hardly touched tells nothing: then the next one is the first to meet it.
    assert max(after if first > 2 * before else after[1:]) <= LONGEST
    assert all(0.75 * TARGET <= step.batch.seconds <= 1.25 * TARGET for step in done.steps[-10:])


@pytest.mark.parametrize("seed", range(6))
def test_run_slow_sink_appears_among_noisy_batches_makes_no_long_one_after_it(seed: int) -> None:
    work = replace(slow(250, 5000, fixed=10, each=10), noise=0.15)
    done = run(work, Arrivals(100), 2400, waiting=BILLIONS, trigger=0, seed=seed)
    before, first, *after = (step.batch.seconds for step in done.steps if step.end > 250 - TARGET)
    assert max(after if first > 2 * before else after[1:]) <= LONGEST
    assert len(changes_after(done, 250)) <= 12


def test_run_slow_sink_appears_and_goes_catches_up_as_fast_as_the_best_fixed_cap() -> None:
    work = slow(200, 800, each=5)
    done = run(work, Arrivals(10_000), 2400, waiting=5e7)
    taken = done.caught_up(0, below=1_000_000)
    assert taken is not None and taken <= 1.1 * best_fixed(work, Arrivals(10_000), 2400, 0, 1_000_000, waiting=5e7)


def test_run_commit_that_waits_long_makes_batches_larger_than_the_target_but_never_too_long() -> None:
    done = run(slow(300, 3600, fixed=40), Arrivals(10_000), 3600, waiting=BILLIONS)
    late = [step.batch for step in done.steps if step.start > 1500]
    assert min(batch.offsets / batch.seconds for batch in late) > 30_000
    assert max(batch.seconds for batch in late) <= 0.8 * LONGEST
    assert done.longest <= LONGEST


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fixed", (18, 22, 25, 40))
def test_run_commit_that_waits_longer_than_the_target_is_found_out_and_the_backlog_goes(fixed: int, seed: int) -> None:
    done = run(replace(WORK, fixed=fixed, noise=0.05), Arrivals(1_000), 1200, waiting=3_000_000, seed=seed)
    assert done.caught_up(0, below=4_000 * fixed) is not None
    assert done.longest <= LONGEST


def test_run_sink_slows_down_while_caught_up_the_next_burst_makes_no_long_batch() -> None:
    work = slow(600, 3600, fixed=10, each=10)
    arrivals = Arrivals(1_000, (Burst(50_000, start=900, seconds=60),))
    done = run(work, arrivals, 1800, waiting=2e7, trigger=10)
    assert max(step.batch.seconds for step in done.steps if step.start >= 900) <= LONGEST


def test_run_drifting_cost_keeps_near_the_target_with_few_changes() -> None:
    work = replace(WORK, load=lambda time: (1 + time / 1800, 1 + time / 1800))
    done = run(work, Arrivals(3_000), 3600, waiting=BILLIONS)
    assert max(step.batch.seconds for step in done.steps) <= 1.6 * TARGET
    assert len(changes_after(done, 200)) <= 8


def test_run_skewed_topic_is_sized_by_its_hot_partition() -> None:
    work = replace(WORK, cores=8, partitions=40, hot=30)
    done = run(work, Arrivals(10_000), 1200, waiting=BILLIONS)
    assert all(0.75 * TARGET <= step.batch.seconds <= 1.2 * TARGET for step in done.steps[-20:])
    assert not changes_after(done, 400)


@pytest.mark.parametrize("seed", range(4))
def test_run_noisy_batches_do_not_make_it_oscillate(seed: int) -> None:
    done = run(replace(WORK, noise=0.2), Arrivals(10_000), 2400, waiting=BILLIONS, seed=seed)
    assert len(changes_after(done, 200)) <= 5
    assert done.longest <= LONGEST
    assert 0.7 * TARGET <= sum(step.batch.seconds for step in done.steps[8:]) / len(done.steps[8:]) <= 1.3 * TARGET


def test_run_sink_that_is_slow_now_and_then_is_followed_ever_more_reluctantly() -> None:
    work = replace(WORK, load=lambda time: (1.0, 4.0) if time % 60 >= 40 else (1.0, 1.0))
    done = run(work, Arrivals(10_000), 7200, waiting=BILLIONS)
    assert len(changes_after(done, 3600)) <= 40
    assert done.longest <= LONGEST


def test_run_one_hiccup_is_forgotten() -> None:
    hiccup = replace(WORK, load=lambda time: (1.0, 4.0) if 300 <= time < 310 else (1.0, 1.0))
    done = run(hiccup, Arrivals(10_000), 1200, waiting=BILLIONS)
    before = next(step.batch.cap for step in reversed(done.steps) if step.start < 300)
    assert done.steps[-1].batch.cap >= 0.8 * before
    assert len(changes_after(done, 200)) <= 4


def test_run_memory_pressure_halves_the_cap_at_once_and_does_not_try_again_soon() -> None:
    work = replace(WORK, record_bytes=1000, memory_bytes=5e8)
    done = run(work, Arrivals(10_000), 600, waiting=BILLIONS, trigger=0)
    pressed = [step for step in done.steps if step.batch.pressure > 0.9]
    assert 1 <= len(pressed) <= 2
    after = done.steps[done.steps.index(pressed[0]) + 1]
    assert after.decision.reason == "memory" and after.batch.cap <= pressed[0].batch.cap / 2


def test_run_restart_with_history_goes_on_where_it_was() -> None:
    before = run(WORK, Arrivals(10_000), 600, waiting=BILLIONS)
    history = [step.batch for step in before.steps]
    after = simulate(WORK, Arrivals(10_000), adaptive(FLOW, 2), 600, waiting=BILLIONS, history=history)
    assert after.steps[0].batch.cap == history[-1].cap
    assert not after.changes


def test_decide_large_fixed_cost_grows_no_further_than_ends_in_time_if_it_were_none() -> None:
    history = [full(size, 60 + size / 1e6) for size in (20_000, 20_000, 100_000, 100_000)]
    decision = decide(FLOW, history)
    assert decision.cap / 100_000 * 60 <= LONGEST
    assert decision.cap > 100_000


def test_decide_far_too_slow_batch_is_told_with_both_sides() -> None:
    history = [full(400_000, 18), full(400_000, 19), full(400_000, 18), full(400_000, 80)]
    assert decide(FLOW, history) == Decision(33_000, "slow", "400,000 offsets took 80 s, the aim is 20 s: 33,000")


def test_decide_pressure_stays_with_smaller_batches_shrinks_no_further() -> None:
    history = [full(size, 5, pressure=0.95) for size in (400_000, 200_000, 100_000)]
    decision = decide(FLOW, history)
    assert (decision.cap, decision.reason) == (100_000, "memory")


def test_decide_rather_full_memory_does_not_grow() -> None:
    history = [full(size, 5, pressure=0.85) for size in (100_000, 100_000, 100_000)]
    assert decide(FLOW, history).cap == 100_000


def test_decide_records_become_wide_shrinks_to_what_the_memory_holds() -> None:
    wide = replace(full(100_000, 5), bytes_in=100_000 * 50_000)
    decision = decide(FlowConfig(memory=1 << 30), [full(100_000, 5), full(100_000, 5), wide])
    assert decision.reason == "memory"
    assert decision.cap * 50_000 <= 1 << 30


def test_decide_no_smaller_than_the_bound_says_so() -> None:
    decision = decide(FlowConfig(min_offsets=1000), [full(1000, 100)])
    assert (decision.cap, decision.reason) == (1000, "bound")


def test_decide_target_over_the_limit_aims_below_the_limit() -> None:
    flow = FlowConfig(target_batch=timedelta(minutes=5), max_batch=timedelta(minutes=1))
    done = simulate(WORK, Arrivals(10_000), adaptive(flow, 2), 1200, waiting=BILLIONS)
    assert done.longest <= 60

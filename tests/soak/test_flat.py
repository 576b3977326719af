"""The judgement of the soak about what processes hold: a leak is seen, a peak and a step are not called one."""

from __future__ import annotations

from random import Random

import pytest
from tests.soak.flat import HANDLES, MEGABYTE, MEMORY, THREADS, Curve, judge, theil_sen

SECONDS = 450
SHORTEST = 60.0


def curve(measure: str, value: float, leak: float = 0.0, noise: float = 0.0, role: str = "driver python") -> Curve:
    """Sampled every 2 seconds; `leak` is what is added every 5 seconds, about a batch."""
    random = Random(3)
    times = [float(second) for second in range(0, SECONDS, 2)]
    return Curve(role, measure, times, [value + leak * (at // 5) + random.uniform(-noise, noise) for at in times])


@pytest.mark.parametrize("measure", [HANDLES, THREADS])
@pytest.mark.parametrize("role", ["driver python", "driver jvm"])
def test_judge_one_leaked_a_batch_is_rising(measure: str, role: str) -> None:
    found = judge(curve(measure, 120, leak=1, noise=5, role=role), SHORTEST)
    assert found.verdict == "rising"
    assert found.rise == pytest.approx(90, abs=10)
    assert found.per_hour == pytest.approx(720, rel=0.1)


def test_judge_one_leaked_in_five_batches_is_rising() -> None:
    assert judge(curve(THREADS, 60, leak=0.2, noise=2), SHORTEST).verdict == "rising"


def test_judge_a_megabyte_leaked_a_batch_is_rising() -> None:
    leaking = curve(MEMORY, 300 * MEGABYTE, leak=MEGABYTE, noise=10 * MEGABYTE)
    assert judge(leaking, SHORTEST).verdict == "rising"


def test_judge_noise_alone_is_flat() -> None:
    for measure, value, noise in ((HANDLES, 100, 20), (THREADS, 60, 10), (MEMORY, 300 * MEGABYTE, 40 * MEGABYTE)):
        assert judge(curve(measure, value, noise=noise), SHORTEST).flat, measure


def test_judge_falling_is_flat() -> None:
    assert judge(curve(HANDLES, 500, leak=-2), SHORTEST).flat


def test_judge_a_peak_during_a_fault_is_flat() -> None:
    calm = curve(HANDLES, 100)
    values = [value + (80 if 200 < at < 300 else 0) for at, value in zip(calm.times, calm.values, strict=True)]
    found = judge(Curve(calm.role, HANDLES, calm.times, values), SHORTEST)
    assert found.flat
    assert (found.first, found.middle, found.last) == (100, 100, 100)


def test_judge_a_pool_that_is_filled_once_is_flat() -> None:
    """A step late in the stretch is in the last quarter; most pairs of points know nothing of it."""
    calm = curve(THREADS, 80)
    values = [value + (20 if at > 360 else 0) for at, value in zip(calm.times, calm.values, strict=True)]
    assert judge(Curve(calm.role, THREADS, calm.times, values), SHORTEST).flat


def test_judge_too_few_samples_are_not_flat() -> None:
    short = Curve("driver python", HANDLES, [0.0, 2.0, 4.0], [7, 8, 9])
    found = judge(short, SHORTEST)
    assert (found.verdict, found.flat, found.first, found.last) == ("too short", False, 7, 9)
    assert judge(Curve("driver python", HANDLES, [], []), SHORTEST).verdict == "too short"


def test_judge_a_process_that_lived_for_a_part_of_the_time_is_not_flat() -> None:
    assert judge(curve(HANDLES, 10), SECONDS + 1).verdict == "too short"


def test_judge_many_samples_are_thinned_and_judged_alike() -> None:
    times = [float(number) for number in range(20_000)]
    found = judge(Curve("driver jvm", THREADS, times, [100 + at / 100 for at in times]), SHORTEST)
    assert (found.verdict, found.points) == ("rising", 20_000)
    assert found.rise == pytest.approx(200, rel=0.05)


def test_theil_sen_wild_points_leave_the_slope() -> None:
    times = [float(number) for number in range(40)]
    values = [2 * at for at in times]
    values[5] = values[20] = 1e9
    assert theil_sen(times, values) == pytest.approx(2, rel=0.01)

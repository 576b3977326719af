"""What sets the pace: cap, trigger, input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.unit.ops.diagnosis.evidences import batch, batches, behind, brokers, caught_up, causes, codes, config


def test_backlog_that_is_worked_off_by_batches_as_long_as_asked_has_no_cause(tmp_path: Path) -> None:
    assert codes(behind(config(tmp_path))) == []


def test_cap_low_is_found_where_full_short_batches_leave_a_backlog(tmp_path: Path) -> None:
    fixed = behind(config(tmp_path, source={"max_offsets": 10_000}), batches=batches(seconds=0.3))
    assert codes(fixed) == ["CAP_LOW"]
    assert causes(fixed)[0].change.startswith("remove source.max_offsets (10000)")
    assert codes(caught_up(fixed)) == []
    assert codes(replace(fixed, batches=batches(seconds=8))) == []
    assert codes(behind(config(tmp_path), batches=batches(seconds=0.3))) == []


def test_cap_low_names_the_bound_of_flow_control_where_that_holds_it_back(tmp_path: Path) -> None:
    bounded = behind(config(tmp_path, flow={"max_offsets": 10_000}), batches=batches(seconds=1.0))
    assert [cause.change for cause in causes(bounded)] == ["flow.max_offsets: 200000 (now 10000)"]


def test_trigger_long_is_found_before_the_cap_that_makes_it_matter(tmp_path: Path) -> None:
    keys = {"source": {"max_offsets": 10_000}, "trigger": {"every": "10 seconds"}}
    long = behind(config(tmp_path, **keys), batches=batches(seconds=0.3, waited=9.7))
    assert codes(long) == ["TRIGGER_LONG", "CAP_LOW"]
    assert "trigger.every (10 seconds)" in causes(long)[0].change
    assert codes(caught_up(long)) == []
    # The batches themselves take most of the time: the trigger is no matter.
    assert "TRIGGER_LONG" not in codes(replace(long, batches=batches(seconds=8, waited=2)))


def test_input_above_rate_is_found_where_the_backlog_grows_for_no_other_reason(tmp_path: Path) -> None:
    growing = tuple(batch(number, lag=20_000 + 10_000 * number) for number in range(6))
    evidence = behind(config(tmp_path), batches=growing, brokers=brokers(40_000, 40_000))
    [cause] = causes(evidence)
    assert cause.code == "INPUT_ABOVE_RATE"
    # 10,000 offsets each 8.5 s are done, and as many are added to the backlog.
    assert cause.summary == "2,353 offsets per second arrive, and 1,176 are processed"
    assert "transform 93 %" in " ".join(cause.evidence)
    assert 'spark.master: "local[5]"' in cause.change
    falling = tuple(batch(number, lag=120_000 - 10_000 * number) for number in range(6))
    assert codes(replace(evidence, batches=falling)) == []


def test_input_above_rate_comes_behind_what_explains_it(tmp_path: Path) -> None:
    growing = tuple(batch(n, lag=20_000 + 10_000 * n, phases={"commit:out": 7.0}) for n in range(6))
    assert codes(behind(config(tmp_path), batches=growing)) == ["SLOW_SINK", "INPUT_ABOVE_RATE"]

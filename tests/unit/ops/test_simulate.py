"""A pipeline on paper: its cost out of a history, what it does at a rate, and how many cores that takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.batches import finished
from tests.unit.ops.diagnosis.evidences import config

from penstock.cli.simulate_text import assumptions, findings
from penstock.config import FlowConfig, PipelineConfig
from penstock.flow.cost import Cost
from penstock.flow.simulation import Arrivals, Burst, Work, adaptive, simulate
from penstock.metrics.history import History, RunStarted
from penstock.ops.simulate import SimulationReport, SimulationRequest, capacity, measure, simulate_pipeline

COST = Cost(1.0, 1e-5)
SECONDS = 1200.0
ASKED = SimulationRequest(500_000, SECONDS, cores=20, partitions=200, cost=COST, record_bytes=200.0)
BURST = replace(ASKED, bursts=(Burst(5_000_000, start=300, seconds=60),))


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> PipelineConfig:
    return config(tmp_path_factory.mktemp("pipeline"))


@pytest.fixture(scope="module")
def steady(pipeline: PipelineConfig) -> SimulationReport:
    return simulate_pipeline(pipeline, ASKED)


@pytest.fixture(scope="module")
def burst(pipeline: PipelineConfig) -> SimulationReport:
    return simulate_pipeline(pipeline, BURST)


def record(history: History, work: Work, waiting: float = 1e8, seconds: float = 300, **facts: Any) -> None:
    """Write down a run on paper as a run does."""
    history.add(RunStarted("direct", work.partitions, work.cores))
    run = simulate(work, Arrivals(1000), adaptive(FlowConfig(), work.cores), seconds, waiting=waiting)
    for step in run.steps:
        one = step.batch
        known = {"bytes_in": one.bytes_in, "lag": one.backlog, "cap": one.cap, "slots": work.cores, **facts}
        history.add(finished(one.batch_id, offsets=one.offsets, seconds=round(one.seconds, 3), **known))


def test_measure_no_batches_is_none(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    assert measure(history.read()) is None
    history.add(RunStarted(cores=2, partitions=4))
    history.add(finished(0, offsets=0))
    assert measure(history.read()) is None


def test_measure_run_on_several_cores_gives_the_cost_of_one_core(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    record(history, Work(0.8, 2e-5, cores=4, partitions=12, split=True))
    found = measure(history.read())
    assert found is not None
    assert (found.fixed, found.per_offset) == (pytest.approx(0.8, rel=0.05), pytest.approx(2e-5, rel=0.05))
    assert (found.cores, found.partitions, found.apart) == (4, 12, True)
    assert found.record_bytes == pytest.approx(200)


def test_measure_goes_by_the_rows_of_the_busiest_slot(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    record(history, Work(0.8, 2e-5, cores=2, partitions=2, hot=3), slot_rows=(300, 100))
    found = measure(history.read())
    assert found is not None and found.per_offset == pytest.approx(2e-5, rel=0.05)


def test_measure_runs_on_other_numbers_of_cores_do_not_count(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    for cores, batches in ((8, 5), (2, 3)):
        history.add(RunStarted(cores=cores, partitions=8))
        for number in range(batches):
            history.add(finished(number, offsets=100_000, seconds=2.0, slots=cores))
    found = measure(history.read())
    assert found is not None and (found.cores, found.batches) == (2, 3)


def test_measure_stream_that_keeps_up_since_long_still_goes_by_its_large_batches(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    history.add(RunStarted(cores=2, partitions=8))
    sizes = [(60_000, 2.3), (60_000, 1.24), (60_000, 1.3), *[(2_700, 0.5 + number % 5 / 5) for number in range(60)]]
    for number, (offsets, seconds) in enumerate(sizes):
        history.add(finished(number, offsets=offsets, seconds=seconds, slots=2 if offsets > 5000 else 1))
    found = measure(history.read())
    assert found is not None and found.apart
    assert found.per_offset == pytest.approx(15e-6, rel=0.2) and found.fixed == pytest.approx(0.85, rel=0.2)


def test_findings_of_batches_far_larger_than_any_measured_say_so(tmp_path: Path, burst: SimulationReport) -> None:
    history = History(tmp_path / "history")
    record(history, Work(1.0, 1e-5, cores=2, split=True), waiting=20_000, seconds=10)
    told = findings(burst, measure(history.read()))
    assert "measure with a larger backlog for a better estimate" in told[-1]


def test_measure_batches_of_one_size_are_said_not_to_tell_the_parts_apart(
    tmp_path: Path, pipeline: PipelineConfig
) -> None:
    history = History(tmp_path / "history")
    history.add(RunStarted(cores=2, partitions=4))
    for number in range(5):
        history.add(finished(number, offsets=100_000, seconds=2.0, slots=2))
    found = measure(history.read())
    assert found is not None and not found.apart
    assert found.per_offset == pytest.approx(2.0 / 50_000)
    told = assumptions(pipeline, ASKED, found, frozenset())
    assert any("these do not show the fixed part" in line for line in told)
    assert any("measured on 5 batches of this pipeline, on 2 cores" in line for line in told)


def test_simulate_rate_below_the_capacity_holds_it(steady: SimulationReport) -> None:
    assert steady.capacity > 500_000 and steady.caught_up is not None
    assert steady.run.backlog(SECONDS) < 500_000 * 60
    assert steady.cores_to_hold is not None and steady.cores_to_hold <= 20


def test_simulate_rate_above_the_capacity_never_catches_up_and_says_what_would(pipeline: PipelineConfig) -> None:
    report = simulate_pipeline(pipeline, replace(ASKED, cores=4))
    assert report.caught_up is None
    told = findings(report)
    assert "it never catches up" in told
    assert f"cores to sustain 500,000 per second: {report.cores_to_hold}" in told


def test_simulate_cores_to_hold_are_the_fewest_that_do(pipeline: PipelineConfig, steady: SimulationReport) -> None:
    cores = steady.cores_to_hold
    assert cores is not None
    enough, fewer = (simulate_pipeline(pipeline, replace(ASKED, cores=number)) for number in (cores, cores - 1))
    assert enough.run.backlog(SECONDS) < fewer.run.backlog(SECONDS)
    assert fewer.asked.rate >= fewer.capacity and enough.asked.rate < enough.capacity


def test_simulate_cores_to_catch_up_do_so_about_in_time_and_half_of_them_do_not(
    pipeline: PipelineConfig, burst: SimulationReport
) -> None:
    cores = burst.cores_to_catch_up
    assert cores is not None
    taken = simulate_pipeline(pipeline, replace(BURST, cores=cores)).caught_up
    assert taken is not None and taken <= 1.15 * BURST.within
    half = simulate_pipeline(pipeline, replace(BURST, cores=cores // 2)).caught_up
    assert half is None or half > BURST.within


def test_simulate_backlog_of_a_burst_is_seen_at_its_height_and_gone_afterwards(burst: SimulationReport) -> None:
    waits, when = burst.peak
    assert 300 < when <= 400 and waits >= 100_000_000
    assert max(row.backlog for row in burst.rows) == waits
    assert burst.rows[-1].until == pytest.approx(SECONDS)
    assert burst.rows[-1].backlog < waits / 10


def test_simulate_whole_partitions_bound_the_cores_and_a_hot_one_bounds_the_rate(pipeline: PipelineConfig) -> None:
    few = replace(ASKED, partitions=4, cores=16, whole=True)
    assert capacity(pipeline, few) == pytest.approx(capacity(pipeline, replace(few, cores=4)))
    assert "4 partitions handle" in findings(simulate_pipeline(pipeline, few))[-1]
    hot = replace(ASKED, partitions=40, cores=40, whole=True, hot=0.5)
    assert capacity(pipeline, hot) == pytest.approx(capacity(pipeline, replace(hot, cores=2)), rel=0.1)
    assert "spread the hot one" in findings(simulate_pipeline(pipeline, hot))[-1]
    assert capacity(pipeline, replace(hot, whole=False)) > 15 * capacity(pipeline, hot)


def test_assumptions_of_a_kafka_sink_in_transactions_name_what_binds_the_cores(tmp_path: Path) -> None:
    sinks = [{"name": "out", "type": "kafka", "topic": "orders.clean"}]
    told = assumptions(config(tmp_path, sinks=sinks), replace(ASKED, whole=True), None, frozenset())
    assert "partitions: 200; more cores than that stay idle: sink out writes in transactions" in "\n".join(told)
    assert any("raise `slots`" in line for line in told)


def test_simulate_fixed_cap_that_is_too_low_is_said_to_be(tmp_path: Path) -> None:
    low = config(tmp_path, source={"max_offsets": 1000})
    report = simulate_pipeline(low, ASKED)
    assert report.cores_to_hold is None
    assert {step.batch.cap for step in report.run.steps} == {1000}
    assert "source.max_offsets" in findings(report)[-1]


def test_simulate_json_has_what_is_printed(burst: SimulationReport) -> None:
    told = burst.as_json()
    assert told["holds"] is True
    assert told["most_waiting"] >= 100_000_000
    assert told["series"][-1]["until"] == SECONDS
    assert told["decisions"][0]["reason"] == "start"

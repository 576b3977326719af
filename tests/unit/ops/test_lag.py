"""Lag on paper: rates, hot partitions, words, and why its group differs. No broker."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.batches import finished
from tests.spark_checkpoint import write_checkpoint
from tests.unit.ops.snapshots import P0, P1, TWO_BATCHES, pipeline

from penstock.checkpoint import Offsets
from penstock.checkpoint.logs import read_files
from penstock.config import PipelineConfig
from penstock.errors import MissingError
from penstock.metrics.history import Entry, GroupNoted, LagNoted, RunStarted
from penstock.model import TopicPartition
from penstock.ops.lag import (
    GroupView,
    LagReport,
    PartitionLag,
    Sample,
    group_note,
    hot_partitions,
    rates_of,
    read_meanwhile,
    samples_at_rest,
    samples_in,
    samples_in_run,
    window_of,
)
from penstock.wording import spell

NOW = datetime(2026, 1, 31, 8, tzinfo=UTC)


def sample(seconds: float, end: int, position: int) -> Sample:
    return Sample(NOW + timedelta(seconds=seconds), {P0: end}, {P0: position})


def test_rates_of_a_steady_backlog_are_exact() -> None:
    looks = [sample(-s, 10_000 - 100 * s, 5_000 - 400 * s) for s in (5, 10, 15, 60)]
    rates = rates_of(looks, sample(0, 10_000, 5_000))
    assert rates.growth == pytest.approx(-300)
    assert rates.incoming == pytest.approx(100)
    assert rates.processing == pytest.approx(400)
    assert rates.partitions[P0] == pytest.approx(-300)


def test_rates_of_lag_that_rises_and_falls_with_every_batch_are_near_none() -> None:
    # 100 come in each second, and a batch of 1,000 ends every 10 seconds.
    looks = [sample(s - 119, 100 * s, 1000 * (s // 10)) for s in range(0, 120, 5)]
    rates = rates_of(looks[:-1], looks[-1])
    assert rates.incoming == pytest.approx(100)
    assert abs(rates.growth or 0.0) < 5


def test_rates_look_back_no_further_than_they_must() -> None:
    long_ago, fresh = sample(-3000, 0, 0), sample(-10, 900, 0)
    now = sample(0, 1000, 0)
    assert rates_of([long_ago, fresh], now).growth == pytest.approx(10)
    assert rates_of([long_ago], now).growth == pytest.approx(1000 / 3000)
    assert rates_of([sample(-4000, 0, 0)], now).growth is None
    assert rates_of([sample(-0.2, 900, 0)], now).growth is None
    assert rates_of([], now).growth is None


def test_window_covers_several_batches() -> None:
    assert window_of([]) == timedelta(minutes=2)
    assert window_of([finished(0, seconds=100.0, waited=10.0)]) == timedelta(seconds=440)
    assert window_of([finished(0, seconds=5000.0)]) == timedelta(minutes=15)


def noted_look(seconds: float, end: int, position: int) -> Entry:
    return Entry(NOW + timedelta(seconds=seconds), LagNoted({"orders": [position]}, {"orders": [end]}))


def test_rates_of_a_run_leave_out_what_was_before_it_began() -> None:
    entries = [noted_look(-90, 0, 0), Entry(NOW, RunStarted()), noted_look(-10, 1000, 500)]
    assert samples_in_run(entries, None) == [sample(-10, 1000, 500)]
    assert samples_in_run(entries, sample(-2, 0, 0)) == [sample(-10, 1000, 500), sample(-2, 0, 0)]
    assert rates_of(samples_in_run(entries, None), sample(0, 1100, 800)).growth == pytest.approx(-20)


def test_rates_while_nobody_reads_are_what_comes_in() -> None:
    # The run noted a look when it began, then read everything and ended.
    looks = samples_at_rest([noted_look(-50, 900, 0), noted_look(-10, 1000, 0)], None, {P0: 1000})
    assert rates_of(looks, sample(0, 1200, 1000)).growth == pytest.approx(20)
    assert rates_of(looks, sample(0, 1000, 1000)).growth == 0.0
    assert samples_at_rest([noted_look(-50, 900, 0)], sample(-2, 1100, 0), {P0: 1000}) == [sample(-2, 1100, 1000)]


def test_rates_of_the_partitions_add_up_to_the_whole() -> None:
    looks = [
        Sample(NOW + timedelta(seconds=second), {P0: 100 * second, P1: 7 * second**2}, {P0: 90 * second, P1: 0})
        for second in (-60, -30, -5, 0)
    ]
    rates = rates_of(looks[:-1], looks[-1])
    assert sum(rates.partitions.values()) == pytest.approx(rates.growth)


def test_samples_come_from_the_looks_in_a_history() -> None:
    looked = LagNoted({"orders": [None, 4]}, {"orders": [None, 9]})
    entries = [Entry(NOW, looked), Entry(NOW, finished(0))]
    (found,) = samples_in(entries)
    assert (found.at, found.lags) == (NOW, {P1: 5})


@pytest.mark.parametrize(
    ("lags", "hot"),
    [
        ([100_000, 10, 20, 30], [0]),
        ([5000, 4000, 4500, 4200], []),
        ([999, 0, 0], []),
        ([5000, 0], [0]),
        ([5000], []),
        ([12_000, 11_000, 4000, 4000, 4000, 13_000], [0, 5]),
        ([], []),
    ],
)
def test_hot_partitions_have_several_times_the_lag_of_the_others(lags: list[int], hot: list[int]) -> None:
    found = hot_partitions({TopicPartition("orders", number): lag for number, lag in enumerate(lags)})
    assert sorted(at.partition for at in found) == hot


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4 s"), (59, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (3600, "1 h"), (9000, "2 h 30 min"),
     (90_000, "1 d 1 h"), (86_400 * 12, "12 d")],
)  # fmt: skip
def test_spell_has_two_units(seconds: float, text: str) -> None:
    assert spell(seconds) == text


def report(**facts: Any) -> LagReport:
    whole: dict[str, Any] = {
        "pipeline": "orders", "at": NOW, "partitions": (), "total": 12_340, "behind_seconds": 200.0, "growth": None,
        "input_rate": None, "processing_rate": None, "catch_up_seconds": None, "group": "penstock.orders", "notes": (),
        "running": True,
    }  # fmt: skip
    return LagReport(**{**whole, **facts})


BEHIND = "12,340 behind, the oldest unread record is 3 min 20 s old; "


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"growth": 120.0, "input_rate": 500.0}, BEHIND + "growing by 120/s: it does not catch up"),
        ({"growth": -100.0, "catch_up_seconds": 123.4}, BEHIND + "shrinking by 100/s: caught up in about 2 min 3 s"),
        ({"growth": 0.1}, BEHIND + "neither growing nor shrinking: it does not catch up"),
        ({}, BEHIND + "the growth is not known yet"),
        ({"running": False}, BEHIND + "the pipeline is not running"),
        ({"running": False, "growth": 55.0}, BEHIND + "the pipeline is not running, and 55/s arrive"),
        ({"running": False, "never_ran": True}, BEHIND + "it has not run yet"),
        ({"total": 0, "behind_seconds": 0.0}, "caught up: nothing waits"),
        (
            {"growth": 200.0, "input_rate": 500.0, "batch_offsets": 10_000},
            BEHIND + "it keeps up: one or two batches will read all that waits",
        ),
        (
            {"growth": 400.0, "input_rate": 500.0, "batch_offsets": 10_000},
            BEHIND + "growing by 400/s: it does not catch up",
        ),
    ],
)
def test_report_says_in_words_where_it_leads(facts: dict[str, Any], text: str) -> None:
    assert report(**facts).text == text


def test_report_as_json_has_the_shape_that_others_rely_on() -> None:
    one = PartitionLag("orders", 3, 10, 2010, 2000, 7.5, None, 5, True)
    body = report(partitions=(one,), total=2000).as_json()
    assert body["partitions"] == [
        {"topic": "orders", "partition": 3, "committed": 10, "end": 2010, "lag": 2000, "seconds_behind": 7.5,
         "growth": None, "group": 5, "hot": True}
    ]  # fmt: skip
    assert (body["total"], body["hot"], body["at"]) == (2000, ["orders[3]"], "2026-01-31T08:00:00+00:00")


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    return pipeline(tmp_path, "earliest")


GROUP = GroupView("penstock.orders", {P0: 30, P1: 40})
IN_USE = Entry(NOW, GroupNoted("GROUP_IN_USE has members"))


def noted(config: PipelineConfig, group: GroupView, committed: Offsets | None, **more: Any) -> str | None:
    files = read_files(config.checkpoint)
    return group_note(group, committed, files, more.get("entries", ()), running=more.get("running", False))


def test_group_note_where_both_say_the_same_is_none(config: PipelineConfig) -> None:
    write_checkpoint(Path(config.checkpoint), TWO_BATCHES)
    assert noted(config, GROUP, {P0: 30, P1: 40}) is None
    assert noted(config, GroupView("g"), None) is None


@pytest.mark.parametrize(
    ("group", "committed", "more", "words"),
    [
        (GroupView(None), {P0: 30, P1: 40}, {}, "source.group is false"),
        (GroupView("g", error=MissingError("KAFKA_NOT_AUTHORIZED", "asking")), {P0: 30}, {}, "KAFKA_NOT_AUTHORIZED"),
        (GroupView("g"), {P0: 30, P1: 40}, {}, "g has no offsets: no run committed to it, or they have expired"),
        (GroupView("g"), {P0: 30, P1: 40}, {"running": True}, "no batch was committed to it yet"),
        (GROUP, None, {}, "this pipeline has committed none"),
        (
            replace(GROUP, offsets={P0: 10, P1: 20}),
            {P0: 30, P1: 40},
            {"running": True},
            "it is at batch 0, the sinks at batch 1: it will catch up in a moment",
        ),
        (replace(GROUP, offsets={P0: 10, P1: 20}), {P0: 30, P1: 40}, {}, "the last run ended before committing to it"),
        (GROUP, {P0: 10, P1: 20}, {}, "it is at batch 1, the sinks at batch 0: a sink or the checkpoint was restored"),
        (
            replace(GROUP, offsets={P0: 5, P1: 40}),
            {P0: 30, P1: 40},
            {},
            "(5, they have 30): its offsets belong to no batch",
        ),
        (
            replace(GROUP, offsets={P0: 10, P1: 20}),
            {P0: 30, P1: 40},
            {"entries": [IN_USE], "running": True},
            "commits to it have failed since 2026-01-31 08:00:00 UTC: GROUP_IN_USE has members",
        ),
        (
            replace(GROUP, offsets={P0: 10, P1: 20}),
            {P0: 30, P1: 40},
            {"entries": [Entry(NOW, RunStarted()), IN_USE]},
            "the last run failed at 2026-01-31 08:00:00 UTC: GROUP_IN_USE has members",
        ),
        (
            replace(GROUP, offsets={P0: 5, P1: 40}),
            {P0: 30, P1: 40},
            {"entries": [IN_USE, Entry(NOW, RunStarted())]},
            "changed by someone else",
        ),
        (
            replace(GROUP, offsets={P0: 10, P1: 20}),
            {P0: 30, P1: 40},
            {"entries": [IN_USE, Entry(NOW, GroupNoted(None))]},
            "it is at batch 0",
        ),
    ],
)
def test_group_note_says_why_the_two_differ(
    config: PipelineConfig, group: GroupView, committed: Offsets | None, more: dict[str, Any], words: str
) -> None:
    write_checkpoint(Path(config.checkpoint), TWO_BATCHES)
    assert words in (noted(config, group, committed, **more) or "")


@pytest.mark.parametrize(
    ("held", "meanwhile"),
    [({P0: 30, P1: 40}, True), ({P0: 10, P1: 20}, True), ({P0: 35, P1: 40}, False), ({P0: 5, P1: 40}, False)],
)
def test_group_that_was_asked_later_than_the_sinks_is_not_ahead_of_them(
    config: PipelineConfig, held: Offsets, meanwhile: bool
) -> None:
    write_checkpoint(Path(config.checkpoint), TWO_BATCHES)
    # The sinks were asked when batch 0 was the last one; now they have batch 1.
    assert read_meanwhile(config, GroupView("g", held), {P0: 10, P1: 20}) is meanwhile

"""What a history tells of the last minutes, in the shape of the page."""

from __future__ import annotations

import json

import pytest
from tests.unit.dashboard.pipelines import ago, batch, lag

from penstock.dashboard.flow_graph import Rates
from penstock.dashboard.recent import MOST_COLUMNS, Recent, in_order, moment, wall_phases
from penstock.dashboard.views import rates_of
from penstock.metrics.history import parse_entry


def taken(*entries: dict[str, object]) -> Recent:
    recent = Recent()
    for entry in entries:
        take(recent, entry)
    return recent


def take(recent: Recent, entry: dict[str, object]) -> None:
    if (parsed := parse_entry(json.dumps(entry).encode())) is not None:
        recent.take(parsed)


def test_phases_of_a_batch_add_up_to_it_and_share_the_stage_by_the_tasks() -> None:
    phases = wall_phases(2.0, batch(1, ago(0))["phases"])
    assert phases == {
        "offsets": 0.1, "read": 0.25, "decode": 0.5, "stage": 0.25, "commit:quarantine": 0.1, "commit:out": 0.3,
        "commit": 0.1, "other": 0.4,
    }  # fmt: skip
    assert sum(phases.values()) == pytest.approx(2.0)


def test_phases_of_a_batch_without_tasks_keep_the_stage_whole() -> None:
    assert wall_phases(1.0, {"offsets": 0.2, "stage": 0.8}) == {"offsets": 0.2, "stage": 0.8}
    assert wall_phases(0.5, {}) == {"other": 0.5}


def test_phases_of_several_batches_are_in_the_order_of_a_batch() -> None:
    recent = taken(batch(0, ago(9), phases={"stage": 1.0}), batch(1, ago(1)))
    assert in_order(recent.batches) == [
        "offsets", "read", "decode", "stage", "commit:quarantine", "commit:out", "commit", "other",
    ]  # fmt: skip


def test_columns_of_lags_follow_the_order_of_the_partitions() -> None:
    recent = taken(lag(ago(5), "b", [10, None, 30], [4, None, None]))
    assert recent.seen.places == (("b", 0), ("b", 2))
    assert recent.columns[-1].lags.tolist() == [6, -1]
    assert (recent.columns[-1].total, recent.columns[-1].behind_seconds) == (6, 1.5)
    assert (recent.seen.ends, recent.seen.committed) == ((10, 30), (4, -1))


def test_columns_of_a_topic_that_grew_are_put_into_the_new_order() -> None:
    recent = taken(lag(ago(10), "b", [10, 20], [4, 20]), lag(ago(5), "b", [10, 20], [5, 20]))
    order = recent.order
    take(
        recent,
        {**lag(ago(0), "b", [10, 20, 5], [6, 20, 0]), "ends": {"a": [7], "b": [10, 20, 5]},
         "committed": {"a": [0], "b": [6, 20]}},
    )  # fmt: skip
    assert recent.order == order + 1
    assert [column.lags.tolist() for column in recent.columns] == [[-1, 6, 0, -1], [-1, 5, 0, -1], [7, 4, 0, -1]]


def test_columns_are_bounded_and_their_numbers_count_on() -> None:
    recent = taken(*(lag(ago(500 - number), "a", [number], [0]) for number in range(MOST_COLUMNS + 30)))
    assert len(recent.columns) == MOST_COLUMNS
    assert recent.columns[-1].number == MOST_COLUMNS + 30
    assert recent.order == 1


def test_totals_are_those_of_the_run() -> None:
    run = {"at": ago(50), "event": "started", "lane": "direct", "partitions": 1, "pid": 7}
    recent = taken(batch(1, ago(90)), run, batch(2, ago(20)), batch(3, ago(10)))
    assert recent.totals == {"rows_in": 2000, "rows_out": 1980, "quarantined": 20}
    assert recent.codes == {"MALFORMED_JSON": 20}
    assert [one["id"] for one in recent.batches] == [1, 2, 3]


def test_an_entry_that_is_not_shaped_as_it_should_be_is_left_out() -> None:
    recent = taken(
        {"at": ago(1), "event": "batch"},
        {"at": ago(1), "event": "lag", "ends": 7},
        {"at": ago(1), "event": "lag", "ends": {"a": ["x"]}, "committed": {}},
        {"at": ago(1), "event": "unheard_of"},
        batch(4, ago(0)),
        batch(5, ago(0), rows_in="many"),
    )
    assert [one["id"] for one in recent.batches] == [4]
    assert not recent.columns
    assert recent.totals["rows_in"] == 1000


def test_an_alert_fires_until_it_is_resolved() -> None:
    fired = {"at": ago(9), "event": "alert", "rule": "lag_over", "state": "firing", "text": "lag is 9"}
    recent = taken(fired, {**fired, "rule": "no_commit_for"}, {**fired, "state": "resolved"})
    assert [alert["rule"] for alert in recent.firing] == ["no_commit_for"]


def test_rates_of_a_steady_stream_are_those_of_the_last_minute() -> None:
    recent = taken(*(batch(number, ago(300 - 10 * number), seconds=10.0) for number in range(31)))
    now = moment(recent.batches[-1]["at"])
    rates = rates_of(list(recent.batches), None, now)
    assert rates.rows_in == pytest.approx(100, rel=0.17)
    assert rates.quarantined == pytest.approx(1, rel=0.17)


def test_rates_of_one_small_batch_in_a_quiet_minute_are_spread_over_it() -> None:
    recent = taken(batch(0, ago(1000)), batch(1, ago(0)))
    assert rates_of(list(recent.batches), None, moment(recent.batches[-1]["at"])).rows_in == 16.7


def test_rates_of_long_batches_hold_until_the_next_is_overdue() -> None:
    recent = taken(batch(1, ago(100), seconds=99.5))
    ended = moment(recent.batches[-1]["at"])
    assert rates_of(list(recent.batches), None, ended + 100).rows_in == 10.0
    assert rates_of(list(recent.batches), None, ended + 300) == Rates()

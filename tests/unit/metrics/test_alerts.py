"""When alerts fire and resolve, over made-up observations: no clock, no thread."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.alerts import AlertRuleConfig
from penstock.metrics.alerts import Alert, AlertBook, Observation

START = datetime(2026, 1, 31, 8, tzinfo=UTC)


def rule(**keys: Any) -> AlertRuleConfig:
    return AlertRuleConfig.model_validate(keys)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def seen(seconds: float, **figures: Any) -> Observation:
    return Observation(at(seconds), **figures)


def told(book: AlertBook, *observations: Observation) -> list[tuple[float, str, str]]:
    """Seconds from the start, rule and state of each alert."""
    alerts = [alert for observation in observations for alert in book.look(observation)]
    return [((alert.at - START).total_seconds(), alert.rule, alert.state) for alert in alerts]


LAG = {"lag_over": 100, "for": "60 seconds"}


def test_lag_that_stays_over_the_limit_fires_once_and_resolves_once() -> None:
    book = AlertBook([rule(**LAG)])
    over = [seen(second, lag=150) for second in range(0, 300, 10)]
    under = [seen(second, lag=100) for second in range(300, 600, 10)]
    assert told(book, *over, *under) == [(60, "lag_over", "firing"), (300, "lag_over", "resolved")]


def test_lag_that_is_over_the_limit_again_fires_again_after_the_whole_time() -> None:
    book = AlertBook([rule(**LAG)])
    lags = [150] * 7 + [0] + [150] * 7
    found = told(book, *(seen(10 * index, lag=lag) for index, lag in enumerate(lags)))
    assert found == [(60, "lag_over", "firing"), (70, "lag_over", "resolved"), (140, "lag_over", "firing")]


def test_lag_that_comes_and_goes_within_the_time_never_fires() -> None:
    book = AlertBook([rule(**LAG)])
    assert told(book, *(seen(second, lag=150 if second % 60 else 0) for second in range(0, 600, 10))) == []


def test_lag_that_is_not_known_changes_nothing() -> None:
    book = AlertBook([rule(**LAG)])
    fired = [seen(0, lag=150), seen(60, lag=150)]
    assert told(book, *fired, seen(70), seen(80, lag=None), seen(90, lag=99)) == [
        (60, "lag_over", "firing"),
        (90, "lag_over", "resolved"),
    ]


def test_alert_says_what_it_saw_and_since_when() -> None:
    book = AlertBook([rule(**LAG)])
    book.look(seen(0, lag=1500))
    (fired,) = book.look(seen(60, lag=1600))
    text = "lag is 1,600 offsets, over 100 for 1 minute"
    assert fired == Alert("lag_over", "firing", text, 1600, 100, since=at(0), at=at(60))
    (resolved,) = book.look(seen(90, lag=7))
    assert (resolved.state, resolved.since, resolved.at, resolved.value) == ("resolved", at(0), at(90), 7)
    assert fired.as_json() == {
        "rule": "lag_over",
        "state": "firing",
        "text": text,
        "value": 1600,
        "limit": 100,
        "since": "2026-01-31T08:00:00+00:00",
        "at": "2026-01-31T08:01:00+00:00",
    }


def test_behind_for_long_enough_fires_and_resolves_when_nothing_waits() -> None:
    book = AlertBook([rule(**{"behind_over": "10 minutes", "for": "20 seconds"})])
    late = [seen(second, lag=5, behind_seconds=700.0) for second in (0, 10, 20, 30)]
    # Nothing waits, so nothing has an age.
    found = told(book, *late, seen(40, lag=5), seen(50, lag=0))
    assert found == [(20, "behind_over", "firing"), (50, "behind_over", "resolved")]


def test_no_commit_while_records_wait_fires_once_and_resolves_with_the_commit() -> None:
    book = AlertBook([rule(no_commit_for="60 seconds")])
    hangs = [seen(second, lag=5, last_commit_at=at(-5)) for second in range(0, 200, 10)]
    commits = [seen(200, lag=5, last_commit_at=at(195)), seen(210, lag=5, last_commit_at=at(195))]
    # A new run has the whole time for its first commit, whatever was before it.
    found = told(book, *hangs, *commits)
    assert found == [(70, "no_commit_for", "firing"), (200, "no_commit_for", "resolved")]


def test_no_commit_of_a_stream_with_nothing_to_read_is_no_alert() -> None:
    book = AlertBook([rule(no_commit_for="60 seconds")])
    idle = [seen(second, lag=0, last_commit_at=at(0)) for second in range(0, 3600, 10)]
    # The first record after an hour of silence is not late yet.
    busy = [seen(second, lag=1, last_commit_at=at(0)) for second in range(3600, 3640, 10)]
    assert told(book, *idle, *busy, seen(3660, lag=1, last_commit_at=at(0))) == [(3660, "no_commit_for", "firing")]


def test_no_commit_while_the_brokers_are_away_fires() -> None:
    book = AlertBook([rule(no_commit_for="60 seconds")])
    away = [seen(second, lag=None, last_commit_at=at(0)) for second in range(0, 100, 10)]
    assert told(book, *away) == [(70, "no_commit_for", "firing")]


def test_no_commit_of_a_run_that_never_commits_fires() -> None:
    book = AlertBook([rule(no_commit_for="60 seconds")])
    assert told(book, *(seen(second, lag=5) for second in range(0, 300, 10))) == [(70, "no_commit_for", "firing")]


def test_quarantine_share_of_the_last_minutes_fires_once_and_resolves_once() -> None:
    book = AlertBook([rule(**{"quarantine_over": "5 %", "for": "60 seconds"})])
    observations, rows, bad = [], 0, 0
    for second in range(0, 600, 10):
        rows, bad = rows + 1000, bad + (100 if 200 <= second < 300 else 0)
        observations.append(seen(second, rows_in=rows, quarantined=bad))
    found = told(book, *observations)
    # Over 60 seconds: 300 of 6,000 are 5 %, four times 100 are more; the last is out of it 60 seconds later.
    assert found == [(230, "quarantine_over", "firing"), (320, "quarantine_over", "resolved")]


def test_quarantine_share_before_the_time_has_passed_is_not_known() -> None:
    rules = [rule(**{"quarantine_over": "5 %", "for": "60 seconds"})]
    storm = [seen(second, rows_in=second, quarantined=second) for second in range(0, 60, 10)]
    assert told(AlertBook(rules), *storm) == []
    # Nor does it resolve what an earlier run fired.
    assert told(AlertBook(rules, {"quarantine_over": at(-600)}), *storm) == []


def test_quarantine_share_without_any_record_resolves() -> None:
    book = AlertBook([rule(**{"quarantine_over": 0, "for": "10 seconds"})])
    counts = [(0, 0), (10, 1), (10, 1), (10, 1)]
    found = told(book, *(seen(10 * index, rows_in=rows, quarantined=bad) for index, (rows, bad) in enumerate(counts)))
    assert found == [(10, "quarantine_over", "firing"), (20, "quarantine_over", "resolved")]


def test_quarantine_share_of_counts_that_begin_again_is_of_the_new_ones() -> None:
    book = AlertBook([rule(**{"quarantine_over": "5 %", "for": "20 seconds"})])
    counts = [(1000, 900), (2000, 950), (10, 0), (20, 0), (30, 0), (40, 0)]
    found = told(book, *(seen(10 * index, rows_in=rows, quarantined=bad) for index, (rows, bad) in enumerate(counts)))
    assert found == []


def test_restarts_in_a_short_time_fire_once_and_resolve_when_they_are_long_ago() -> None:
    book = AlertBook([rule(restarts_over=2, within="60 seconds")])
    restarts: tuple[datetime, ...] = ()
    observations = []
    for second in range(0, 200, 10):
        if second in (20, 40, 60):
            restarts = (*restarts, at(second))
        observations.append(seen(second, restarts=restarts))
    assert told(book, *observations) == [(60, "restarts_over", "firing"), (80, "restarts_over", "resolved")]


def test_book_of_a_run_that_is_started_again_does_not_fire_twice() -> None:
    rules = [rule(**LAG), rule(no_commit_for="60 seconds")]
    firing = {"lag_over": at(-600), "no_commit_for": at(-600)}
    still = [seen(second, lag=150, last_commit_at=at(-660)) for second in range(0, 300, 10)]
    assert told(AlertBook(rules, firing), *still) == []
    over = seen(300, lag=0, last_commit_at=at(290))
    book = AlertBook(rules, firing)
    assert told(book, *still, over, over) == [
        (300, "lag_over", "resolved"),
        (300, "no_commit_for", "resolved"),
    ]


def test_book_of_a_rule_that_is_gone_resolves_it_once() -> None:
    book = AlertBook([rule(**LAG)], {"old_name": at(-60)})
    assert told(book, seen(0, lag=0), seen(10, lag=0)) == [(0, "old_name", "resolved")]


def test_rules_of_one_kind_are_told_apart_by_name() -> None:
    book = AlertBook([rule(**LAG), rule(**{"lag_over": 1000, "for": "10 seconds", "name": "page"})])
    found = told(book, seen(0, lag=5000), seen(10, lag=5000), seen(60, lag=5000), seen(70, lag=500))
    assert found == [(10, "page", "firing"), (60, "lag_over", "firing"), (70, "page", "resolved")]


@given(st.lists(st.integers(0, 200) | st.none(), max_size=60), st.booleans())
def test_lag_whatever_it_is_fires_and_resolves_in_turn(lags: list[int | None], fires_already: bool) -> None:
    book = AlertBook([rule(**LAG)], {"lag_over": at(-1)} if fires_already else {})
    found = told(book, *(seen(10 * index, lag=lag) for index, lag in enumerate(lags)))
    states = [state for _, _, state in found]
    first = "resolved" if fires_already else "firing"
    other = "firing" if fires_already else "resolved"
    assert states == [first if index % 2 == 0 else other for index in range(len(states))]


@pytest.mark.parametrize(
    ("keys", "observations", "text"),
    [
        ({"behind_over": "10 minutes", "for": "1 second"}, 2 * [{"lag": 1, "behind_seconds": 754.0}], "by 13 minutes"),
        ({"no_commit_for": "1 hour"}, [{"lag": 1200}] * 2, "no commit for 2.8 hours, and 1,200 offsets wait"),
        ({"quarantine_over": "5 %"}, [{}, {"rows_in": 8, "quarantined": 1}], "12.5% of the records of the last 5 min"),
        ({"restarts_over": 0}, [{}, {"restarts": (at(9999),)}], "1 restarts in the last 10 minutes, over 0"),
    ],
)
def test_alert_in_words_has_both_sides(keys: dict[str, Any], observations: list[dict[str, Any]], text: str) -> None:
    book = AlertBook([rule(**keys)])
    assert book.look(seen(0, **observations[0])) == []
    (alert,) = book.look(seen(10_000, **observations[1]))
    assert text in alert.text

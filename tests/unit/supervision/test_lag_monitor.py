"""How long the first unread record has waited, by what was seen of its partition."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.supervision.lag_monitor import unread_since

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_unread_since_is_the_time_of_the_record_where_that_was_read() -> None:
    assert unread_since(10, (10, at(3)), [(at(5), 10)]) == at(3)


def test_unread_since_of_a_record_that_was_not_read_is_the_last_look_without_it() -> None:
    looks = [(at(0), 10), (at(5), 20), (at(10), 30)]
    assert unread_since(20, (10, at(-2)), looks) == at(5)
    assert unread_since(29, (10, at(-2)), looks) == at(5)


def test_unread_since_is_no_earlier_than_a_record_before_it() -> None:
    assert unread_since(20, (10, at(7)), [(at(5), 20)]) == at(7)
    assert unread_since(20, (30, at(7)), [(at(5), 20)]) == at(5)


def test_unread_since_is_not_known_where_all_looks_had_the_record_and_none_was_read() -> None:
    assert unread_since(5, None, [(at(0), 10), (at(5), None)]) is None

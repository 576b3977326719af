"""Points in the log as people name them, the ranges between, and what retention has deleted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.errors import MissingError
from penstock.kafka import LogBounds
from penstock.model import OffsetRange, TopicPartition
from penstock.ops.points import parse_partitions, parse_point, resolve
from penstock.ops.replay.ranges import between, choose, lost_before

TIME = datetime(2026, 1, 31, 8, tzinfo=UTC)
ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
LOG = {ZERO: LogBounds(100, 900), ONE: LogBounds(0, 50)}


class Times:
    """A cluster that knows one time only."""

    def offsets_at(self, partitions: Any, when: datetime) -> dict[TopicPartition, int]:
        assert when == TIME
        return {at: {ZERO: 500, ONE: -1}[at] for at in partitions}


def offsets_of(option: str, text: str, live: dict[TopicPartition, int] | None = None) -> dict[TopicPartition, int]:
    cluster: Any = Times()
    return resolve(parse_point(option, text, ["orders"]), [ZERO, ONE], cluster, LOG, live or {})


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("--from", "earliest", {ZERO: 100, ONE: 0}),
        ("--to", "latest", {ZERO: 900, ONE: 50}),
        ("--to", "committed", {ZERO: 700, ONE: 0}),
        ("--from", "2026-01-31T08:00:00Z", {ZERO: 500, ONE: 50}),
        ("--to", "2026-01-31T10:00:00+02:00", {ZERO: 500, ONE: 50}),
        ("--from", "0=7, 1=20", {ZERO: 7, ONE: 20}),
        ("--from", "orders:0=7,orders:1=20", {ZERO: 7, ONE: 20}),
    ],
)
def test_point_words_times_and_offsets_become_offsets(option: str, text: str, expected: Any) -> None:
    assert offsets_of(option, text, live={ZERO: 700}) == expected


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--from", "latest", "cannot be read"),
        ("--from", "committed", "cannot be read"),
        ("--to", "earliest", "cannot be read"),
        ("--from", "yesterday", "cannot be read"),
        ("--from", "2026-01-31T08:00:00", "has no zone"),
        ("--from", "0=7,1", "cannot be read"),
        ("--from", "0=-7", "cannot be read"),
    ],
)
def test_point_that_cannot_be_read_is_refused_with_examples(option: str, text: str, said: str) -> None:
    with pytest.raises(MissingError) as refused:
        parse_point(option, text, ["orders"])
    assert refused.value.code == "REPLAY_RANGE_UNREADABLE"
    assert said in refused.value.summary
    assert "orders:0=1500" in (refused.value.hint or "")


def test_partition_without_a_topic_where_there_are_several_is_refused() -> None:
    assert parse_partitions("a:0,b:3", ["a", "b"]) == {TopicPartition("a", 0), TopicPartition("b", 3)}
    with pytest.raises(MissingError, match="has no topic"):
        parse_partitions("0,3", ["a", "b"])


def test_partitions_chosen_are_those_that_every_option_names() -> None:
    assert choose([], LOG) == [ZERO, ONE]
    assert choose([{ZERO, ONE}, {ONE}], LOG) == [ONE]
    with pytest.raises(MissingError) as refused:
        choose([{TopicPartition("orders", 7)}], LOG)
    assert refused.value.code == "PARTITION_MISSING"


def test_ranges_between_are_what_the_log_has_of_them() -> None:
    assert between({ZERO: 0, ONE: 20}, {ZERO: 5000, ONE: 20}, LOG) == [OffsetRange("orders", 0, 100, 900)]
    assert between({ZERO: 950, ONE: 3}, {ZERO: 990, ONE: 5}, LOG) == [OffsetRange("orders", 1, 3, 5)]


def test_offsets_before_the_log_are_missing_exactly() -> None:
    point = parse_point("--from", "0=40,1=0", ["orders"])
    [lost] = lost_before(point, {ZERO: 40, ONE: 0}, {ZERO: 900, ONE: 50}, LOG, {})
    assert (lost.at, lost.start, lost.end) == (ZERO, 40, 100)
    [short] = lost_before(point, {ZERO: 40, ONE: 0}, {ZERO: 60, ONE: 50}, LOG, {})
    assert (short.start, short.end) == (40, 60)


def test_time_before_the_oldest_record_left_is_missing_and_one_behind_it_is_not() -> None:
    point, later = parse_point("--from", TIME.isoformat(), ["orders"]), datetime(2026, 1, 31, 9, tzinfo=UTC)
    starts, ends = {ZERO: 100, ONE: 0}, {ZERO: 900, ONE: 50}
    [lost] = lost_before(point, starts, ends, LOG, {ZERO: later, ONE: later})
    assert (lost.at, lost.start, lost.end) == (ZERO, None, 100)
    assert lost_before(point, starts, ends, LOG, {ZERO: TIME, ONE: TIME}) == []
    assert lost_before(point, {**starts, ZERO: 101}, ends, LOG, {ZERO: later}) == []


def test_earliest_misses_nothing() -> None:
    point = parse_point("--from", "earliest", ["orders"])
    assert lost_before(point, {ZERO: 100, ONE: 0}, {ZERO: 900, ONE: 50}, LOG, {}) == []

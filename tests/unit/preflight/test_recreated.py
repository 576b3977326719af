"""A topic that was made again: where its batch begins, and what is a gap."""

from __future__ import annotations

from penstock.model import OffsetRange, TopicPartition
from penstock.preflight.loss import ranges_of_batch
from penstock.preflight.recreated import recreated_topics

AT = TopicPartition("orders", 0)
OTHER = TopicPartition("clicks", 0)


def test_topic_with_another_id_is_recreated_and_a_new_one_is_not() -> None:
    assert recreated_topics({"orders": "x", "gone": "y"}, {"orders": "z", "new": "n"}) == frozenset({"orders"})


def test_batch_of_a_recreated_topic_begins_at_its_beginning_though_its_log_has_grown_past() -> None:
    batch = ranges_of_batch({AT: 400, OTHER: 7}, {AT: 900, OTHER: 9}, frozenset({"orders"}))
    assert batch.ranges == (OffsetRange("clicks", 0, 7, 9), OffsetRange("orders", 0, 0, 900))
    [gap] = batch.gaps
    assert (gap.topic, gap.start, gap.end) == ("orders", 400, None)


def test_batch_of_a_recreated_topic_that_was_never_read_has_no_gap() -> None:
    assert ranges_of_batch({AT: 0}, {AT: 5}, frozenset({"orders"})).gaps == ()

"""The rule that decides whether a batch may be committed onto a position, and the form that positions are stored in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.model import BatchToken, OffsetRange, Position, Rule, TopicPartition, Verdict, decide


def token(batch: int, *ranges: tuple[int, int, int], query: str = "q1", **more: object) -> BatchToken:
    found = tuple(OffsetRange("orders", partition, start, end) for partition, start, end in ranges)
    return BatchToken("orders", query, batch, found, **more)  # type: ignore[arg-type]


def after(*tokens: BatchToken) -> Position:
    position: Position | None = None
    for one in tokens:
        position = Position.after(position, one)
    assert position is not None
    return position


HELD = after(token(0, (0, 0, 5)), token(1, (0, 5, 10)))


@pytest.mark.parametrize(
    ("batch", "verdict"),
    [
        (token(2, (0, 10, 15)), Verdict.NEXT),
        (token(0, (0, 10, 15), query="q2"), Verdict.NEXT),
        (token(2, (0, 10, 15), (1, 7, 9)), Verdict.NEXT),
        (token(1, (0, 5, 10)), Verdict.COMMITTED),
        (token(0, (0, 0, 5)), Verdict.COMMITTED),
        (token(1, (0, 5, 11)), Verdict.TOKEN_MISMATCH),
        (token(2, (0, 12, 15)), Verdict.TARGET_WENT_BACK),
        (token(2, (0, 5, 15)), Verdict.CHECKPOINT_WENT_BACK),
        (token(0, (0, 5, 15), query="q2"), Verdict.FENCED),
        (token(0, (0, 0, 5), query="q2"), Verdict.FENCED),
        (token(0, (0, 5, 15), query="q2", rule=Rule.MOVES), Verdict.NEXT),
        (token(0, (0, 5, 15), query="q2", rule=Rule.RECORDS), Verdict.NEXT),
        (token(3, (0, 12, 15), rule=Rule.FORWARD), Verdict.NEXT),
        (token(0, (0, 5, 12), query="q2", rule=Rule.FORWARD), Verdict.FENCED),
    ],
)
def test_batch_against_a_position_is_what_its_offsets_say(batch: BatchToken, verdict: Verdict) -> None:
    assert decide(HELD, batch) is verdict


def test_target_that_holds_nothing_takes_any_batch_unless_it_is_known_to_have_held_one() -> None:
    assert decide(None, token(7, (0, 50, 60))) is Verdict.NEXT
    assert decide(None, token(7, (0, 50, 60)), least=1) is Verdict.TARGET_WENT_BACK
    assert decide(HELD, token(2, (0, 10, 15)), least=3) is Verdict.TARGET_WENT_BACK


def test_partition_that_the_last_batches_left_out_is_not_taken_for_a_new_one() -> None:
    held = after(token(0, (0, 0, 5), (1, 0, 5)), token(1, (0, 5, 10)))
    assert held.next == {TopicPartition("orders", 0): 10, TopicPartition("orders", 1): 5}
    assert decide(held, token(2, (0, 10, 15), (1, 0, 7))) is Verdict.CHECKPOINT_WENT_BACK
    assert Position.from_json(held.to_json()) == held


def test_partition_that_the_query_has_read_before_and_the_target_lacks_means_that_the_target_went_back() -> None:
    seen = frozenset({TopicPartition("orders", 1)})
    batch = token(2, (0, 10, 15), (1, 5, 7), seen=seen)
    assert decide(HELD, batch) is Verdict.TARGET_WENT_BACK
    assert HELD.missing(batch) == [OffsetRange("orders", 1, 0, 5)]
    assert decide(HELD, replace(batch, seen=frozenset())) is Verdict.NEXT


def test_topic_that_was_created_again_starts_anew_and_its_former_id_is_fenced() -> None:
    first = token(0, (0, 0, 5), topic_ids={"orders": "one"})
    again = token(1, (0, 0, 3), topic_ids={"orders": "two"})
    held = after(first)
    assert decide(held, again) is Verdict.NEXT
    held = after(first, again)
    assert held.next == {TopicPartition("orders", 0): 3}
    assert decide(held, token(2, (0, 3, 8), topic_ids={"orders": "one"})) is Verdict.FENCED
    assert decide(held, token(2, (0, 3, 8), topic_ids={"orders": "two"})) is Verdict.NEXT
    assert Position.from_json(held.to_json()) == held


def test_position_of_a_target_that_went_back_to_nothing_takes_no_batch_but_the_first() -> None:
    held = Position.nothing_left(HELD)
    assert decide(held, token(2, (0, 10, 15))) is Verdict.TARGET_WENT_BACK
    assert decide(held, token(0, (0, 0, 5))) is Verdict.NEXT


def test_position_carries_the_number_of_commits_of_the_quarantine_forward() -> None:
    held = after(token(0, (0, 0, 5), quarantine={"quarantine": 2}), token(1, (0, 5, 6)))
    assert held.last.quarantine == {"quarantine": 2}

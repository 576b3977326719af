"""Markers, their topic's name, the number of slots, and what a slot does with a token. No broker."""

from __future__ import annotations

import re
from typing import Any

import pytest
from confluent_kafka import KafkaError

from penstock.errors import MissingError, TerminalError, TransientError
from penstock.kafka import explain
from penstock.model import BatchToken, OffsetRange
from penstock.sinks.kafka.markers import Marker, SlotState, marker_topic
from penstock.sinks.kafka.slots import (
    change_needed,
    last_whole,
    newest_in_all,
    newest_in_any,
    order_of_change,
    slots_in_force,
)
from penstock.sinks.kafka.stage import is_committed


def token(batch_id: int, query: str = "q", end: int | None = None) -> BatchToken:
    start = batch_id * 10
    return BatchToken("orders", query, batch_id, (OffsetRange("orders", 0, start, end or start + 10),))


def marker(batch_id: int, slots: int = 2, number: int | None = None, query: str = "q") -> Marker:
    return Marker(token(batch_id, query), slots, batch_id + 1 if number is None else number)


def states(*markers: Marker | None) -> dict[int, SlotState]:
    return {slot: SlotState(found, 5, slot) for slot, found in enumerate(markers)}


def test_marker_is_read_back_as_it_was_written() -> None:
    written = Marker(token(3), 4, 9, 12)
    assert Marker.from_bytes(written.to_bytes()) == written


@pytest.mark.parametrize("names", [("orders", "out"), ("a.b", "c"), ("a", "b.c"), ("x" * 200, "y" * 200), ("ü", "o/k")])
def test_marker_topic_is_a_legal_name_for_any_sink(names: tuple[str, str]) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,249}", marker_topic(*names))


def test_marker_topics_of_different_sinks_differ() -> None:
    sinks = [("a.b", "c"), ("a", "b.c"), ("a", "b"), ("ä", "b"), ("ö", "b"), ("x" * 240, "1"), ("x" * 240, "2")]
    assert len({marker_topic(*names) for names in sinks}) == len(sinks)
    assert marker_topic("orders", "out") == "penstock.markers.orders.out"


def test_slot_without_a_marker_or_with_another_querys_begins() -> None:
    assert not is_committed("out", token(7), 0, None, 2)
    assert not is_committed("out", token(0), 0, marker(41, query="old"), 2)


def test_slot_with_the_batch_drains_and_with_the_one_before_begins() -> None:
    assert is_committed("out", token(3), 0, marker(3), 2)
    assert not is_committed("out", token(4), 0, marker(3), 2)


@pytest.mark.parametrize(
    ("asked", "settings", "code"),
    [
        (token(5), {}, "SINK_SLOT_OUT_OF_STEP"),
        (token(2), {}, "SINK_SLOT_OUT_OF_STEP"),
        (token(2), {"sparse": True}, "SINK_SLOT_OUT_OF_STEP"),
        (token(3, end=35), {}, "SINK_TOKEN_MISMATCH"),
        (token(4), {"slots": 3}, "SINK_SLOTS_CHANGED"),
    ],
)
def test_slot_that_contradicts_the_token_stops(asked: BatchToken, settings: dict[str, Any], code: str) -> None:
    with pytest.raises(TerminalError) as stopped:
        is_committed("out", asked, 0, marker(3), **{"slots": 2, **settings})
    assert stopped.value.code == code


def test_sparse_slot_may_have_missed_batches() -> None:
    assert not is_committed("out", token(9), 0, marker(3), 2, sparse=True)


def test_slots_in_force_are_those_of_slot_0_where_it_has_a_marker() -> None:
    assert slots_in_force(states(None, None)) is None
    assert slots_in_force(states(marker(1, slots=2), marker(1, slots=3))) == 2
    assert slots_in_force(states(None, marker(0, slots=2))) == 2


def test_last_batch_is_whole_only_where_every_slot_has_it() -> None:
    assert last_whole(states(marker(3), marker(3)), 2) == marker(3)
    assert last_whole(states(marker(3), marker(2)), 2) is None
    assert last_whole(states(marker(3), None), 2) is None
    assert last_whole(states(marker(3), Marker(token(3, end=35), 2, 4)), 2) is None


def test_change_of_slots_gives_all_of_them_the_last_token() -> None:
    whole = states(marker(3), marker(3))
    assert change_needed("out", whole, 2, 1, sparse=False) is None
    assert change_needed("out", whole, 4, 1, sparse=False) == marker(3, slots=4)
    assert change_needed("out", states(None, None), 4, 1, sparse=False) is None
    assert list(order_of_change(whole, 4, 1)) == [3, 2, 1, 0]
    assert list(order_of_change(whole, 1, 1)) == [1, 0]


def test_change_of_slots_that_died_on_the_way_is_repaired_whichever_number_is_wanted() -> None:
    half_way = states(marker(3, slots=2), marker(3, slots=3), marker(3, slots=3))
    assert change_needed("out", half_way, 2, 1, sparse=False) == marker(3, slots=2)
    assert change_needed("out", half_way, 3, 1, sparse=False) == marker(3, slots=3)


@pytest.mark.parametrize("sparse", [True, False])
def test_change_of_slots_without_a_whole_batch_is_refused(sparse: bool) -> None:
    with pytest.raises(TerminalError) as refused:
        change_needed("out", states(marker(3), marker(3) if sparse else marker(2)), 3, 1, sparse=sparse)
    assert refused.value.code == "SINK_SLOTS_CHANGED"
    assert (refused.value.context["in the file"], refused.value.context["in the marker topic"]) == ("3", "2")


def test_newest_batch_in_all_slots_is_that_of_the_slot_behind() -> None:
    assert newest_in_all(states(marker(3), marker(2)), 2) == token(2)
    assert newest_in_all(states(marker(0, number=9, query="new"), marker(7, number=8)), 2) == token(7)
    assert newest_in_all(states(None, None), 2) is None


def test_newest_batch_while_the_first_is_under_way_is_what_lies_before_it() -> None:
    found = newest_in_all(states(None, marker(5)), 2)
    assert found == BatchToken("orders", "q", 4, (OffsetRange("orders", 0, 50, 50),))


def test_newest_batch_of_a_sparse_sink_is_the_one_written_last() -> None:
    assert newest_in_any(states(marker(9, query="old"), marker(1, query="new"), None)) == token(1, "new")
    assert newest_in_any(states(None)) is None


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, MissingError),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, MissingError),
        (KafkaError._AUTHENTICATION, MissingError),
        (KafkaError._TRANSPORT, TransientError),
        (KafkaError.INVALID_CONFIG, TerminalError),
    ],
)
def test_client_error_says_by_its_class_what_follows(code: int, kind: type[Exception]) -> None:
    assert isinstance(explain(KafkaError(code), "sink out: writing", "b:1"), kind)

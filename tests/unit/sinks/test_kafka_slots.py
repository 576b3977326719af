"""Markers, their topic's name, the number of slots, and what a slot does with a token. No broker."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError

from penstock.errors import MissingError, TerminalError, TransientError
from penstock.kafka import KafkaSettings, explain
from penstock.model import BatchToken, OffsetRange, Position, Rule
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.kafka.markers import (
    Marker,
    SlotState,
    change_needed,
    in_step,
    last_whole,
    marker_topic,
    newest_position,
    oldest_position,
    order_of_change,
    sink_of_markers,
    slots_in_force,
)
from penstock.sinks.kafka.stage import slot_has_batch

SINK = KafkaSink("orders", "out", KafkaSettings("nowhere:9092"), topic="out")


def token(batch_id: int, query: str = "q", end: int | None = None, rule: Rule = Rule.FOLLOWS) -> BatchToken:
    start = batch_id * 10
    return BatchToken("orders", query, batch_id, (OffsetRange("orders", 0, start, end or start + 10),), rule=rule)


def position(batch_id: int, query: str = "q", number: int | None = None) -> Position:
    return replace(Position.first(token(batch_id, query)), number=batch_id + 1 if number is None else number)


def marker(batch_id: int, slots: int = 2, number: int | None = None, query: str = "q") -> Marker:
    return Marker(position(batch_id, query, number), slots)


def states(*markers: Marker | None) -> dict[int, SlotState]:
    return {slot: SlotState(found, 5, slot) for slot, found in enumerate(markers)}


def test_marker_is_read_back_as_it_was_written() -> None:
    written = Marker(position(3), 4, 12)
    assert Marker.from_bytes(written.to_bytes()) == written


@pytest.mark.parametrize("names", [("orders", "out"), ("a.b", "c"), ("a", "b.c"), ("x" * 200, "y" * 200), ("ü", "o/k")])
def test_marker_topic_is_a_legal_name_for_any_sink(names: tuple[str, str]) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,249}", marker_topic(*names))


def test_marker_topics_of_different_sinks_differ() -> None:
    sinks = [("a.b", "c"), ("a", "b.c"), ("a", "b"), ("ä", "b"), ("ö", "b"), ("x" * 240, "1"), ("x" * 240, "2")]
    assert len({marker_topic(*names) for names in sinks}) == len(sinks)
    assert marker_topic("orders", "out") == "penstock.markers.orders.out"


@pytest.mark.parametrize("pipeline", ["orders", "orders.redrive", "orders.replay-20260101-1", "bestellungen ü"])
def test_sink_of_a_marker_topic_is_known_by_the_topics_name(pipeline: str) -> None:
    topic = marker_topic(pipeline, "out-box_2")
    assert sink_of_markers(topic, pipeline) == "out-box_2"
    assert sink_of_markers(topic, "orders.other") is None
    assert sink_of_markers("clean", pipeline) is None


def test_slot_without_a_marker_or_where_the_batch_is_next_begins() -> None:
    assert not slot_has_batch(SINK, token(7), 0, None, 2)
    assert not slot_has_batch(SINK, token(4), 0, marker(3), 2)
    assert not slot_has_batch(SINK, token(4, "new"), 0, marker(3), 2)


def test_slot_with_the_batch_or_a_later_one_of_the_query_drains() -> None:
    assert slot_has_batch(SINK, token(3), 0, marker(3), 2)
    assert slot_has_batch(SINK, token(2), 0, marker(3), 2)


@pytest.mark.parametrize("rule", [Rule.RECORDS, Rule.MOVES])
def test_slot_takes_single_records_and_moves_wherever_it_stands_and_once(rule: Rule) -> None:
    other = token(1, "redrive", rule=rule)
    assert not slot_has_batch(SINK, other, 0, marker(3), 2)
    assert slot_has_batch(SINK, other, 0, Marker(Position.after(position(3), other), 2), 2)


@pytest.mark.parametrize(
    ("asked", "slots", "code"),
    [
        (token(5), 2, "TARGET_WENT_BACK"),
        (token(5, "new"), 2, "TARGET_WENT_BACK"),
        (token(2, "new"), 2, "FENCED"),
        (token(2, end=45), 2, "CHECKPOINT_WENT_BACK"),
        (token(3, end=35), 2, "SINK_TOKEN_MISMATCH"),
        (token(4), 3, "SINK_SLOTS_CHANGED"),
    ],
)
def test_slot_that_contradicts_the_token_stops(asked: BatchToken, slots: int, code: str) -> None:
    with pytest.raises(TerminalError) as stopped:
        slot_has_batch(SINK, asked, 0, marker(3), slots)
    assert stopped.value.code == code


def test_slots_in_force_are_those_of_slot_0_where_it_has_a_marker() -> None:
    assert slots_in_force(states(None, None)) is None
    assert slots_in_force(states(marker(1, slots=2), marker(1, slots=3))) == 2
    assert slots_in_force(states(None, marker(0, slots=2))) == 2


def test_last_batch_is_whole_only_where_every_slot_has_it() -> None:
    assert last_whole(states(marker(3), marker(3)), 2) == marker(3)
    assert last_whole(states(marker(3), marker(2)), 2) is None
    assert last_whole(states(marker(3), None), 2) is None
    other = Marker(Position.first(token(3, end=35)), 2)
    assert last_whole(states(marker(3), other), 2) is None


def test_change_of_slots_gives_all_of_them_the_last_position() -> None:
    whole = states(marker(3), marker(3))
    assert change_needed("out", whole, 2) is None
    assert change_needed("out", whole, 4) == marker(3, slots=4)
    assert change_needed("out", states(None, None), 4) is None
    assert list(order_of_change(whole, 4)) == [3, 2, 1, 0]
    assert list(order_of_change(whole, 1)) == [1, 0]


def test_change_of_slots_that_died_on_the_way_is_repaired_whichever_number_is_wanted() -> None:
    half_way = states(marker(3, slots=2), marker(3, slots=3), marker(3, slots=3))
    assert change_needed("out", half_way, 2) == marker(3, slots=2)
    assert change_needed("out", half_way, 3) == marker(3, slots=3)


def test_change_of_slots_without_a_whole_batch_is_refused() -> None:
    with pytest.raises(TerminalError) as refused:
        change_needed("out", states(marker(3), marker(2)), 3)
    assert refused.value.code == "SINK_SLOTS_CHANGED"
    assert (refused.value.context["in the file"], refused.value.context["in the marker topic"]) == ("3", "2")


def test_position_of_slots_that_differ_is_that_of_the_oldest() -> None:
    assert oldest_position(states(marker(3), marker(2))) == position(2)
    old = marker(7, number=8)
    assert oldest_position(states(marker(0, number=9, query="new"), old)) == old.position
    assert oldest_position(states(None, None)) is None


def test_position_while_the_first_batch_is_being_written_is_none() -> None:
    assert oldest_position(states(None, marker(5))) is None
    assert oldest_position(states(marker(5), None)) is None


def test_newest_position_is_that_of_the_slot_with_most_commits() -> None:
    assert newest_position(states(marker(3), marker(2))) == position(3)
    assert newest_position(states(marker(9, number=4), marker(1, number=5, query="new"), None)) == position(1, "new", 5)
    assert newest_position(states(None)) is None


def test_slots_after_a_redrive_that_only_some_of_them_have_count_alike_again() -> None:
    redrive = token(0, "redrive", rule=Rule.RECORDS)
    ahead, behind = Position.after(position(3), redrive), position(3)
    newest = newest_position(states(Marker(ahead, 2), Marker(behind, 2)))
    following = [in_step(Position.after(held, token(4)), newest) for held in (ahead, behind)]
    assert [one.number for one in following] == [6, 6]
    again = in_step(Position.after(behind, redrive), newest)
    assert (again.last, again.number) == (redrive, ahead.number)
    assert in_step(position(0), None) == position(0)


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

"""Rows that are exchanged by key between slots, on Spark: `tests/unit/engine/test_exchange` shows the rest without it.

And sinks that commit in their slot, in the lane whose slots do not know the bad records of their rows.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.committed import committed
from tests.orders import ids
from tests.sessions import LANES_LONG, ON_BOTH_LONG
from tests.tables import read_table

from penstock.config import load
from penstock.engine.listener import BatchPhase, Event
from penstock.errors import PenstockError
from penstock.preflight.options import RunOptions
from penstock.supervision.run import run

pytestmark = pytest.mark.services
PARTITIONS = 5


@ON_BOTH_LONG
def test_dedupe_in_four_slots_by_two_keys_in_turn_keeps_the_newest_row_of_each(
    session: Any, topics: Any, pipeline_file: Callable[..., Path]
) -> None:
    chance = random.Random(4)
    values: list[list[Any]] = [
        [
            b"{broken"
            if chance.random() < 0.1
            else {"order_id": chance.randrange(40), "customer_id": f"c{chance.randrange(9)}", "amount": float(n % 7)}
            for n in range(chance.randrange(20, 50))
        ]
        for _ in range(PARTITIONS)
    ]
    topic, clean = topics.create(PARTITIONS), topics.create(2, prefix="clean")
    for partition, some in enumerate(values):
        topics.send(topic, some, partition=partition)
    sinks = [
        {"name": "out", "type": "delta", "path": "lake/out"},
        {"name": "topic", "type": "kafka", "topic": clean, "slots": 4, "coordinates": True},
    ]
    steps = [
        {"expect": {"small": {"rule": "amount < 6"}}},
        {"dedupe": {"keys": ["order_id"]}},
        {"dedupe": {"keys": ["customer_id"]}},
    ]
    file = pipeline_file(topic, name=f"orders-{topic}", sinks=sinks, transforms=steps)
    rows = read_sent(topics, topic)
    summary = run(load(file), RunOptions(available_now=True), session=session)
    bad = {place for place, value in rows if value is None or value["amount"] >= 6}
    by_order = {value["order_id"]: (place, value["customer_id"]) for place, value in rows if place not in bad}
    left = sorted(by_order.values(), key=lambda one: age(one[0]))
    expected = {customer: place for place, customer in left}.values()
    table = read_table(file.parent / "lake/out").column("_penstock").to_pylist()
    sent_on = [json.loads(message.value())["_penstock"] for message in committed(topics.brokers, clean)]
    for found in (table, sent_on):
        assert Counter((at["partition"], at["offset"]) for at in found) == dict.fromkeys(expected, 1)
    quarantined = read_table(file.parent / "lake/quarantine").to_pylist()
    assert Counter((row["partition"], row["offset"]) for row in quarantined) == dict.fromkeys(bad, 1)
    assert (summary.rows_in, summary.rows_out) == (len(rows), len(expected))


def test_kafka_in_the_frame_lane_commits_no_slot_before_the_bad_records_are_in_the_quarantine(
    spark: Any, topics: Any, pipeline_file: Callable[..., Path]
) -> None:
    topic, clean = topics.create(2), topics.create(1, prefix="clean")
    sinks = [{"name": "topic", "type": "kafka", "topic": clean, "slots": 2}]
    file = pipeline_file(topic, name=f"orders-{topic}", sinks=sinks, lane="frame")
    topics.send(topic, [{"order_id": 0}, b"{broken"], partition=0)
    topics.send(topic, [{"order_id": 1}], partition=1)

    def sent_on() -> list[int]:
        return sorted(json.loads(message.value())["order_id"] for message in committed(topics.brokers, clean))

    def die(event: Event) -> None:
        if isinstance(event, BatchPhase) and event.phase == "commit:quarantine":
            raise RuntimeError("the driver dies")

    with pytest.raises(PenstockError):
        run(load(file), RunOptions(available_now=True), die, session=spark)
    assert sent_on() == []
    run(load(file), RunOptions(available_now=True), session=spark)
    assert sent_on() == [0, 1]
    assert read_table(file.parent / "lake/quarantine").num_rows == 1


@LANES_LONG
def test_record_refused_behind_a_dedupe_brings_no_older_row_back_into_a_sink_that_waited_for_the_quarantine(
    session: Any, topics: Any, pipeline_file: Callable[..., Path], lane: str
) -> None:
    topic, clean = topics.create(1), topics.create(1, prefix="clean")
    sinks = [
        {"name": "out", "type": "delta", "path": "lake/out"},
        {"name": "topic", "type": "kafka", "topic": clean, "slots": 2},
    ]
    steps = [{"dedupe": {"keys": ["order_id"]}}, {"expect": {"small": {"rule": "amount < 90"}}}]
    file = pipeline_file(topic, name=f"orders-{topic}", sinks=sinks, transforms=steps, lane=lane)
    rows = [(1, 1.0), (2, 2.0), (1, 99.0)]
    topics.send(topic, [{"order_id": number, "amount": amount} for number, amount in rows])
    run(load(file), RunOptions(available_now=True), session=session)
    assert ids(file) == [2]
    assert [json.loads(message.value())["order_id"] for message in committed(topics.brokers, clean)] == [2]
    assert read_table(file.parent / "lake/quarantine", ["offset"]).column(0).to_pylist() == [2]


def read_sent(topics: Any, topic: str) -> list[tuple[tuple[int, int], dict[str, Any] | None]]:
    """Every record's place and row, oldest first as a dedupe orders them: none for one that cannot be decoded."""
    found = committed(topics.brokers, topic)
    found.sort(key=lambda m: (m.offset(), m.timestamp()[1], m.partition()))
    return [((m.partition(), m.offset()), None if m.value() == b"{broken" else json.loads(m.value())) for m in found]


def age(place: tuple[int, int]) -> tuple[int, int]:
    """Partitions are filled one after another: of equal offsets the last partition's is the newest."""
    return place[1], place[0]

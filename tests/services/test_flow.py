"""Flow control on a real query: the cap is found, kept over a restart, and changed without stopping the query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.orders import drain, ids
from tests.sessions import ON_BOTH_LONG

from penstock.config import load
from penstock.engine.listener import BatchDone, Event
from penstock.metrics.history import FlowChanged, history_of

pytestmark = pytest.mark.services
Write = Callable[..., Path]


def orders(first: int, count: int) -> list[dict[str, Any]]:
    return [{"order_id": number, "amount": 1.5} for number in range(first, first + count)]


def drained(file: Path, session: Any) -> tuple[list[FlowChanged], list[BatchDone]]:
    heard: list[Event] = []
    drain(file, session, heard.append)
    return [e for e in heard if isinstance(e, FlowChanged)], [e for e in heard if isinstance(e, BatchDone)]


@ON_BOTH_LONG
def test_flow_on_an_unknown_backlog_starts_small_grows_and_remembers(
    session: Any, topics: Any, pipeline_file: Write
) -> None:
    topic = topics.create(4)
    topics.send(topic, orders(0, 12_000))
    file = pipeline_file(topic, flow={"min_offsets": 100, "max_offsets": 8_000, "memory": "500 MiB"})
    decisions, batches = drained(file, session)
    sizes = [event.metrics.offsets for event in batches]
    assert decisions[0].reason == "start"
    assert sizes[0] <= 500 < sizes[1]
    assert max(sizes) <= 8_000
    assert all(event.metrics.offsets <= (event.metrics.cap or 0) for event in batches)
    assert [d.before for d in decisions[1:]] == [d.cap for d in decisions[:-1]]
    assert ids(file) == list(range(12_000))
    known = history_of(load(file).checkpoint)
    assert [entry.fact.cap for entry in known.read(FlowChanged)] == [d.cap for d in decisions]

    # What was learned holds from the first batch of the next run on.
    topics.send(topic, orders(12_000, 2_000))
    decisions, batches = drained(file, session)
    assert [event.metrics.offsets for event in batches] == [2_000]
    assert decisions[0].cap >= 2_000
    assert ids(file) == list(range(14_000))


def test_flow_with_a_fixed_cap_decides_nothing(session: Any, topics: Any, pipeline_file: Write) -> None:
    topic = topics.create(1)
    topics.send(topic, orders(0, 90))
    decisions, batches = drained(pipeline_file(topic, source={"max_offsets": 40}), session)
    assert (decisions, [event.metrics.offsets for event in batches]) == ([], [40, 40, 10])
    assert {event.metrics.cap for event in batches} == {40}


@pytest.mark.long
def test_flow_of_two_sources_gives_each_its_share(spark: Any, topics: Any, pipeline_file: Write) -> None:
    left, right = topics.create(1), topics.create(1)
    for topic in (left, right):
        topics.send(topic, [{"id": n, "at": f"2026-01-01T00:00:{n % 60:02}Z"} for n in range(200)])
    side = {
        "type": "kafka",
        "brokers": topics.brokers,
        "decode": {"format": "json", "schema": "id BIGINT NOT NULL, at TIMESTAMP"},
    }
    a = {**side, "topics": [left], "transforms": [{"watermark": {"column": "at", "delay": "1 minute"}}]}
    renamed = [{"rename": {"id": "its", "at": "then"}}, {"watermark": {"column": "then", "delay": "1 minute"}}]
    b = {**side, "topics": [right], "transforms": renamed}
    file = pipeline_file(
        left,
        source=None,
        decode=None,
        sources={"a": a, "b": b},
        transforms=[{"join": {"left": "a", "right": "b", "on": {"id": "its"}, "within": "5 minutes"}}],
        flow={"min_offsets": 100, "max_offsets": 200},
    )
    decisions, batches = drained(file, spark)
    assert decisions[0].cap == 200
    assert max(event.metrics.offsets for event in batches) == 200
    assert sum(event.metrics.offsets for event in batches) == 400

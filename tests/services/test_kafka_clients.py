"""A client is closed with the last who knew it: else it waits for the collector, which comes late and on any thread."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.open_clients import open_clients

from penstock.config import load
from penstock.errors import TransientError
from penstock.kafka import Cluster, KafkaSettings, Subscription
from penstock.kafka.topics import TopicAdmin
from penstock.model import TopicPartition
from penstock.runtime.options import RunOptions
from penstock.runtime.run import run

NOBODY = "no-such-topic"


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    "ask",
    [
        lambda settings: TopicAdmin(settings).describe([NOBODY]),
        lambda settings: TopicAdmin(settings).delete(NOBODY),
        lambda settings: Cluster(settings).topic_ids([NOBODY]),
        lambda settings: Cluster(settings).bounds([TopicPartition(NOBODY, 0)]),
    ],
    ids=["describe", "delete", "topic_ids", "bounds"],
)
def test_client_that_asked_for_what_is_not_there_is_closed(stack: Any, ask: Callable[[KafkaSettings], object]) -> None:
    before = open_clients()
    ask(KafkaSettings(stack.bootstrap))
    assert open_clients() <= before


def test_client_whose_brokers_are_away_is_closed() -> None:
    before = open_clients()
    with suppress(TransientError):
        Cluster(KafkaSettings("127.0.0.1:9"), timeout=1).partitions(Subscription(topics=("orders",)))
    assert open_clients() <= before


def test_run_that_ends_has_closed_its_clients(spark: Any, topics: Any, pipeline_file: Callable[..., Path]) -> None:
    topic = topics.create(2)
    topics.send(topic, [{"order_id": number} for number in range(20)])
    file = pipeline_file(topic)
    before = open_clients()
    assert run(load(file), RunOptions(available_now=True), session=spark).rows_in == 20
    assert open_clients() <= before

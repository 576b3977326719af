"""A client is closed with the last who knew it: else it waits for the collector, which comes late and on any thread."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tests.conftest import Topics
from tests.open_clients import open_clients
from tests.services.running import wait_for
from tests.sessions import ON_BOTH

from penstock.config import load
from penstock.devstack import DevStack
from penstock.errors import TransientError
from penstock.kafka import Cluster, KafkaSettings, Subscription
from penstock.kafka.topics import TopicAdmin
from penstock.model import TopicPartition
from penstock.preflight.options import RunOptions
from penstock.spark.jars import broker_classpath
from penstock.spark.java import find_java
from penstock.supervision.run import run

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


@ON_BOTH
def test_run_that_ends_has_closed_its_clients(session: Any, topics: Any, pipeline_file: Callable[..., Path]) -> None:
    topic = topics.create(2)
    topics.send(topic, [{"order_id": number} for number in range(20)])
    file = pipeline_file(topic)
    before = open_clients()
    assert run(load(file), RunOptions(available_now=True), session=session).rows_in == 20
    # A client that is being closed is still there for a moment; one that was forgotten stays.
    wait_for(lambda: open_clients() <= before, "the clients of the run to be closed", 10)


@pytest.mark.long
@pytest.mark.parametrize("client", [Cluster, TopicAdmin])
def test_broker_out_of_three_that_hangs_is_left_by_the_client_that_is_kept(client: type[Any], tmp_path: Path) -> None:
    """Which of them a client has taken for the controller is its own secret: so each hangs in turn."""
    java, classpath = find_java().executable, broker_classpath()
    with DevStack(tmp_path / "dev", java=java, classpath=classpath, brokers=3) as stack:
        topic = Topics(stack.bootstrap).create(3)
        for node in stack.nodes:
            kept = client(KafkaSettings(stack.bootstrap), timeout=3.0)
            ask = kept.topic_ids if client is Cluster else kept.describe
            assert set(ask([topic])) == {topic}
            process = psutil.Process(node.pid)
            process.suspend()
            try:
                wait_for(lambda: brokers_of(stack.bootstrap) == 2, "the others to notice", 60)
                assert answered(ask, topic, calls=3) == {topic}
            finally:
                process.resume()
            wait_for(lambda: brokers_of(stack.bootstrap) == 3, "it to be back", 60)


def brokers_of(bootstrap: str) -> int:
    """How many a new client is told of; none where it asked the one that hangs."""
    try:
        return len(AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=3).brokers)
    except KafkaException:
        return 0


def answered(ask: Callable[[list[str]], Mapping[str, object]], topic: str, calls: int) -> set[str]:
    """What one of some calls gives."""
    for _ in range(calls - 1):
        with suppress(TransientError):
            return set(ask([topic]))
    return set(ask([topic]))

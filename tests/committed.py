"""A reader of committed records that shares no code with the writers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from tests.transactions import is_ending_some

_numbers = itertools.count()
_SETTLE_SECONDS = 10


def committed(brokers: str, topic: str) -> list[Any]:
    """The committed records of a topic, in order within each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": f"readers-{next(_numbers)}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    try:
        cluster = consumer.list_topics(topic, timeout=10)
        partitions = [TopicPartition(topic, p, 0) for p in cluster.topics[topic].partitions]
        _settle(f"{broker.host}:{broker.port}" for broker in cluster.brokers.values())
        consumer.assign(partitions)
        found: list[Any] = []
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(10)
            assert message is not None, f"{topic}: no answer"
            if message.error() is None:
                found.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise KafkaException(message.error())
        return sorted(found, key=lambda message: (message.partition(), message.offset()))
    finally:
        consumer.close()


def _settle(brokers: Iterable[str]) -> None:
    """Until no transaction is on its way to its end: a commit is answered a moment before its records may be read.

    One that is open is not waited for.
    """
    deadline = time.monotonic() + _SETTLE_SECONDS
    for broker in brokers:
        while is_ending_some(broker) and time.monotonic() < deadline:
            time.sleep(0.005)

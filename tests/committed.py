"""A reader of committed records that shares no code with the writers."""

from __future__ import annotations

import itertools
import time
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

_numbers = itertools.count()
_SETTLE_SECONDS = 3


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
        partitions = [
            TopicPartition(topic, p, 0) for p in consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ]
        _settle(brokers, partitions)
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


def _settle(brokers: str, partitions: list[Any]) -> None:
    """Until no transaction is open: the brokers answer a commit a moment before they let its records be read.

    A transaction that is meant to stay open ends the wait by its time.
    """
    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    deadline = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < deadline:
        asked = {partition: OffsetSpec.latest() for partition in partitions}
        stable, end = (
            {at.partition: future.result(10).offset for at, future in found.items()}
            for found in (
                admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED),
                admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED),
            )
        )
        if stable == end:
            return

"""The events of the bench: made once for the backlog, or at a steady rate by a process of their own.

`python bench/events.py BROKERS TOPIC RATE` sends until it is told to stop (SIGTERM), then prints how many it sent.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.kafka import Cluster, KafkaSettings
from penstock.model import TopicPartition

PARTITIONS = 20
EVENT_BYTES = 220
SCHEMA = "order_id BIGINT NOT NULL, customer_id STRING, amount DOUBLE, event_time TIMESTAMP"
LIVE_SCHEMA = f"{SCHEMA}, sent_at BIGINT"
"""The schema of the live events: `sent_at` is the moment of sending in microseconds since 1970."""

MANY = {"linger.ms": 50, "batch.num.messages": 50_000, "queue.buffering.max.messages": 200_000}
"""The settings of a producer that has all its events at hand."""

_STATUS = ("new", "paid", "sent", "done")
_NOTE = "leave at the side door, ring twice, and mind the dog; " * 4
_TICK_SECONDS = 0.01


def order(number: int, more: str = "") -> bytes:
    """The order of that number as JSON."""
    return order_text(number, number * 37 % 50_000, moment(number), more)


def order_text(order_id: int, cents: int, event_time: str, more: str = "") -> bytes:
    """An order as JSON, filled up with a note to its usual length."""
    text = (
        f'{{"order_id": {order_id}, "customer_id": "c-{order_id % 50_000:05d}", "amount": {cents / 100:.2f}, '
        f'"event_time": "{event_time}", "status": "{_STATUS[order_id % 4]}", {more}"note": "'
    )
    return f'{text}{_NOTE[: EVENT_BYTES - len(text) - 2]}"}}'.encode()


def moment(number: int) -> str:
    """A time of its own for each number, a millisecond apart."""
    second = number // 1000
    return (
        f"2026-01-{1 + second // 86_400 % 28:02d}T{second // 3600 % 24:02d}:{second // 60 % 60:02d}:"
        f"{second % 60:02d}.{number % 1000:03d}Z"
    )


def create_topic(brokers: str, topic: str, partitions: int = PARTITIONS) -> None:
    """Make the topic and wait until every partition has a leader that knows so."""
    admin = AdminClient({"bootstrap.servers": brokers})
    for created in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        created.result(30)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = admin.list_topics(topic, timeout=10).topics[topic].partitions
        if len(found) == partitions and all(partition.leader >= 0 for partition in found.values()):
            Cluster(KafkaSettings(brokers), timeout=60).bounds(TopicPartition(topic, n) for n in range(partitions))
            return
    raise TimeoutError(f"topic {topic} has no leaders after 30 s")


def delete_topic(brokers: str, topic: str) -> None:
    """Remove a topic, for its space."""
    admin = AdminClient({"bootstrap.servers": brokers})
    for deleted in admin.delete_topics([topic]).values():
        deleted.result(30)


def send_backlog(brokers: str, topic: str, rows: int) -> int:
    """Send `rows` orders, spread evenly over the partitions. Gives the bytes of their values."""
    sender = Sender(brokers, MANY)
    size = 0
    for number in range(rows):
        value = order(number)
        size += len(value)
        sender.send(topic, value, number % PARTITIONS)
    sender.finish()
    return size


def send_live(brokers: str, topic: str, rate: int) -> int:
    """Send `rate` orders a second, spread evenly over the partitions, until SIGTERM. Gives how many."""
    partitions = len(
        AdminClient({"bootstrap.servers": brokers}).list_topics(topic, timeout=10).topics[topic].partitions
    )
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    sender, number = Sender(brokers, {"linger.ms": 2}), 0
    began = time.monotonic()
    while not stop.wait(_TICK_SECONDS):
        due = int((time.monotonic() - began) * rate)
        while number < due:
            sent_at = f'"sent_at": {time.time_ns() // 1000}, '
            sender.send(topic, order(number, sent_at), number % partitions)
            number += 1
    sender.finish()
    return number


class Sender:
    """A producer that raises if any of its messages was not delivered."""

    def __init__(self, brokers: str, settings: dict[str, Any]) -> None:
        self._producer = Producer(
            {"bootstrap.servers": brokers, "enable.idempotence": True, "log_level": 3, **settings}
        )
        self._failed: list[str] = []
        self._sent = 0

    def send(self, topic: str, value: bytes, partition: int) -> None:
        """Hand a message over; waits while too many are on their way."""
        while True:
            try:
                self._producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
                break
            except BufferError:
                self._producer.poll(0.1)
        self._sent += 1
        if self._sent % 1000 == 0:
            self._producer.poll(0)

    def finish(self) -> None:
        """Wait until all are delivered."""
        left = self._producer.flush(60)
        if left or self._failed:
            raise RuntimeError(f"sending events: {left} still waiting, {len(self._failed)} failed {self._failed[:1]}")

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failed.append(str(error))


if __name__ == "__main__":
    print(send_live(sys.argv[1], sys.argv[2], int(sys.argv[3])))

"""How old what waits is: positions enter, the timestamp of the first record at or behind each leaves.

Offsets alone do not tell: compaction and aborted transactions leave holes, so the record itself is fetched.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from penstock.kafka.settings import KafkaSettings
from penstock.kafka.topics import kafka_failures
from penstock.model import TopicPartition

_POLL_SECONDS = 0.1
_AT_ONCE = 1000
# One record of each partition is wanted: as little as can be is fetched behind it.
_SETTINGS: Mapping[str, str | int | bool] = {
    "log_level": 0,
    "group.id": "penstock-reader",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # Where retention took the record, the first one that is left is the first to be read.
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 10,
    "fetch.error.backoff.ms": 50,
    "queued.min.messages": 1,
    "fetch.message.max.bytes": 32 << 10,
    "fetch.max.bytes": 8 << 20,
    "message.max.bytes": 1 << 20,
    "receive.message.max.bytes": 64 << 20,
}


def first_unread(
    settings: KafkaSettings, positions: Mapping[TopicPartition, int], timeout: float = 5.0
) -> dict[TopicPartition, datetime]:
    """The timestamps of the first committed records at or behind these positions.

    Left out is a partition in which none follows, one whose record bears no time, and what could not be read in time.
    """
    if not positions:
        return {}
    with kafka_failures("opening a Kafka client", settings.brokers):
        consumer = Consumer({**settings.for_librdkafka(), **_SETTINGS})
    found: dict[TopicPartition, datetime] = {}
    left = dict(positions)
    deadline = time.monotonic() + timeout
    try:
        consumer.assign([ClientPartition(at.topic, at.partition, offset) for at, offset in left.items()])
        while left and time.monotonic() < deadline:
            done = _take(consumer.consume(_AT_ONCE, _POLL_SECONDS), left, found)
            if done and left:
                consumer.incremental_unassign([ClientPartition(at.topic, at.partition) for at in done])
    except KafkaException:
        # Ages are an extra: what is known by now is told, and the caller learns of the brokers in its own way.
        return found
    finally:
        consumer.close()
    return found


def _take(
    messages: Iterable[Any], left: dict[TopicPartition, int], found: dict[TopicPartition, datetime]
) -> list[TopicPartition]:
    """Sort in what came, and give the partitions that are done with."""
    done = []
    for message in messages:
        if message.topic() is None or message.partition() is None:
            continue
        at = TopicPartition(message.topic(), message.partition())
        error = message.error()
        if at not in left or (error is not None and error.retriable()):
            continue
        if error is None:
            if message.offset() < left[at]:
                continue
            kind, milliseconds = message.timestamp()
            if kind != TIMESTAMP_NOT_AVAILABLE and milliseconds >= 0:
                found[at] = datetime.fromtimestamp(milliseconds / 1000, UTC)
        # The end of the log is such an event too: everything behind the position was a hole.
        del left[at]
        done.append(at)
    return done

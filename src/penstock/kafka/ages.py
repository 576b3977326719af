"""The age of the backlog: the timestamp of the first committed record at or after a position.

Offsets do not say this: compaction and aborted transactions leave holes, so the record itself is fetched.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from penstock.kafka.client import BrokerClient
from penstock.kafka.settings import KafkaSettings
from penstock.model import LAST_TIMESTAMP, TopicPartition

_POLL_SECONDS = 0.1
_QUIET_POLLS, _MUCH = 3, 4
"""After so many polls, each of which brought less than a quarter of the partitions, more is fetched of each."""
_AT_ONCE = 1000
_FETCHES_BYTES = (32 << 10, 1 << 20)
"""The fetch size for each partition. A broker returns an oversized batch only for the first partition of a request, so
partitions with large batches would arrive one after another: these are fetched again with the larger size."""
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
    "fetch.queue.backoff.ms": 20,
    "queued.min.messages": 1,
    "fetch.max.bytes": 8 << 20,
    "message.max.bytes": 1 << 20,
    "receive.message.max.bytes": 64 << 20,
}


def first_unread(
    settings: KafkaSettings, positions: Mapping[TopicPartition, int], timeout: float = 5.0
) -> dict[TopicPartition, datetime]:
    """The timestamps of the first committed records at or after these positions.

    A partition is left out where no record follows, the record has no timestamp, or it could not be read in time.
    """
    found: dict[TopicPartition, datetime] = {}
    left = dict(positions)
    deadline = time.monotonic() + timeout
    for size in _FETCHES_BYTES:
        if left and time.monotonic() < deadline:
            last = size == _FETCHES_BYTES[-1]
            _fetch(settings, {**_SETTINGS, "fetch.message.max.bytes": size}, left, found, deadline, patient=last)
    return found


def _fetch(
    settings: KafkaSettings,
    own: Mapping[str, str | int | bool],
    left: dict[TopicPartition, int],
    found: dict[TopicPartition, datetime],
    deadline: float,
    *,
    patient: bool,
) -> None:
    """Consume until every partition is done or the deadline passes; unless `patient`, until few records arrive."""
    consumer = BrokerClient(Consumer, settings, {**settings.for_librdkafka(), **own}, _POLL_SECONDS).client
    quiet, much = 0, len(left) / _MUCH
    try:
        consumer.assign([ClientPartition(at.topic, at.partition, offset) for at, offset in left.items()])
        while left and time.monotonic() < deadline and (patient or quiet < _QUIET_POLLS):
            done = _take(consumer.consume(_AT_ONCE, _POLL_SECONDS), left, found)
            quiet = 0 if len(done) >= much or (not found and not done) else quiet + 1
            if done and left:
                consumer.incremental_unassign([ClientPartition(at.topic, at.partition) for at in done])
    except KafkaException:
        # Ages are an extra: the caller gets what is known by now, and notices by itself that the brokers are away.
        return
    finally:
        consumer.close()


def _take(
    messages: Iterable[Any], left: dict[TopicPartition, int], found: dict[TopicPartition, datetime]
) -> list[TopicPartition]:
    """Note the timestamps of these messages, and return the partitions that are done."""
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
            if kind != TIMESTAMP_NOT_AVAILABLE and 0 <= milliseconds <= LAST_TIMESTAMP // 1000:
                found[at] = datetime.fromtimestamp(milliseconds / 1000, UTC)
        # Also at the end of the log: everything after the position was a hole.
        del left[at]
        done.append(at)
    return done

"""Kafka to Arrow in a task: offset ranges enter, raw record batches leave, each record exactly once.

A range ends by position, never by count: compaction and aborted transactions leave holes. The consumer is
kept in the worker between batches; a partition is unassigned as soon as its end is reached, so that nothing
is fetched in vain. An offset that the broker no longer has is an error, never a silent jump.

A batch that leaves has at most `chunk_bytes`, or a single record, whatever producers send. The client unpacks a
producer's batch whole, though: what one fetch brings is bounded by `fetch.max.bytes`, before it is unpacked.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ClientPartition

from penstock.errors import TransientError
from penstock.kafka import KafkaSettings, explain
from penstock.kafka.client import ObservedConsumer
from penstock.kafka.failures import BROKERS_CHANGED
from penstock.model import LAST_TIMESTAMP, RAW_SCHEMA, TIMESTAMP, OffsetRange, TopicPartition

# Kafka consumers between two reads: kept for the next one with the same settings, few of them, each lent to one alone.
#
# A process reads for several pipelines: a worker one after another, the driver some at once. A consumer has threads,
# sockets and what it fetched ahead, so those that were not used for longest are closed.

MOST_IDLE = 8


class IdleConsumers:
    """Lends consumers, and keeps at most `most` idle ones."""

    def __init__(self, most: int = MOST_IDLE) -> None:
        self._most = most
        self._idle: list[tuple[Hashable, Any]] = []
        self._changing = threading.Lock()
        atexit.register(self.close)

    @contextmanager
    def lent(self, key: Hashable, make: Callable[[], Any]) -> Iterator[Any]:
        """A consumer for exclusive use until it is given back: an idle one, or a new one."""
        consumer = self._take(key) or make()
        try:
            yield consumer
        finally:
            consumer.unassign()
            self._keep(key, consumer)

    def close(self) -> None:
        """Close those that are idle."""
        with self._changing:
            idle, self._idle = self._idle, []
        for _, consumer in idle:
            consumer.close()

    def __len__(self) -> int:
        return len(self._idle)

    def _take(self, key: Hashable) -> Any | None:
        with self._changing:
            for at in reversed(range(len(self._idle))):
                if self._idle[at][0] == key:
                    return self._idle.pop(at)[1]
        return None

    def _keep(self, key: Hashable, consumer: Any) -> None:
        with self._changing:
            self._idle.append((key, consumer))
            over, self._idle = self._idle[: -self._most], self._idle[-self._most :]
        for _, old in over:
            old.close()


CHUNK_BYTES = 16 << 20
_CHUNK_MESSAGES = 20_000
_STEP_MESSAGES = 64
"""How many messages are taken from the client at once: each is copied before its size is known."""
_POLL_SECONDS = 0.05
_DEFAULTS = {
    "fetch.wait.max.ms": 10,
    "fetch.error.backoff.ms": 50,
    "fetch.queue.backoff.ms": 10,
    # Still packed, of all partitions together: a thousand times as much may come out of it.
    "fetch.max.bytes": 4 << 20,
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 65_536,
    "log_level": 0,
}
_OWNED = {
    "group.id": "penstock-reader",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
}
_idle = IdleConsumers()


@dataclass(frozen=True)
class KafkaReader:
    """Reads offset ranges with librdkafka. `patience` bounds how long the brokers may stay silent."""

    settings: KafkaSettings
    patience: float = 30.0
    chunk_bytes: int = CHUNK_BYTES

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """Yield the records of `ranges`, in order within each partition."""
        pending = {r.topic_partition: r.end for r in ranges if len(r)}
        left = sum(len(r) for r in ranges)
        if not pending:
            return
        with _idle.lent(self.settings.identity, self._open) as consumer:
            yield from self._records(consumer, ranges, pending, left)

    def _open(self) -> ObservedConsumer:
        return ObservedConsumer(self.settings, {**_DEFAULTS, **self.settings.for_librdkafka(), **_OWNED})

    def _records(
        self, consumer: ObservedConsumer, ranges: Sequence[OffsetRange], pending: dict[TopicPartition, int], left: int
    ) -> Iterator[pa.RecordBatch]:
        consumer.errors.forget()
        consumer.assign([ClientPartition(r.topic, r.partition, r.start) for r in ranges if len(r)])
        topics = sorted({partition.topic for partition in pending})
        heard, chunks = time.monotonic(), _Chunks(consumer, self.chunk_bytes)
        while pending:
            messages = chunks.take(left)
            if not messages:
                consumer.errors.refuse("reading")
                self._check_patience(heard, pending)
                continue
            rows, ended = self._sort_out(messages, pending, topics)
            for partition in ended:
                del pending[partition]
            if ended and pending:
                consumer.incremental_unassign([ClientPartition(p.topic, p.partition) for p in ended])
            if rows is not None:
                heard = time.monotonic()
                left -= rows.num_rows
                yield rows
            elif ended:
                heard = time.monotonic()
            else:
                self._check_patience(heard, pending)

    def _check_patience(self, heard: float, pending: dict[TopicPartition, int]) -> None:
        if time.monotonic() - heard > self.patience:
            raise TransientError(
                "BROKER_SILENT",
                f"reading: nothing came for {self.patience:g} s",
                context={
                    "brokers": self.settings.brokers,
                    "waiting for": ", ".join(f"{p} up to {end}" for p, end in sorted(pending.items())[:8]),
                },
            )

    def _sort_out(
        self, messages: list[Any], pending: dict[TopicPartition, int], topics: Sequence[str]
    ) -> tuple[pa.RecordBatch | None, set[TopicPartition]]:
        """The rows that lie in the pending ranges, and the partitions whose end is reached."""
        ended: set[TopicPartition] = set()
        troubled = [m for m in messages if m.error() is not None]
        if troubled:
            ended |= self._ended(troubled, pending)
            messages = [m for m in messages if m.error() is None]
            if not messages:
                return None, ended
        offsets = np.fromiter((m.offset() for m in messages), np.int64, len(messages))
        partitions = np.fromiter((m.partition() for m in messages), np.int64, len(messages))
        numbers = np.zeros(len(messages), np.int64)
        if len(topics) > 1:
            number_of = {name: number for number, name in enumerate(topics)}
            numbers = np.fromiter((number_of[m.topic()] for m in messages), np.int64, len(messages))
        # One look at the messages, whatever the number of partitions that are waited for.
        keys, which = np.unique(numbers << 32 | partitions, return_inverse=True)
        seen = [TopicPartition(topics[key >> 32], key & 0xFFFFFFFF) for key in keys.tolist()]
        ends = np.array([pending.get(partition, 0) for partition in seen], np.int64)
        last = np.full(len(seen), -1, np.int64)
        np.maximum.at(last, which, offsets)
        ended.update(partition for partition, over in zip(seen, (last + 1 >= ends) & (ends > 0), strict=True) if over)
        keep = offsets < ends[which]
        if not keep.all():
            messages = [m for m, wanted in zip(messages, keep, strict=True) if wanted]
            offsets, partitions, numbers = offsets[keep], partitions[keep], numbers[keep]
        if not messages:
            return None, ended
        names = np.array(topics, dtype=object)[numbers] if len(topics) > 1 else None
        return _to_arrow(messages, names, topics[0], partitions.astype(np.int32), offsets), ended

    def _ended(self, troubled: list[Any], pending: dict[TopicPartition, int]) -> set[TopicPartition]:
        """The partitions whose end was reported, perhaps again. Raises every other error that does not pass."""
        ended = set()
        for message in troubled:
            error: KafkaError = message.error()
            partition = TopicPartition(message.topic() or "", message.partition() or 0)
            if error.code() == KafkaError._PARTITION_EOF:
                if partition in pending and message.offset() >= pending[partition]:
                    ended.add(partition)
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                raise TransientError(
                    "OFFSETS_GONE",
                    f"reading {partition}: the broker no longer has the offset asked for",
                    context={"client": error.str()},
                )
            elif error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
                # The check of the ranges before the next attempt finds out whether it is gone for good.
                raise TransientError("PARTITION_GONE", f"reading {partition}: the broker does not know it")
            elif not (error.retriable() or error.code() in _PASSING):
                raise explain(error, f"reading {partition}", self.settings.brokers)
        return ended


class _Chunks:
    """Messages of one consumer, cut by their bytes."""

    def __init__(self, consumer: ObservedConsumer, most_bytes: int) -> None:
        self._consumer = consumer
        self._most_bytes = most_bytes
        self._step = 1
        self._waiting: deque[tuple[Any, int]] = deque()
        """Messages with their sizes that were too much for the last chunk."""

    def take(self, most: int) -> list[Any]:
        """The next messages, at most `most`; none where none came for a while."""
        most = max(1, min(most, _CHUNK_MESSAGES))
        deadline = time.monotonic() + _POLL_SECONDS
        taken: list[Any] = []
        left = self._most_bytes
        while len(taken) < most:
            if not self._waiting:
                asked = min(self._step, most - len(taken))
                found = self._consumer.consume(asked, max(0.0, deadline - time.monotonic()))
                size = _bytes(found)
                self._step = self._next_step(max(map(len, found), default=0))
                if size <= left:
                    taken += found
                    left -= size
                    if len(found) < asked:
                        break
                    continue
                self._waiting.extend((message, _bytes([message])) for message in found)
            message, size = self._waiting[0]
            if taken and size > left:
                break
            taken.append(message)
            left -= size
            self._waiting.popleft()
        return taken

    def _next_step(self, largest: int) -> int:
        """How many messages to ask for, when those before were of this size: from one up, and quickly down again."""
        return max(1, min(_STEP_MESSAGES, 2 * self._step, self._most_bytes // max(1, largest)))


def _bytes(messages: Sequence[Any]) -> int:
    """The bytes of messages; an error has its words for a value."""
    size = sum(map(len, messages)) + sum([len(key) for message in messages if (key := message.key())])
    for headers in [headers for message in messages if (headers := message.headers())]:
        size += sum(len(name) + len(value or b"") for name, value in headers)
    return size


_PASSING = BROKERS_CHANGED | frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._SSL,
        # No group is used, so a missing right on it does not matter.
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)


def _to_arrow(messages: list[Any], topics: Any, topic: str, partitions: Any, offsets: Any) -> pa.RecordBatch:
    count = len(messages)
    stamps = np.fromiter((m.timestamp()[1] for m in messages), np.int64, count)
    headers = [m.headers() for m in messages]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([m.key() for m in messages], pa.binary()),
            pa.array([m.value() for m in messages], pa.binary()),
            _header_array(headers) if any(headers) else pa.nulls(count, RAW_SCHEMA.field("headers").type),
            pa.array(topics, pa.string()) if topics is not None else pa.repeat(pa.scalar(topic), count),
            pa.array(partitions, pa.int32()),
            pa.array(offsets, pa.int64()),
            _times(stamps),
        ],
        schema=RAW_SCHEMA,
    )


def _times(millis: Any) -> pa.Array:
    """Kafka's times, which may be missing. One beyond the last timestamp is the last number there is."""
    beyond = millis > LAST_TIMESTAMP // 1000
    micros = np.where(beyond, np.iinfo(np.int64).max, np.where(beyond, 0, millis) * 1000)
    return pa.array(micros, TIMESTAMP, mask=millis < 0)


def _header_array(headers: list[list[tuple[str, bytes | None]] | None]) -> pa.Array:
    rows = [None if h is None else [{"key": k, "value": v} for k, v in h] for h in headers]
    return pa.array(rows, RAW_SCHEMA.field("headers").type)

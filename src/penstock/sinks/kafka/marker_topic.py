"""The marker topic of a sink: creates it, checks it, keeps it as durable as the sink's target topics, and reads it.

It is compacted, has one partition for each slot, and is read below the last stable offset. A slot's writer has the
partition to itself once its `init_transactions` has returned, so a transaction must land at the end that was read
before: anything else means that the read was stale. The last record of every transaction is the marker. A
redrive writes single records, which no position can list: its transactions have one entry for each, with the record as
the key, ahead of the marker.

A marker that is lost while its rows stay lets a batch be written twice. So the topic has at least as many replicas as
the sink's target topic, and at least as many of them must be in sync for a write.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from penstock.errors import TerminalError, TransientError
from penstock.kafka import KafkaSettings, explain
from penstock.kafka.client import BrokerClient
from penstock.kafka.failures import NOT_ALLOWED, answer
from penstock.kafka.topics import TopicAdmin
from penstock.model import OffsetRange, Position
from penstock.sinks.kafka.markers import KEY, Marker, Record, SlotState

TOPIC_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)}
"""Small segments: only full ones are compacted."""

_IN_SYNC = "min.insync.replicas"
_REPLICAS = 3
_REFUSED = NOT_ALLOWED | {KafkaError.POLICY_VIOLATION}
_TAIL = 20
_POLL_SECONDS = 0.2
_TIMEOUT_SECONDS = 30.0
_OPTIONS = {
    "group.id": "penstock-markers",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
}
# No group is used, so a missing right on it does not matter.
_GROUP_ERRORS = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED})
_GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})


@dataclass(frozen=True)
class _Durability:
    """The minimum of replicas of some topics, and of those in sync for a write; None where that is unknown."""

    replicas: int | None
    in_sync: int | None


class MarkerAdmin(TopicAdmin):
    """Creates and maintains the marker topic of one sink."""

    def __init__(self, settings: KafkaSettings, markers: str) -> None:
        super().__init__(settings)
        self._markers = markers

    def partitions(self) -> int:
        """The number of partitions of the marker topic; 0 where it does not exist."""
        facts = self.describe([self._markers]).get(self._markers)
        return facts.partitions if facts is not None else 0

    def open(self, partitions: int, targets: Collection[str]) -> list[str]:
        """Create the topic, or add partitions, as durable as the target topics; notices for people."""
        there = self.partitions()
        if there:
            if there < partitions:
                self.add_partitions(self._markers, partitions)
            return self.keep_durable(targets)
        wanted = self._durability(targets)
        replicas = min(max(wanted.replicas or 0, _REPLICAS), self.brokers())
        in_sync = self._wanted_in_sync(wanted)
        more = {_IN_SYNC: str(min(in_sync, replicas))} if in_sync is not None else {}
        self.create(self._markers, partitions, replicas, {**TOPIC_SETTINGS, **more})
        return self._unread(targets, wanted)

    def keep_durable(self, targets: Collection[str]) -> list[str]:
        """Raise the topic's `min.insync.replicas` to that of the target topics; notices for people."""
        held, target = self._durability([self._markers]), self._durability(targets)
        wanted = self._wanted_in_sync(target)
        if held.replicas is None or held.in_sync is None or wanted is None or held.in_sync >= wanted:
            return self._unread(targets, target)
        risk = f"marker topic {self._markers} has {_IN_SYNC}={held.in_sync}, less than the {wanted} of the target"
        reachable = min(wanted, held.replicas)
        if held.in_sync < reachable and not self._set_in_sync(reachable):
            return [f"{risk}, and this user may not change it: set it, or losing a disk may duplicate a batch"]
        if reachable < wanted:
            return [f"{risk}, and only {held.replicas} replicas: add replicas, and start the pipeline again"]
        return []

    def _unread(self, targets: Collection[str], found: _Durability) -> list[str]:
        if found.replicas is None or found.in_sync is not None:
            return []
        return [
            f"{_IN_SYNC} of {', '.join(sorted(targets))} cannot be read: the marker topic {self._markers} may be less "
            "durable; grant DescribeConfigs on both"
        ]

    def _set_in_sync(self, value: int) -> bool:
        """Set `min.insync.replicas` of the marker topic; false where this user may not."""
        entry = ConfigEntry(_IN_SYNC, str(value), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self._markers, incremental_configs=[entry])
        with self._brokers.asking(f"changing topic {self._markers}") as admin:
            changed = admin.incremental_alter_configs([resource], request_timeout=self._timeout)
            try:
                answer(changed[resource], 2 * self._timeout)
            except KafkaException as error:
                if error.args[0].code() not in _REFUSED:
                    raise
                return False
        return True

    def _durability(self, names: Collection[str]) -> _Durability:
        """The smallest number of replicas of some topics, and the largest number that must be in sync."""
        with self._brokers.asking(f"describing topics {', '.join(sorted(names))}") as admin:
            topics = admin.list_topics(timeout=self._timeout).topics
            there = [name for name in names if name in topics and topics[name].partitions]
            settings = self._settings(admin, ResourceType.TOPIC, there)
        replicas = [len(part.replicas) for name in there for part in topics[name].partitions.values()]
        in_sync = [int(of[_IN_SYNC]) for of in settings.values() if _IN_SYNC in of]
        return _Durability(min(replicas, default=None), max(in_sync, default=None))

    def _wanted_in_sync(self, targets: _Durability) -> int | None:
        """As in the target topics, and at least as the brokers have it by default."""
        known = [of for of in (targets.in_sync, self._default_in_sync()) if of is not None]
        return max(known, default=None)

    def _default_in_sync(self) -> int | None:
        """The default of any broker that answers: all brokers of a cluster have the same one."""
        with self._brokers.asking("asking for the brokers' settings") as admin:
            for number in admin.list_topics(timeout=self._timeout).brokers:
                with suppress(KafkaException):  # one of several may be down
                    of = self._settings(admin, ResourceType.BROKER, [str(number)]).get(str(number), {})
                    return int(of[_IN_SYNC]) if _IN_SYNC in of else None
        return None


def read_markers(sink: str, settings: KafkaSettings, topic: str, slots: Iterable[int]) -> dict[int, SlotState]:
    """The newest marker of each slot; a slot without a partition is left out."""
    with _reading(sink, settings, topic) as reader:
        return {slot: state for slot in slots if (state := reader.read(slot)) is not None}


def read_redriven(
    sink: str, settings: KafkaSettings, topic: str, slots: Iterable[int], ranges: Sequence[OffsetRange]
) -> set[Record]:
    """The records in these ranges that redrives have committed, in any slot."""
    found: set[Record] = set()
    with _reading(sink, settings, topic) as reader:
        for slot in slots:
            found.update(record for record in reader.redriven(slot) if any(_contains(r, record) for r in ranges))
    return found


def _contains(r: OffsetRange, record: Record) -> bool:
    return (r.topic, r.partition) == record[:2] and r.start <= record[2] < r.end


@contextmanager
def _reading(sink: str, settings: KafkaSettings, topic: str) -> Iterator[_MarkerReader]:
    doing = f"sink {sink}: reading markers from {topic}"
    options = {"fetch.wait.max.ms": 10, **settings.for_librdkafka(), **_OPTIONS}
    brokers = BrokerClient(Consumer, settings, options, _TIMEOUT_SECONDS, reopens=False)
    try:
        with brokers.asking(doing):
            yield _MarkerReader(brokers, doing, topic)
    finally:
        brokers.client.close()


class _MarkerReader:
    def __init__(self, brokers: BrokerClient, doing: str, topic: str) -> None:
        self._brokers = brokers
        self._consumer = brokers.client
        self._doing = doing
        self._topic = topic
        self._deadline = 0.0

    def read(self, slot: int) -> SlotState | None:
        """The newest marker of a slot. One from before 0.8 is completed with the partitions of older ones."""
        bounds = self._bounds(slot)
        if bounds is None:
            return None
        start, end = bounds
        tail = max(start, end - _TAIL)
        found = self._markers(slot, tail, end)
        if not found and tail > start:
            found = self._markers(slot, start, end)
        if not found:
            return SlotState(None, end)
        newest = self._parse(found[-1])
        if not newest.whole:
            older = [self._parse(message).position for message in reversed(self._markers(slot, start, end)[:-1])]
            newest = replace(newest, position=Position.united(newest.position, older))
        return SlotState(newest, end, found[-1].timestamp()[1])

    def redriven(self, slot: int) -> Iterator[Record]:
        """The records that redrives have committed in a slot."""
        bounds = self._bounds(slot)
        for message in self._messages(slot, *bounds) if bounds is not None else ():
            topic, _, place = (message.key() or b"").decode(errors="replace").partition("/")
            partition, _, offset = place.partition("/")
            if partition.isdecimal() and offset.isdecimal():
                yield topic, int(partition), int(offset)

    def _markers(self, slot: int, start: int, end: int) -> list[Any]:
        """The records of markers in `[start, end)`, the newest last."""
        return [message for message in self._messages(slot, start, end) if message.key() == KEY]

    def _parse(self, message: Any) -> Marker:
        try:
            return Marker.from_bytes(message.value())
        except (ValueError, KeyError, TypeError) as error:
            raise TerminalError(
                "SINK_MARKER_UNREADABLE",
                f"{self._doing}: a record is not a marker",
                context={"record": f"{self._topic}[{message.partition()}] offset {message.offset()}", "reason": error},
                hint="only this sink may write to its marker topic",
            ) from None

    def _bounds(self, slot: int) -> tuple[int, int] | None:
        """The first offset of the partition and its last stable offset, from its leader."""
        self._deadline = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            try:
                low, high = self._consumer.get_watermark_offsets(ClientPartition(self._topic, slot), timeout=5.0)
                return int(low), int(high)
            except KafkaException as error:
                if error.args[0].code() in _GONE and slot not in self._partitions():
                    return None
                # A leader elected a moment ago does not know the end yet.
                if time.monotonic() > self._deadline or not _is_transient(error.args[0]):
                    raise
                time.sleep(0.1)

    def _partitions(self) -> Iterable[int]:
        topic = self._consumer.list_topics(timeout=5.0).topics.get(self._topic)
        return topic.partitions if topic is not None else ()

    def _messages(self, slot: int, start: int, end: int) -> Iterator[Any]:
        """The records in `[start, end)`. Reads until the position is `end`: nothing after it is committed."""
        if start >= end:
            return
        self._deadline = time.monotonic() + _TIMEOUT_SECONDS
        self._consumer.assign([ClientPartition(self._topic, slot, start)])
        try:
            while True:
                message = self._consumer.poll(_POLL_SECONDS)
                error = message.error() if message is not None else None
                if message is None or (error is not None and error.code() != KafkaError._PARTITION_EOF):
                    self._check_timeout(slot, end, error)
                    continue
                if error is None:
                    self._deadline = time.monotonic() + _TIMEOUT_SECONDS
                if error is None and message.offset() < end:
                    yield message
                if message.offset() >= (end - 1 if error is None else end):
                    return
                self._check_timeout(slot, end, None)
        finally:
            self._consumer.unassign()

    def _check_timeout(self, slot: int, end: int, error: KafkaError | None) -> None:
        if error is not None and not _is_transient(error):
            raise KafkaException(error)
        self._brokers.errors.refuse(self._doing)
        if time.monotonic() > self._deadline:
            raise TransientError(
                "BROKER_SILENT",
                f"{self._doing}: no answer for {_TIMEOUT_SECONDS:g} s",
                context={"waiting for": f"{self._topic}[{slot}] up to {end}", "client": error or "no answer"},
            )


def _is_transient(error: KafkaError) -> bool:
    return error.code() in _GROUP_ERRORS or isinstance(explain(error, "", ""), TransientError)

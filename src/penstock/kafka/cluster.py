"""What the brokers say: which partitions there are, and where each log begins and ends. No rows are read."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from penstock.errors import MissingError, PenstockError, TerminalError, TransientError
from penstock.kafka.settings import KafkaSettings
from penstock.model import TopicPartition

_AWAY = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
    }
)
# A client hears these whose picture of the leaders is older, or newer, than that of the broker it asks.
_LEADER_MOVES = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
# No leader yet after a start of the broker, a partition too new for the client's own picture, or one that is gone:
# the metadata tells which.
_MOVED_OR_GONE = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._NOENT,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }
)


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The offsets `[start, end)` that a partition holds now; `end` is the last stable offset."""

    start: int
    end: int


@dataclass(frozen=True)
class Subscription:
    """Which partitions a pipeline reads: exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assign: Mapping[str, tuple[int, ...]] | None = None

    def describe(self) -> str:
        """For messages."""
        if self.pattern is not None:
            return f"topics matching {self.pattern}"
        if self.assign is not None:
            return "; ".join(f"{_some_of('topic', [t])}, {_some_of('partition', p)}" for t, p in self.assign.items())
        return _some_of("topic", self.topics)


def explain(error: KafkaError, doing: str, brokers: str) -> PenstockError:
    """A client error in Penstock's terms; whether it may pass is in its class."""
    context = {"brokers": brokers, "client": f"{error.name()}: {error.str()}"}
    if error.code() in _AWAY | _LEADER_MOVES | _MOVED_OR_GONE or error.retriable():
        return TransientError(
            "BROKER_UNREACHABLE",
            f"{doing}: no answer from the brokers",
            context=context,
            hint="is the broker running, and are source.brokers right?  try: penstock dev status",
        )
    return TerminalError("KAFKA_REFUSED", f"{doing}: the brokers refused", context=context)


class Cluster:
    """A view of one Kafka cluster, through one admin client that is kept. It waits for an answer as long as the
    option `socket.timeout.ms` says, or `timeout`."""

    def __init__(self, settings: KafkaSettings, timeout: float = 10.0) -> None:
        self._settings = settings
        try:
            self._admin = AdminClient(
                {"log_level": 0, "socket.timeout.ms": int(timeout * 1000), **settings.for_librdkafka()}
            )
        except KafkaException as error:
            raise MissingError(
                "KAFKA_SETTINGS_INVALID",
                "opening a Kafka client: a setting is refused",
                context={"client": error.args[0].str()},
                hint="look at source.options",
            ) from None
        self._timeout = float(settings.options.get("socket.timeout.ms", timeout * 1000)) / 1000

    def partitions(self, subscription: Subscription) -> list[TopicPartition]:
        """The partitions that the subscription names today, in order."""
        topics = self._metadata()
        if subscription.pattern is not None:
            wanted = re.compile(subscription.pattern)
            names = [name for name in topics if wanted.fullmatch(name) and not name.startswith("__")]
        else:
            names = list(subscription.assign if subscription.assign is not None else subscription.topics)
        missing = [name for name in names if name not in topics]
        if missing:
            raise MissingError(
                "TOPIC_MISSING",
                f"no such topic: {', '.join(missing)}",
                context={"brokers": self._settings.brokers, "topics there": _some(topics)},
                hint="create the topic, or correct source.topics",
            )
        found = [TopicPartition(name, p) for name in names for p in range(topics[name])]
        if subscription.assign is None:
            return sorted(found)
        asked = [TopicPartition(t, p) for t, ps in subscription.assign.items() for p in ps]
        absent = sorted(set(asked) - set(found))
        if absent:
            raise MissingError(
                "PARTITION_MISSING",
                f"no such partition: {', '.join(map(str, absent))}",
                context={name: f"{topics[name]} partitions" for name in subscription.assign},
                hint="correct source.assign",
            )
        return sorted(asked)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """Where each log begins and ends now. A partition that is gone is left out."""
        wanted = list(partitions)
        starts = self._list_offsets(wanted, OffsetSpec.earliest())
        ends = self._list_offsets(list(starts), OffsetSpec.latest())
        return {p: LogBounds(starts[p], ends[p]) for p in wanted if p in starts and p in ends}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids that the brokers gave these topics when they were made; one that is not there is left out."""
        found: dict[str, str] = {}
        asked = sorted(set(topics))
        futures = self._admin.describe_topics(TopicCollection(asked), request_timeout=self._timeout) if asked else {}
        for topic, future in futures.items():
            try:
                found[topic] = str(future.result().topic_id)
            except KafkaException as error:
                if error.args[0].code() not in _MOVED_OR_GONE:
                    raise explain(error.args[0], "describing topics", self._settings.brokers) from None
        return found

    def offsets_at(self, partitions: Iterable[TopicPartition], when: datetime) -> dict[TopicPartition, int]:
        """The first offset at or after a time; -1 where there is none."""
        return self._list_offsets(list(partitions), OffsetSpec.for_timestamp(int(when.timestamp() * 1000)))

    def _metadata(self) -> dict[str, int]:
        try:
            metadata = self._admin.list_topics(timeout=self._timeout)
        except KafkaException as error:
            raise explain(error.args[0], "listing topics", self._settings.brokers) from None
        return {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.error is None}

    def _list_offsets(self, partitions: list[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._ask_offsets(partitions, spec)
            except KafkaException as error:
                # Leaders move when a topic is new or a broker went: the admin client does not follow by itself.
                if error.args[0].code() not in _LEADER_MOVES | _MOVED_OR_GONE or time.monotonic() > deadline:
                    raise explain(error.args[0], "asking for log offsets", self._settings.brokers) from None
            self._metadata()
            time.sleep(0.1)

    def _ask_offsets(self, partitions: list[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        asked = {ClientPartition(p.topic, p.partition): spec for p in partitions}
        futures: Mapping[Any, Future[Any]] = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._timeout
        )
        found: dict[TopicPartition, int] = {}
        unknown: dict[TopicPartition, KafkaException] = {}
        for at, future in futures.items():
            try:
                found[TopicPartition(at.topic, at.partition)] = future.result().offset
            except KafkaException as error:
                if error.args[0].code() not in _MOVED_OR_GONE:
                    raise
                unknown[TopicPartition(at.topic, at.partition)] = error
        # A broker may not know a partition that has moved: gone is only what the whole cluster does not have.
        topics = self._metadata() if unknown else {}
        for partition, refusal in unknown.items():
            if partition.partition < topics.get(partition.topic, 0):
                raise refusal
        return found


def _some_of(noun: str, names: Sequence[object]) -> str:
    return f"{noun}{'' if len(names) == 1 else 's'} {', '.join(map(str, names))}"


def _some(names: Iterable[str], limit: int = 10) -> str:
    shown = sorted(name for name in names if not name.startswith("__"))
    return ", ".join(shown[:limit]) + (", ..." if len(shown) > limit else "") or "none"

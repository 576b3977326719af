"""The metadata of a cluster: its partitions, and where each log begins and ends. No records are read."""

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
from confluent_kafka.admin import AclOperation, AdminClient, OffsetSpec

from penstock.errors import MissingError
from penstock.kafka.client import BrokerClient
from penstock.kafka.failures import LEADER_MOVES, MOVED_OR_GONE, RIGHTS_HINT, answer
from penstock.kafka.settings import KafkaSettings
from penstock.kafka.tls import takes_connections
from penstock.model import TopicPartition

_READS = frozenset({AclOperation.READ, AclOperation.ALL})


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


def look_seconds(settings: KafkaSettings) -> float:
    """How long a command that does not need the brokers waits for them: longer where a broker accepts connections."""
    return 10.0 if takes_connections(settings.brokers) else 3.0


class Cluster:
    """A view of one Kafka cluster. Requests time out after the option `socket.timeout.ms`, or `timeout`."""

    def __init__(self, settings: KafkaSettings, timeout: float = 10.0) -> None:
        self._settings = settings
        options: dict[str, Any] = {"socket.timeout.ms": int(timeout * 1000), **settings.for_librdkafka()}
        self._timeout = float(options["socket.timeout.ms"]) / 1000
        self._brokers = BrokerClient(AdminClient, settings, options, self._timeout)

    def partitions(self, subscription: Subscription) -> list[TopicPartition]:
        """The partitions that the subscription names today, in order."""
        topics = self._partition_counts()
        if subscription.pattern is not None:
            wanted = re.compile(subscription.pattern)
            names = [name for name in topics if wanted.fullmatch(name) and not name.startswith("__")]
        else:
            names = list(subscription.assign if subscription.assign is not None else subscription.topics)
        missing = [name for name in names if name not in topics]
        if missing:
            self._refuse_hidden(missing)
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

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where each log ends now. A partition that is gone is left out."""
        return self._list_offsets(list(partitions), OffsetSpec.latest())

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids that the brokers gave these topics when they were created; a missing topic is left out."""
        found: dict[str, str] = {}
        with self._brokers.asking("describing topics"):
            for topic, future in self._described(sorted(set(topics))).items():
                try:
                    found[topic] = str(answer(future).topic_id)
                except KafkaException as error:
                    if error.args[0].code() not in MOVED_OR_GONE:
                        raise
        return found

    def offsets_at(self, partitions: Iterable[TopicPartition], when: datetime) -> dict[TopicPartition, int]:
        """The first offset at or after a time; -1 where there is none."""
        return self._list_offsets(list(partitions), OffsetSpec.for_timestamp(int(when.timestamp() * 1000)))

    def refuse_unreadable(self, topics: Iterable[str]) -> None:
        """Raise where this user may not read one of these topics; brokers without access control let everyone."""
        with self._brokers.asking("asking for the rights on topics"):
            futures = self._described(sorted(set(topics)), include_authorized_operations=True)
            found = {name: answer(future).authorized_operations for name, future in futures.items()}
        closed = [name for name, allowed in found.items() if allowed and not _READS & set(allowed)]
        if closed:
            raise self._not_allowed("read", closed)

    def _refuse_hidden(self, topics: Sequence[str]) -> None:
        """Raise where topics are missing from the listing because this user may not describe them."""
        hidden = []
        for name, future in self._described(topics).items():
            try:
                answer(future)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    hidden.append(name)
        if hidden:
            raise self._not_allowed("read", hidden)

    def _described(self, topics: Sequence[str], **more: bool) -> Mapping[str, Future[Any]]:
        if not topics:
            return {}
        found: Mapping[str, Future[Any]] = self._brokers.client.describe_topics(
            TopicCollection(list(topics)), request_timeout=self._timeout, **more
        )
        return found

    def _not_allowed(self, right: str, topics: Sequence[str]) -> MissingError:
        return MissingError(
            "KAFKA_NOT_AUTHORIZED",
            f"the user of this pipeline lacks the right to {right} {_some_of('topic', topics)}, or it does not exist",
            context={"brokers": self._settings.brokers},
            hint=RIGHTS_HINT,
        )

    def _partition_counts(self) -> dict[str, int]:
        topics = self._brokers.topics().topics
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def _list_offsets(self, partitions: list[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        deadline = time.monotonic() + self._timeout
        while True:
            with self._brokers.asking("asking for log offsets"):
                try:
                    return self._ask_offsets(partitions, spec)
                except KafkaException as error:
                    # Leaders move when a topic is new or a broker went: the admin client does not follow by itself.
                    if error.args[0].code() not in LEADER_MOVES | MOVED_OR_GONE or time.monotonic() > deadline:
                        raise
            self._brokers.topics()
            time.sleep(0.1)

    def _ask_offsets(self, partitions: list[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        asked = {ClientPartition(p.topic, p.partition): spec for p in partitions}
        futures: Mapping[Any, Future[Any]] = self._brokers.client.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._timeout
        )
        found: dict[TopicPartition, int] = {}
        unknown: dict[TopicPartition, KafkaError] = {}
        for at, future in futures.items():
            try:
                found[TopicPartition(at.topic, at.partition)] = answer(future).offset
            except KafkaException as error:
                if error.args[0].code() not in MOVED_OR_GONE:
                    raise
                unknown[TopicPartition(at.topic, at.partition)] = error.args[0]
        # A broker may not know a partition that has moved: gone is only what the whole cluster does not have.
        topics = self._partition_counts() if unknown else {}
        for partition, refusal in unknown.items():
            if partition.partition < topics.get(partition.topic, 0):
                raise KafkaException(refusal)
        return found


def _some_of(noun: str, names: Sequence[object]) -> str:
    return f"{noun}{'' if len(names) == 1 else 's'} {', '.join(map(str, names))}"


def _some(names: Iterable[str], limit: int = 10) -> str:
    shown = sorted(name for name in names if not name.startswith("__"))
    return ", ".join(shown[:limit]) + (", ..." if len(shown) > limit else "") or "none"

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
from confluent_kafka.admin import AclOperation, AdminClient, OffsetSpec

from penstock.errors import MissingError, PenstockError, TransientError
from penstock.kafka.failures import LEADER_MOVES, MOVED_OR_GONE, RIGHTS_HINT, answer
from penstock.kafka.handshake import takes_connections
from penstock.kafka.hearing import Hearing, ask_brokers, refuse_known
from penstock.kafka.settings import KafkaSettings
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
    """How long a command that can do without the brokers waits for them: brokers that are there may be slow."""
    return 10.0 if takes_connections(settings.brokers) else 3.0


class Cluster:
    """A view of one Kafka cluster, through one admin client that is kept while the brokers answer it. It waits for an
    answer as long as the option `socket.timeout.ms` says, or `timeout`."""

    def __init__(self, settings: KafkaSettings, timeout: float = 10.0) -> None:
        self._settings = settings
        self._hearing = Hearing(settings)
        self._own = {"log_level": 0, "socket.timeout.ms": int(timeout * 1000)}
        self._admin = self._opened()
        self._timeout = float(settings.options.get("socket.timeout.ms", timeout * 1000)) / 1000

    def _opened(self) -> AdminClient:
        try:
            return AdminClient({**self._own, **self._settings.for_librdkafka(), **self._hearing.options})
        except KafkaException as error:
            raise MissingError(
                "KAFKA_SETTINGS_INVALID",
                "opening a Kafka client: a setting is refused",
                context={"client": error.args[0].str()},
                hint="look at source.options",
            ) from None

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
        """The ids that the brokers gave these topics when they were made; one that is not there is left out."""
        found: dict[str, str] = {}
        asked = sorted(set(topics))
        futures = self._admin.describe_topics(TopicCollection(asked), request_timeout=self._timeout) if asked else {}
        for topic, future in futures.items():
            try:
                found[topic] = str(answer(future).topic_id)
            except KafkaException as error:
                if error.args[0].code() not in MOVED_OR_GONE:
                    raise self._failure(error, "describing topics") from None
        return found

    def offsets_at(self, partitions: Iterable[TopicPartition], when: datetime) -> dict[TopicPartition, int]:
        """The first offset at or after a time; -1 where there is none."""
        return self._list_offsets(list(partitions), OffsetSpec.for_timestamp(int(when.timestamp() * 1000)))

    def refuse_unreadable(self, topics: Iterable[str]) -> None:
        """Raise where this user may not read one of these topics; brokers without access control let everyone."""
        doing = "asking for the rights on topics"
        try:
            futures = self._described(sorted(set(topics)), include_authorized_operations=True)
            found = {name: answer(future).authorized_operations for name, future in futures.items()}
        except KafkaException as error:
            raise self._failure(error, doing) from None
        closed = [name for name, allowed in found.items() if allowed and not _READS & set(allowed)]
        if closed:
            raise self._not_allowed("read", closed)

    def _refuse_hidden(self, topics: Sequence[str]) -> None:
        """Brokers do not tell of a topic that one may not describe; asked for it by name, they say so."""
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
        found: Mapping[str, Future[Any]] = self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=self._timeout, **more
        )
        return found

    def _not_allowed(self, right: str, topics: Sequence[str]) -> MissingError:
        return MissingError(
            "KAFKA_NOT_AUTHORIZED",
            f"the user of this pipeline lacks the right to {right} {_some_of('topic', topics)}, or there is none",
            context={"brokers": self._settings.brokers},
            hint=RIGHTS_HINT,
        )

    def _failure(self, error: KafkaException, doing: str) -> PenstockError:
        told = self._hearing.failure(self._admin, error.args[0], doing)
        if isinstance(told, TransientError):
            # A client stays with the broker that it took for the controller, also when that one hangs.
            self._admin = self._opened()
        return told

    def _metadata(self) -> dict[str, int]:
        refuse_known(self._settings)
        doing = "listing topics"
        try:
            metadata = ask_brokers(
                self._admin,
                self._hearing,
                self._settings,
                self._timeout,
                doing,
                lambda seconds: self._admin.list_topics(timeout=seconds),
            )
        except KafkaException as error:
            raise self._failure(error, doing) from None
        return {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.error is None}

    def _list_offsets(self, partitions: list[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._ask_offsets(partitions, spec)
            except KafkaException as error:
                # Leaders move when a topic is new or a broker went: the admin client does not follow by itself.
                if error.args[0].code() not in LEADER_MOVES | MOVED_OR_GONE or time.monotonic() > deadline:
                    raise self._failure(error, "asking for log offsets") from None
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
        unknown: dict[TopicPartition, KafkaError] = {}
        for at, future in futures.items():
            try:
                found[TopicPartition(at.topic, at.partition)] = answer(future).offset
            except KafkaException as error:
                if error.args[0].code() not in MOVED_OR_GONE:
                    raise
                unknown[TopicPartition(at.topic, at.partition)] = error.args[0]
        # A broker may not know a partition that has moved: gone is only what the whole cluster does not have.
        topics = self._metadata() if unknown else {}
        for partition, refusal in unknown.items():
            if partition.partition < topics.get(partition.topic, 0):
                raise KafkaException(refusal)
        return found


def _some_of(noun: str, names: Sequence[object]) -> str:
    return f"{noun}{'' if len(names) == 1 else 's'} {', '.join(map(str, names))}"


def _some(names: Iterable[str], limit: int = 10) -> str:
    shown = sorted(name for name in names if not name.startswith("__"))
    return ", ".join(shown[:limit]) + (", ..." if len(shown) > limit else "") or "none"

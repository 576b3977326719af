"""Describes, creates and deletes topics: what they take, who may write, and what the brokers allow.

Nothing here creates a topic by asking about it, whatever the brokers' `auto.create.topics.enable` says.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

from penstock.errors import TransientError
from penstock.kafka.client import BrokerClient
from penstock.kafka.failures import NOT_ALLOWED, answer
from penstock.kafka.settings import KafkaSettings

MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's own default, for a topic whose settings this user may not describe."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What a writer needs to know of a topic."""

    name: str
    partitions: int
    max_message_bytes: int
    writable: bool = True
    cleanup_policy: str = ""


_LIMIT = "transaction.max.timeout.ms"


class TopicAdmin:
    """Describes, creates and deletes topics."""

    def __init__(self, settings: KafkaSettings, timeout: float = 15.0) -> None:
        self._timeout = timeout
        self._brokers = BrokerClient(AdminClient, settings, settings.for_librdkafka(), timeout)

    def names(self) -> list[str]:
        """The topics there are, Kafka's own left out."""
        with self._brokers.asking("listing topics") as admin:
            found = admin.list_topics(timeout=self._timeout).topics
        return sorted(name for name, topic in found.items() if topic.error is None and not name.startswith("__"))

    def brokers(self) -> int:
        """How many brokers there are."""
        with self._brokers.asking("asking for the brokers") as admin:
            return len(admin.list_topics(timeout=self._timeout).brokers)

    def describe(self, names: Collection[str], closed: set[str] | None = None) -> dict[str, TopicFacts]:
        """The facts of each topic; a missing one is left out.

        A topic that this user may not describe is added to `closed`, or raises without that.
        """
        if not names:
            return {}
        shown = ", ".join(sorted(names)[:10]) + (", ..." if len(names) > 10 else "")
        with self._brokers.asking(f"describing topics {shown}") as admin:
            asked = admin.describe_topics(
                TopicCollection(list(names)), include_authorized_operations=True, request_timeout=self._timeout
            )
            found = {
                name: topic for name, future in asked.items() if (topic := _described(name, future, closed)) is not None
            }
            settings = self._settings(admin, ResourceType.TOPIC, found)
        return {
            name: TopicFacts(
                name,
                len(topic.partitions),
                int(settings[name].get("max.message.bytes", MAX_MESSAGE_BYTES)),
                _may_write(topic),
                settings[name].get("cleanup.policy", ""),
            )
            for name, topic in found.items()
        }

    def create(
        self, name: str, partitions: int = -1, replication: int = -1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, unless it is there, and wait until its partitions have leaders. -1: as the brokers like."""
        topic = NewTopic(name, partitions, replication, config=dict(config or {}))
        with self._brokers.asking(f"creating topic {name}") as admin:
            try:
                answer(admin.create_topics([topic], request_timeout=self._timeout)[name], 2 * self._timeout)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        self._wait_for_leaders(name, max(partitions, 1))

    def delete(self, name: str) -> None:
        """Delete a topic, if it is there."""
        with self._brokers.asking(f"deleting topic {name}") as admin:
            try:
                answer(admin.delete_topics([name], request_timeout=self._timeout)[name], 2 * self._timeout)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise

    def add_partitions(self, name: str, total: int) -> None:
        """Grow a topic to `total` partitions and wait until all have leaders."""
        with self._brokers.asking(f"adding partitions to topic {name}") as admin:
            grown = admin.create_partitions([NewPartitions(name, total)], request_timeout=self._timeout)
            answer(grown[name], 2 * self._timeout)
        self._wait_for_leaders(name, total)

    def transaction_limit(self) -> timedelta | None:
        """The longest transaction that every broker allows; None where this user may not describe their settings."""
        with self._brokers.asking("asking for the brokers' settings") as admin:
            limits = list(self._transaction_limits(admin))
        return timedelta(milliseconds=min(limits)) if limits else None

    def _transaction_limits(self, admin: AdminClient) -> Iterator[int]:
        """The limit of each broker that answers. Only a broker itself knows its settings, so each one is asked."""
        refusal: KafkaError | None = None
        answered = False
        for number in admin.list_topics(timeout=self._timeout).brokers:
            try:
                settings = self._settings(admin, ResourceType.BROKER, [str(number)])
            except KafkaException as error:  # one of several may be away
                refusal = error.args[0]
                continue
            answered = True
            yield from (int(of[_LIMIT]) for of in settings.values() if _LIMIT in of)
        if refusal is not None and not answered:
            raise KafkaException(refusal)

    def _settings(self, admin: AdminClient, kind: Any, names: Collection[str]) -> dict[str, dict[str, str]]:
        """The settings of each resource; empty where this user has no right to describe them."""
        if not names:
            return {}
        resources = [ConfigResource(kind, name) for name in names]
        found: dict[str, dict[str, str]] = {}
        for resource, future in admin.describe_configs(resources, request_timeout=self._timeout).items():
            try:
                entries = answer(future, 2 * self._timeout)
            except KafkaException as error:
                if error.args[0].code() not in NOT_ALLOWED:
                    raise
                entries = {}
            found[resource.name] = {name: entry.value for name, entry in entries.items() if entry.value is not None}
        return found

    def _wait_for_leaders(self, name: str, partitions: int) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            with self._brokers.asking(f"waiting for topic {name}") as admin:
                topic = admin.list_topics(timeout=self._timeout).topics.get(name)
            leaders = [p.leader for p in topic.partitions.values()] if topic is not None else []
            if len(leaders) >= partitions and min(leaders) >= 0:
                return
            if time.monotonic() > deadline:
                raise TransientError(
                    "TOPIC_NOT_READY",
                    f"waiting for topic {name}: its partitions have no leaders",
                    context={"partitions wanted": partitions, "with a leader": sum(1 for at in leaders if at >= 0)},
                )
            time.sleep(0.05)


def _described(name: str, future: Any, closed: set[str] | None) -> Any:
    try:
        return answer(future)
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED and closed is not None:
            closed.add(name)
        elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return None


def _may_write(topic: Any) -> bool:
    # Brokers without access control list no operations, or all of them.
    allowed = topic.authorized_operations
    return not allowed or AclOperation.WRITE in allowed or AclOperation.ALL in allowed

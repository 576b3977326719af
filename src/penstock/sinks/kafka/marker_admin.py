"""The marker topic of a sink as a thing to create, to check and to keep as durable as what the sink writes.

A marker that is lost while its rows stay lets a batch be written twice. So the topic has at least as many replicas as
the sink's target topic, and at least as many of them must be in sync for a write.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from penstock.errors import MissingError
from penstock.kafka import KafkaSettings
from penstock.kafka.failures import NOT_ALLOWED, answer
from penstock.kafka.topics import TopicAdmin, TopicFacts

TOPIC_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)}
"""Small segments: what is superseded can go only from those that are full."""

_IN_SYNC = "min.insync.replicas"
_REPLICAS = 3
_REFUSED = NOT_ALLOWED | {KafkaError.POLICY_VIOLATION}


@dataclass(frozen=True)
class _Durability:
    """How many replicas topics have at least, and how many must be in sync for a write; none where that is unknown."""

    replicas: int | None
    in_sync: int | None


class MarkerAdmin(TopicAdmin):
    """Looks after the marker topic of one sink."""

    def __init__(self, sink: str, settings: KafkaSettings, markers: str) -> None:
        super().__init__(settings)
        self._sink = sink
        self._markers = markers

    def check_markers(self, facts: TopicFacts | None) -> None:
        """Refuse a marker topic whose records expire."""
        if facts is not None and facts.cleanup_policy not in ("", "compact"):
            raise MissingError(
                "SINK_MARKERS_EXPIRE",
                f"sink {self._sink}: the marker topic must be compacted and nothing else",
                context={"topic": self._markers, "cleanup.policy": facts.cleanup_policy},
                hint="set cleanup.policy=compact on the topic: markers that expire let batches be written twice",
            )

    def check_timeout(self, wanted: timedelta) -> None:
        """Refuse a transaction timeout that the brokers do not allow."""
        limit = self.transaction_limit()
        if limit is not None and wanted > limit:
            raise MissingError(
                "SINK_TRANSACTION_TIMEOUT",
                f"sink {self._sink}: the transaction timeout is longer than the brokers allow",
                context={"transaction timeout": wanted, "the brokers' transaction.max.timeout.ms": limit},
                hint="set the sink's transaction timeout to at most that, or raise the brokers' limit",
            )

    def partitions(self) -> int:
        """How many partitions the marker topic has; 0 where it is not there."""
        facts = self.describe([self._markers]).get(self._markers)
        return facts.partitions if facts is not None else 0

    def open(self, partitions: int, targets: Collection[str]) -> list[str]:
        """Create the topic, or make it large enough, as durable as the target topics; what people should know."""
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
        """Raise the topic's `min.insync.replicas` to that of the target topics; what people should know."""
        held, target = self._durability([self._markers]), self._durability(targets)
        wanted = self._wanted_in_sync(target)
        if held.replicas is None or held.in_sync is None or wanted is None or held.in_sync >= wanted:
            return self._unread(targets, target)
        risk = f"marker topic {self._markers} has {_IN_SYNC}={held.in_sync}, less than the {wanted} of the target"
        reachable = min(wanted, held.replicas)
        if held.in_sync < reachable and not self._set_in_sync(reachable):
            return [f"{risk}, and this user may not change it: set it, or a lost disk can let a batch be written twice"]
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
        with self._asking(f"changing topic {self._markers}"):
            changed = self._admin.incremental_alter_configs([resource], request_timeout=self._timeout)
            try:
                answer(changed[resource], 2 * self._timeout)
            except KafkaException as error:
                if error.args[0].code() not in _REFUSED:
                    raise
                return False
        return True

    def _durability(self, names: Collection[str]) -> _Durability:
        """The smallest number of replicas of some topics, and the largest number that must be in sync."""
        with self._asking(f"describing topics {', '.join(sorted(names))}"):
            topics = self._admin.list_topics(timeout=self._timeout).topics
            there = [name for name in names if name in topics and topics[name].partitions]
            settings = self._settings(ResourceType.TOPIC, there)
        replicas = [len(part.replicas) for name in there for part in topics[name].partitions.values()]
        in_sync = [int(of[_IN_SYNC]) for of in settings.values() if _IN_SYNC in of]
        return _Durability(min(replicas, default=None), max(in_sync, default=None))

    def _wanted_in_sync(self, targets: _Durability) -> int | None:
        """As in the target topics, and at least as the brokers have it by default."""
        known = [of for of in (targets.in_sync, self._default_in_sync()) if of is not None]
        return max(known, default=None)

    def _default_in_sync(self) -> int | None:
        """What a broker answers that may be asked: the brokers of a cluster have this setting alike."""
        with self._asking("asking for the brokers' settings"):
            for number in self._admin.list_topics(timeout=self._timeout).brokers:
                with suppress(KafkaException):  # one of several may be away
                    of = self._settings(ResourceType.BROKER, [str(number)]).get(str(number), {})
                    return int(of[_IN_SYNC]) if _IN_SYNC in of else None
        return None

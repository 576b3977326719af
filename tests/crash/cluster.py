"""Three brokers of which one at a time is lost: killed, or stopped and later resumed. And which one does what."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource
from tests.conftest import Topics
from tests.crash.harness import wait_for

from penstock.devstack import DevStack
from penstock.errors import MissingError

_TRANSACTIONS = "__transaction_state"
_PATIENCE_SECONDS = 90


class Brokers:
    """The brokers by their node ids."""

    def __init__(self, stack: DevStack) -> None:
        self._stack = stack
        self.topics = Topics(stack.bootstrap)

    @property
    def ids(self) -> list[int]:
        return [node.id for node in self._stack.nodes]

    def least_in_sync(self, topic: str) -> int:
        """How many replicas must have a record before it counts as written."""
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        found = self.topics.admin.describe_configs([asked])[asked].result(30)
        return int(found["min.insync.replicas"].value)

    def replicas(self) -> set[int]:
        """How many replicas the partitions of all topics have."""
        topics = self.topics.admin.list_topics(timeout=10).topics.values()
        return {len(partition.replicas) for topic in topics for partition in topic.partitions.values()}

    def leader(self, topic: str, partition: int = 0) -> int:
        """Who leads a partition; -1 while nobody does, or nobody tells."""
        return self._leaders(topic).get(partition, -1)

    def coordinator(self, transactional_id: str) -> int:
        """Who coordinates the transactions of an id: the leader of the partition that the id's hash names."""
        leaders = self._leaders(_TRANSACTIONS)
        return leaders[abs(_java_hash(transactional_id)) % len(leaders)] if leaders else -1

    def controller(self) -> int:
        """Who leads the quorum, by the newest state that a running node has written down."""
        states = []
        for node in self._stack.nodes:
            file = node.data / "__cluster_metadata-0" / "quorum-state"
            if node.alive and file.exists():
                states.append(json.loads(file.read_text()))
        newest = max(states, key=lambda state: state["leaderEpoch"])
        return int(newest["leaderId"])

    def lose(self, node_id: int, how: str) -> None:
        if how == "kill":
            self._stack.kill(node_id)
        else:
            self._process(node_id).suspend()

    def bring_back(self, node_id: int, how: str) -> None:
        """The broker again, and every partition on all three."""
        if how == "kill":
            try:
                self._stack.restart(node_id)
            except MissingError as error:
                # A busy machine may take longer than the stack waits; its replicas in sync are what counts.
                if error.code != "BROKER_NOT_STARTED" or not self._process(node_id).is_running():
                    raise
        else:
            self._process(node_id).resume()
        self.await_in_sync()

    def await_in_sync(self) -> None:
        """Until every partition is on all of its brokers."""
        wait_for(self._in_sync, _PATIENCE_SECONDS, "all replicas are in sync")

    def await_holder(self, role: Callable[[], int], lost: int = -1) -> int:
        """The broker that has the role, once one has it that is not `lost`."""
        found: list[int] = []

        def held() -> bool:
            found[:] = [role()]
            return found[0] not in (-1, lost)

        wait_for(held, _PATIENCE_SECONDS, f"another broker than {lost} has the role")
        return found[0]

    def _leaders(self, topic: str) -> dict[int, int]:
        with contextlib.suppress(KafkaException):
            found = self.topics.admin.list_topics(timeout=5).topics
            return {p.id: p.leader for p in found[topic].partitions.values()} if topic in found else {}
        return {}

    def _in_sync(self) -> bool:
        with contextlib.suppress(KafkaException):
            topics = self.topics.admin.list_topics(timeout=5).topics.values()
            return all(len(p.isrs) == len(p.replicas) for topic in topics for p in topic.partitions.values())
        return False

    def _process(self, node_id: int) -> Any:
        return next(node for node in self._stack.nodes if node.id == node_id).process()


def _java_hash(text: str) -> int:
    """Java's `String.hashCode`."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value

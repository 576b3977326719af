"""A real secured broker for the tests: users, rights, topics; and pipelines that come to it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from tests.issuer import AUDIENCE, Issuer

from penstock.devstack import DevStack, SecureStack
from penstock.devstack.secure import ExtraListener, Secured, Tokens
from penstock.devstack.servers import set_password
from penstock.ops.acls import Right
from penstock.spark.jars import broker_classpath
from penstock.spark.java import find_java

EXPIRED, ELSEWHERE = "EXPIRED", "ELSEWHERE"
_KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}
_PATTERNS = {"literal": ResourcePatternType.LITERAL, "prefixed": ResourcePatternType.PREFIXED}
_numbers = itertools.count()
COLUMNS = "order_id BIGINT NOT NULL, amount DOUBLE"


class SecuredBroker:
    """One broker that lets nobody in unasked, and what its administrator can do."""

    def __init__(self, stack: DevStack) -> None:
        self.stack = stack
        found = SecureStack.of(stack.folder)
        assert found is not None
        self.secure = found
        self.admin = AdminClient({"log_level": 0, **found.certified_client()})
        self._producer = Producer({"log_level": 0, "enable.idempotence": True, **found.certified_client()})

    @property
    def ca_file(self) -> str:
        return str(self.secure.folder / "ca.pem")

    def name(self, prefix: str = "s") -> str:
        return f"{prefix}-{os.getpid()}-{next(_numbers)}"

    def topic(self, orders: int = 0, bad: int = 0, partitions: int = 2) -> str:
        """A new topic with so many orders, and so many records that are none."""
        name = self.name("t")
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
        self.send(name, orders, bad)
        return name

    def send(self, topic: str, orders: int, bad: int = 0) -> None:
        failed: list[Any] = []
        values = [json.dumps({"order_id": n, "amount": 1.5}).encode() for n in range(orders)] + [b"{"] * bad
        for value in values:
            self._producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
        assert self._producer.flush(30) == 0
        assert not failed, failed

    def committed(self, topic: str) -> int:
        """How many records a reader of committed ones finds in the topic."""
        own = {"group.id": "count", "enable.auto.commit": False, "isolation.level": "read_committed"}
        consumer = Consumer({**own, "enable.partition.eof": True, "log_level": 0, **self.secure.certified_client()})
        partitions = range(len(consumer.list_topics(topic, timeout=10).topics[topic].partitions))
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        found, ended = 0, 0
        while ended < len(partitions):
            message = consumer.poll(10)
            assert message is not None
            if message.error() is None:
                found += 1
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF
                ended += 1
        consumer.close()
        return found

    def user(self) -> tuple[str, str]:
        """A new user without any right: its name and its password."""
        name, password = self.name("u"), secrets.token_urlsafe(9)
        set_password(self.admin, name, password)
        return name, password

    def set_password(self, user: str, password: str) -> None:
        set_password(self.admin, user, password)

    def grant(self, user: str, rights: Iterable[Right]) -> None:
        bindings = [_binding(user, one) for one in rights]
        for future in self.admin.create_acls(bindings).values() if bindings else ():
            future.result(30)

    def revoke(self, user: str, right: Right) -> None:
        one = _binding(user, right)
        wanted = AclBindingFilter(
            one.restype,
            one.name,
            one.resource_pattern_type,
            one.principal,
            one.host,
            one.operation,
            one.permission_type,
        )
        for future in self.admin.delete_acls([wanted]).values():
            assert future.result(30), f"there was no such right: {right}"

    def security(self, user: str, password: str, folder: Path, **more: object) -> dict[str, object]:
        """A `security` section by which this user comes; its password is a file in `folder`."""
        file = folder / f"{user}.password"
        file.write_text(password)
        return {
            "ca_file": self.ca_file,
            "mechanism": "SCRAM-SHA-512",
            "username": user,
            "password": f"${{file:{file}}}",
            **more,
        }


def _binding(user: str, right: Right) -> AclBinding:
    return AclBinding(
        _KINDS[right.resource],
        right.name,
        _PATTERNS[right.pattern],
        f"User:{user}",
        "*",
        AclOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", right.operation).upper()],
        AclPermissionType.ALLOW,
    )


@contextlib.contextmanager
def running_secured(folder: Path, issuer: Issuer | None = None) -> Iterator[SecuredBroker]:
    """With listeners whose certificates have expired, or are for another host; and tokens of this issuer."""
    extra = (ExtraListener(EXPIRED, expired=True), ExtraListener(ELSEWHERE, hosts=("kafka.example.com",)))
    tokens = Tokens(issuer.url, AUDIENCE, f"{issuer.url}/keys") if issuer is not None else None
    java = find_java().executable
    stack = DevStack(folder, java=java, classpath=broker_classpath(), brokers=1, secure=Secured(extra, tokens))
    try:
        stack.start()
        yield SecuredBroker(stack)
    finally:
        stack.stop()


def write_pipeline(folder: Path, topic: str, brokers: str, security: object, name: str = "orders", **keys: Any) -> Path:
    """A pipeline from `topic` to a Delta table, with keys replaced or added, None for none."""
    body: dict[str, Any] = {
        "name": name,
        "source": {"type": "kafka", "brokers": brokers, "topics": [topic], "security": security},
        "decode": {"format": "json", "schema": COLUMNS},
        "quarantine": {"table": f"lake/{name}_quarantine"},
        "sinks": [{"name": "out", "type": "delta", "path": f"lake/{name}"}],
        "checkpoint": f"checkpoints/{name}",
        "trigger": {"available_now": True},
        **keys,
    }
    body["source"] = {key: value for key, value in body["source"].items() if value is not None}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({key: value for key, value in body.items() if value is not None}, sort_keys=False))
    return file


def took(seconds: float) -> Any:
    """A context that fails where what is in it takes longer."""
    return _Took(seconds)


class _Took:
    def __init__(self, most: float) -> None:
        self._most = most

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        spent = time.monotonic() - self._began
        assert spent < self._most, f"took {spent:.1f} s"

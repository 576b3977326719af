"""How durable the marker topic is: on three brokers, and on one that does not let everybody change settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from tests.contract.rows import SCHEMA, records, token
from tests.secured import SecuredBroker, running_secured, write_pipeline
from tests.services.running import wait_for

from penstock.assembly.reaching import settings_of
from penstock.config import load
from penstock.devstack import DevStack
from penstock.kafka import KafkaSettings
from penstock.kafka.topics import TopicAdmin
from penstock.model import Position, SlotAttempt
from penstock.ops.acls import Right
from penstock.quarantine import QUARANTINE_SCHEMA
from penstock.sinks.kafka import KafkaSink, QuarantineTopic
from penstock.sinks.kafka.marker_topic import MarkerAdmin
from penstock.spark.jars import broker_classpath
from penstock.spark.java import find_java

pytestmark = pytest.mark.services

_numbers = itertools.count()


class Brokers:
    """Some brokers; topics on three of them need two replicas in sync where nothing else is said."""

    def __init__(self, bootstrap: str) -> None:
        self.settings = KafkaSettings(bootstrap)
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def topic(self, replicas: int = 3, name: str | None = None, **settings: str) -> str:
        name = name or f"durable-{next(_numbers)}"
        self.admin.create_topics([NewTopic(name, 1, replicas, config=settings)])[name].result(30)
        return name

    def durability(self, topic: str) -> tuple[int, int]:
        """The replicas of a topic, and how many must be in sync."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = self.admin.describe_configs([resource])[resource].result(30)
        partitions = self.admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
        return min(len(part.replicas) for part in partitions), int(found["min.insync.replicas"].value)

    def sink(self, topic: str | None) -> KafkaSink:
        return KafkaSink(f"durable{next(_numbers)}", "out", self.settings, topic=topic, slots=1)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    java, classpath = find_java().executable, broker_classpath()
    with DevStack(tmp_path_factory.mktemp("three"), java=java, classpath=classpath, brokers=3) as stack:
        yield Brokers(stack.bootstrap)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with running_secured(tmp_path_factory.mktemp("secured")) as found:
        yield found


def test_marker_topic_on_one_broker_is_told_to_be_less_durable_than_the_target(topics: Any) -> None:
    one = Brokers(topics.brokers)
    sink = one.sink(one.topic(1, **{"min.insync.replicas": "2"}))
    sink.prepare(SCHEMA)
    assert (one.durability(sink.markers), sink.notices) == ((1, 1), ())
    sink.prepare(SCHEMA)
    [notice] = sink.notices
    assert "min.insync.replicas=1, less than the 2 of the target, and only 1 replicas" in notice
    assert one.durability(sink.markers) == (1, 1)
    assert MarkerAdmin(one.settings, sink.markers)._set_in_sync(2)
    wait_for(lambda: one.durability(sink.markers) == (1, 2), "the broker to say so", 30)
    sink.prepare(SCHEMA)
    assert sink.notices == ()


@pytest.mark.long
def test_marker_topic_is_created_as_durable_as_the_target_and_the_brokers_default(
    brokers: Brokers, tmp_path: Path
) -> None:
    for wanted, expected in (("3", 3), ("1", 2)):
        target = brokers.topic(**{"min.insync.replicas": wanted})
        sink = brokers.sink(target)
        sink.prepare(SCHEMA)
        assert (brokers.durability(sink.markers), sink.notices) == ((3, expected), ())
    quarantine = QuarantineTopic(
        f"durable{next(_numbers)}",
        "bad",
        brokers.settings,
        str(tmp_path),
        topic=brokers.topic(**{"min.insync.replicas": "3"}),
    )
    quarantine.prepare(QUARANTINE_SCHEMA)
    assert (brokers.durability(quarantine.markers), quarantine.notices) == ((3, 3), ())


@pytest.mark.long
def test_marker_topic_of_rows_that_name_their_topic_follows_the_most_durable_of_them(brokers: Brokers) -> None:
    plain, strict = brokers.topic(), brokers.topic(**{"min.insync.replicas": "3"})
    sink = brokers.sink(None)
    sink.prepare(SCHEMA)
    assert brokers.durability(sink.markers) == (3, 2)
    for number, topic in enumerate([plain, strict]):
        batch, before = token(number, number, number + 1), sink.position()
        stage = sink.stage(batch, SlotAttempt(0, "0"), SCHEMA)
        stage.write(records([number]).append_column("_penstock_topic", pa.array([topic])))
        sink.land(Position.after(before, batch), [stage.finish()], before)
    # Each broker hears of a change by itself.
    wait_for(lambda: brokers.durability(sink.markers) == (3, 3), "the brokers to say so", 30)


@pytest.mark.long
def test_marker_topic_that_is_less_durable_than_the_target_is_raised_at_the_start(brokers: Brokers) -> None:
    sink = brokers.sink(brokers.topic(**{"min.insync.replicas": "3"}))
    old = {"cleanup.policy": "compact", "min.insync.replicas": "1"}
    brokers.topic(3, sink.markers, **old)
    sink.check(SCHEMA)
    assert brokers.durability(sink.markers) == (3, 1)
    sink.prepare(SCHEMA)
    wait_for(lambda: brokers.durability(sink.markers) == (3, 3), "the brokers to say so", 30)
    assert sink.notices == ()
    assert TopicAdmin(brokers.settings).describe([sink.markers])[sink.markers].cleanup_policy == "compact"


@pytest.mark.long
def test_marker_topic_with_too_few_replicas_is_told_and_stays_writable(brokers: Brokers) -> None:
    sink = brokers.sink(brokers.topic(**{"min.insync.replicas": "3"}))
    brokers.topic(2, sink.markers, **{"cleanup.policy": "compact", "min.insync.replicas": "1"})
    sink.prepare(SCHEMA)
    wait_for(lambda: brokers.durability(sink.markers) == (2, 2), "the brokers to say so", 30)
    [notice] = sink.notices
    assert "only 2 replicas" in notice
    stage = sink.stage(token(0, 0, 1), SlotAttempt(0, "0"), SCHEMA)
    stage.write(records([0]))
    stage.finish()


@pytest.mark.long
def test_marker_topic_that_this_user_may_not_look_at_or_change_is_told(
    secured: SecuredBroker, settings_of_user: Callable[..., KafkaSettings]
) -> None:
    user, password = secured.user()
    out = secured.topic()
    settings = settings_of_user(user, password)
    sink = KafkaSink(secured.name("p"), "out", settings, topic=out, slots=1)
    rights = [("topic", out, "Write"), *(("topic", sink.markers, each) for each in ("Read", "Write", "Create"))]
    where = secured.stack.bootstrap
    secured.grant(user, [Right(where, user, kind, name, "literal", may, "") for kind, name, may in rights])  # type: ignore[arg-type]
    ids = Right(where, user, "transactional-id", f"{sink.pipeline}/", "prefixed", "Write", "")
    secured.grant(user, [ids])
    sink.prepare(SCHEMA)
    [notice] = sink.notices
    assert f"min.insync.replicas of {out} cannot be read" in notice
    assert not MarkerAdmin(settings, sink.markers)._set_in_sync(1)


@pytest.fixture
def settings_of_user(secured: SecuredBroker, tmp_path: Path) -> Callable[[str, str], KafkaSettings]:
    def made(user: str, password: str) -> KafkaSettings:
        security: Any = secured.security(user, password, tmp_path)
        return settings_of(load(write_pipeline(tmp_path, "any", secured.stack.bootstrap, security)).source)

    return made

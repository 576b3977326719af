"""What a client's errors become, and how a subscription is named."""

from __future__ import annotations

import socket

import pytest
from confluent_kafka import KafkaError

from penstock.errors import MissingError, TerminalError, TransientError
from penstock.kafka import Cluster, KafkaSettings, Subscription, explain
from penstock.kafka.cluster import look_seconds


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._ALL_BROKERS_DOWN, TransientError),
        (KafkaError._TRANSPORT, TransientError),
        (KafkaError.NOT_LEADER_FOR_PARTITION, TransientError),
        (KafkaError.FENCED_LEADER_EPOCH, TransientError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, MissingError),
        (KafkaError._AUTHENTICATION, MissingError),
        (KafkaError.INVALID_CONFIG, TerminalError),
    ],
)
def test_explain_class_says_whether_it_may_pass(code: int, kind: type[Exception]) -> None:
    told = explain(KafkaError(code), "listing topics", "a:1")
    assert type(told) is kind
    assert told.context["brokers"] == "a:1"


@pytest.mark.parametrize(
    ("subscription", "text"),
    [
        (Subscription(("orders",)), "topic orders"),
        (Subscription(("orders", "returns")), "topics orders, returns"),
        (Subscription(pattern="orders-.*"), "topics matching orders-.*"),
        (Subscription(assign={"orders": (0, 2)}), "topic orders, partitions 0, 2"),
        (Subscription(assign={"a": (1,), "b": (0,)}), "topic a, partition 1; topic b, partition 0"),
    ],
)
def test_subscription_is_described_in_words(subscription: Subscription, text: str) -> None:
    assert subscription.describe() == text


def test_cluster_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(MissingError) as raised:
        Cluster(KafkaSettings("a:1", {"no.such.setting": "1"}))
    assert raised.value.code == "KAFKA_SETTINGS_INVALID"
    assert "no.such.setting" in raised.value.context["client"]


def test_commands_that_only_look_wait_longer_for_brokers_that_take_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert look_seconds(KafkaSettings(brokers=f"127.0.0.1:1,{address}")) == 10.0
    assert look_seconds(KafkaSettings(brokers=address)) == 3.0

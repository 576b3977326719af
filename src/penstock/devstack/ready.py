"""Readiness: a client produced a record and every broker acknowledged it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

_TOPIC = "__penstock_ready"


def wait_until_ready(client: Mapping[str, str], replicas: int, deadline: float, check: Callable[[], None]) -> bool:
    """Try to produce, as `client` says, until it works or `deadline` (monotonic) has passed; `check` may raise."""
    bootstrap = client["bootstrap.servers"]
    while time.monotonic() < deadline:
        check()
        if all(_listens(address) for address in bootstrap.split(",")) and _can_produce(client, replicas):
            return True
        time.sleep(0.1)
    return False


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False


def _can_produce(client: Mapping[str, str], replicas: int) -> bool:
    # A broker that is not there yet is what we wait for, and nothing to put on the screen.
    quiet: dict[str, Any] = {**client, "log_level": 0, "error_cb": lambda _error: None}
    admin = AdminClient({**quiet, "reconnect.backoff.max.ms": 200})
    try:
        # One replica on each broker, so that all of them are known to work.
        wanted = NewTopic(_TOPIC, num_partitions=1, replication_factor=replicas)
        admin.create_topics([wanted], operation_timeout=2, request_timeout=3)[_TOPIC].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            return False
    acknowledged: list[bool] = []
    producer = Producer({**quiet, "acks": "all", "message.timeout.ms": 5000})
    producer.produce(_TOPIC, b"ready", on_delivery=lambda error, _message: acknowledged.append(error is None))
    producer.flush(6)
    if acknowledged != [True]:
        return False
    try:
        admin.delete_topics([_TOPIC], operation_timeout=5)[_TOPIC].result()
    except KafkaException:
        return False
    return True

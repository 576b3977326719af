"""Alerts to a topic of a real broker: each once, a rule's in order, whatever was there before."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from tests.conftest import Topics
from tests.receiver import receiving
from tests.services.running import wait_for
from tests.unit.supervision.test_alerting import running

from penstock.config import load

RULES = [{"lag_over": 100, "for": "60 seconds"}, {"restarts_over": 3}]


def landed(brokers: str, topic: str) -> list[tuple[str, dict[str, Any]]]:
    """Everything in the topic: key and value."""
    settings = {"bootstrap.servers": brokers, "group.id": f"look-{os.getpid()}", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False, "log_level": 0})
    consumer.subscribe([topic])
    found = []
    try:
        while (message := consumer.poll(20)) is not None and not message.error():
            found.append((message.key().decode(), json.loads(message.value())))
    finally:
        consumer.close()
    return found


def test_topic_gets_each_alert_once_also_when_the_run_is_started_again(
    topics: Topics, pipeline_file: Callable[..., Path]
) -> None:
    read, told = topics.create(), f"alerts-{os.getpid()}"
    with receiving(answers=iter([500])) as receiver:
        webhook = {"url": f"http://127.0.0.1:{receiver.port}/"}
        alerts = {"rules": RULES, "topic": told, "webhook": webhook, "every": "20 ms"}
        config = load(pipeline_file(read, alerts=alerts))
        with running(config, topics.brokers) as run:
            run.let(lag=500)
            # It is made by the first alert.
            wait_for(lambda: told in topics.admin.list_topics(timeout=10).topics, "the topic", 30)
            run.let(restarts=4)
        with running(config, topics.brokers) as run:
            run.let(lag=500, restarts=4)
            run.let(lag=0, restarts=4)
        assert len(receiver.refused) == 1
    found = landed(topics.brokers, told)
    assert [(key, body["rule"], body["state"]) for key, body in found] == [
        ("orders/lag_over", "lag_over", "firing"),
        ("orders/restarts_over", "restarts_over", "firing"),
        ("orders/lag_over", "lag_over", "resolved"),
    ]
    assert receiver.bodies == [body for _, body in found]

"""Kafka to Kafka on three brokers, one of them lost under load: a leader, the coordinator, the controller."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.crash.cluster import Brokers
from tests.crash.targets import KAFKA

pytestmark = [pytest.mark.services, pytest.mark.crash, pytest.mark.long]
BATCHES = 3


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_kafka_broker_lost_under_load_loses_nothing(how: str, brokers: Brokers, trial: Any) -> None:
    run = trial(KAFKA, rows=100_000, topics=brokers.topics, replicas=3)
    roles: list[Callable[[], int]] = [
        lambda: brokers.leader(run.output),
        lambda: brokers.coordinator(f"{run.pipeline}/{KAFKA.name}/0"),
        brokers.controller,
        lambda: brokers.leader(run.events.topic),
    ]
    began, driver = time.monotonic(), run.crashes.start()
    run.crashes.await_batches(BATCHES, driver)
    for role in roles:
        if driver.poll() is not None:
            driver = run.crashes.start()
            run.crashes.await_batches(1, driver)
        lost = brokers.await_holder(role)
        brokers.lose(lost, how)
        try:
            brokers.await_holder(role, lost)
            run.crashes.await_batches(BATCHES, driver)
        finally:
            brokers.bring_back(lost, how)
    assert run.crashes.batches() < 100, "the run was done before the last broker was lost: give it more batches"
    status = driver.wait(400)
    last = time.monotonic() - began if status == 0 else run.crashes.finish()
    run.prove(last, kills=len(roles))

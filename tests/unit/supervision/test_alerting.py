"""Alerts from the figures to a real HTTP receiver: once each, in order, however the receiver behaves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from tests.receiver import Receiver, receiving
from tests.services.running import wait_for

from penstock.config import AlertsConfig, PipelineConfig, load
from penstock.kafka.settings import KafkaSettings
from penstock.metrics.alerts import Alert, Observation
from penstock.supervision import alerting
from penstock.supervision.alerting import FIRING_NOTE, Alerting

PIPELINE = """\
name: orders
source: {type: kafka, brokers: "127.0.0.1:1", topics: [orders]}
decode: {format: raw}
sinks: [{name: out, type: delta, path: lake/orders}]
checkpoint: checkpoints/orders
alerts:
  every: 20 ms
  webhook:
    url: "${env:PENSTOCK_TEST_HOOK}"
    headers: {Authorization: "Bearer ${env:PENSTOCK_TEST_TOKEN}"}
  rules:
    - {lag_over: 100, for: 60 seconds}
    - {restarts_over: 3}
"""


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds between tries takes a moment."""
    monkeypatch.setattr(alerting, "_FIRST_WAIT", 0.02)
    monkeypatch.setattr(alerting, "_LONGEST_WAIT", 0.1)


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], PipelineConfig]:
    file = tmp_path / "orders.yaml"
    file.write_text(PIPELINE)
    monkeypatch.setenv("PENSTOCK_TEST_TOKEN", "hunter2")

    def at_port(port: int) -> PipelineConfig:
        monkeypatch.setenv("PENSTOCK_TEST_HOOK", f"http://127.0.0.1:{port}/hooks/hunter2")
        return load(file)

    return at_port


class Run:
    """A pipeline whose figures a test sets; its clock is a minute ahead at every look."""

    def __init__(self, config: PipelineConfig, brokers: str) -> None:
        self.lag: int | None = 0
        self.restarts = 0
        self.looks = 0
        self.told: list[Alert] = []
        self.notices: list[str] = []
        self._now = datetime.now(UTC)
        self.alerting = Alerting(config, KafkaSettings(brokers), self.observe, self.told.append, self.notices.append)

    def observe(self) -> Observation:
        self.looks += 1
        self._now += timedelta(minutes=1)
        return Observation(self._now, lag=self.lag, restarts=(self._now,) * self.restarts)

    def let(self, looks: int = 4, **figures: Any) -> None:
        for name, value in figures.items():
            setattr(self, name, value)
        until = self.looks + looks
        wait_for(lambda: self.looks >= until, "a look", 10)


@contextmanager
def running(config: PipelineConfig, brokers: str = "127.0.0.1:1") -> Iterator[Run]:
    run = Run(config, brokers)
    try:
        yield run
    finally:
        run.alerting.close()


def states(receiver: Receiver) -> list[tuple[str, str]]:
    return [(body["rule"], body["state"]) for body in receiver.bodies]


Pipeline = Callable[[int], PipelineConfig]


def test_webhook_gets_each_alert_once(pipeline: Pipeline, tmp_path: Path) -> None:
    with receiving() as receiver, running(pipeline(receiver.port)) as run:
        run.let(lag=500, looks=8)
        wait_for(lambda: receiver.taken, "the alert", 10)
        run.let(lag=50, looks=8)
        wait_for(lambda: len(receiver.taken) == 2, "that it is over", 10)
        run.let(looks=4)
    assert states(receiver) == [("lag_over", "firing"), ("lag_over", "resolved")]
    path, headers, _ = receiver.taken[0]
    assert (path, headers["authorization"]) == ("/hooks/hunter2", "Bearer hunter2")
    assert headers["content-type"] == "application/json"
    body = receiver.bodies[0]
    assert list(body) == ["pipeline", "rule", "state", "text", "value", "limit", "since", "at", "file"]
    assert (body["pipeline"], body["value"], body["limit"]) == ("orders", 500, 100)
    assert body["file"] == str(tmp_path / "orders.yaml")
    assert datetime.fromisoformat(body["at"]) - datetime.fromisoformat(body["since"]) == timedelta(minutes=1)
    assert [(alert.rule, alert.state) for alert in run.told] == states(receiver)


def test_webhook_that_fails_first_gets_each_alert_once_and_in_order(pipeline: Pipeline) -> None:
    with receiving(answers=iter([500, 503, 404, 302])) as receiver, running(pipeline(receiver.port)) as run:
        run.let(lag=500)
        run.let(lag=0)
        run.let(restarts=4)
        wait_for(lambda: len(receiver.taken) == 3, "all of them", 10)
    assert states(receiver) == [("lag_over", "firing"), ("lag_over", "resolved"), ("restarts_over", "firing")]
    assert len(receiver.refused) == 4
    assert run.notices == [
        "sending an alert to the webhook: it returned 500; retrying",
        "the webhook accepts alerts again",
    ]


def test_webhook_that_is_away_gets_the_alerts_when_it_is_back(pipeline: Pipeline) -> None:
    with receiving() as receiver:
        port = receiver.port
    with running(pipeline(port)) as run:
        run.let(lag=500)
        wait_for(lambda: run.notices, "the complaint", 10)
        run.let(lag=0)
        with receiving(port) as receiver:
            wait_for(lambda: len(receiver.taken) == 2, "both", 10)
            assert states(receiver) == [("lag_over", "firing"), ("lag_over", "resolved")]
    assert run.notices[0].startswith("sending an alert to the webhook: not reachable (ConnectionError)")
    assert "hunter2" not in f"{run.notices} {run.told}"


def test_run_that_is_started_again_does_not_fire_twice_and_still_resolves(pipeline: Pipeline, tmp_path: Path) -> None:
    note = tmp_path / "checkpoints" / "orders" / FIRING_NOTE
    with receiving() as receiver:
        with running(pipeline(receiver.port)) as run:
            run.let(lag=500)
            wait_for(lambda: receiver.taken, "the alert", 10)
        assert list(json.loads(note.read_text())) == ["lag_over"]
        with running(pipeline(receiver.port)) as run:
            run.let(lag=500, looks=10)
        assert states(receiver) == [("lag_over", "firing")]
        with running(pipeline(receiver.port)) as run:
            run.let(lag=0, looks=10)
        assert states(receiver) == [("lag_over", "firing"), ("lag_over", "resolved")]
        assert receiver.bodies[0]["since"] == receiver.bodies[1]["since"]
        assert json.loads(note.read_text()) == {}
        with running(pipeline(receiver.port)) as run:
            run.let(lag=0, looks=4)
        assert len(receiver.taken) == 2


def test_run_whose_alert_never_arrived_fires_it_when_started_again(pipeline: Pipeline) -> None:
    with receiving(answers=repeat(500)) as receiver, running(pipeline(receiver.port)) as run:
        run.let(lag=500)
        wait_for(lambda: receiver.refused, "a try", 10)
    with receiving() as receiver, running(pipeline(receiver.port)) as run:
        run.let(lag=500)
        wait_for(lambda: receiver.taken, "the alert", 10)
    assert states(receiver) == [("lag_over", "firing")]


def test_close_looks_once_more_and_waits_for_nobody(pipeline: Pipeline) -> None:
    config = pipeline(1)
    assert isinstance(config.alerts, AlertsConfig)
    before = threading.active_count()
    seldom = config.model_copy(update={"alerts": config.alerts.model_copy(update={"every": timedelta(hours=1)})})
    with running(seldom) as run:
        run.restarts = 9
        began = datetime.now(UTC)
    assert [(alert.rule, alert.state) for alert in run.told] == [("restarts_over", "firing")]
    assert datetime.now(UTC) - began < timedelta(seconds=5)
    assert threading.active_count() == before


def test_looks_that_fail_change_nothing(pipeline: Pipeline) -> None:
    with receiving() as receiver, running(pipeline(receiver.port)) as run:
        run.let(lag="many", looks=4)
        run.let(lag=500)
        wait_for(lambda: receiver.taken, "the alert", 10)
    assert states(receiver) == [("lag_over", "firing")]

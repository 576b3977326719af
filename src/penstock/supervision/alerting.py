"""The alerts of a running pipeline: rules evaluated every few seconds, and alerts sent to a webhook or a topic.

A rule that fires is recorded in the checkpoint folder once every receiver has its alert, so that a restarted run
neither sends it twice nor forgets to resolve it. Senders deliver in order and retry for an hour. An alert that may have
arrived is sent again: a receiver may see it twice and can tell by `rule`, `state` and `since`. Nothing here raises or
blocks the run.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.assembly.reaching import storage_of
from penstock.assembly.targets import way_in
from penstock.background import Repeating
from penstock.checkpoint.atomic import put_whole_at
from penstock.config import PipelineConfig
from penstock.config.alerts import WebhookConfig
from penstock.config.fields import reveal
from penstock.errors import PenstockError, back_off
from penstock.kafka.settings import KafkaSettings
from penstock.kafka.topics import TopicAdmin
from penstock.metrics.alerts import Alert, AlertBook, Observation
from penstock.storage import Storage

_TRY_SECONDS = 5.0
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
_PATIENCE_SECONDS = 3600.0
_MOST_WAITING = 1000

Body = dict[str, Any]
"""An alert as the receiver gets it."""


@dataclass(slots=True, eq=False)
class QueuedAlert:
    """An alert in delivery; `left` counts the receivers that have not accepted it yet."""

    body: Body
    left: int


class NotAcceptedError(Exception):
    """A receiver did not accept an alert; the text is the reason, without its URL."""


class Webhook:
    """An HTTP address that takes each alert by POST. Neither its URL nor its headers are ever shown."""

    name = "the webhook"

    def __init__(self, config: WebhookConfig) -> None:
        self._url = config.url
        self._headers = config.headers

    def send(self, body: Body) -> None:
        """POST an alert as JSON. Raises `NotAcceptedError` at any answer but 2xx; the same alert is then sent again."""
        import requests

        try:
            answer = requests.post(
                self._url.get_secret_value(),
                json=body,
                headers=reveal(self._headers),
                timeout=_TRY_SECONDS,
                allow_redirects=False,
            )
        except (requests.RequestException, ValueError) as error:
            # Their texts have the URL in them.
            raise NotAcceptedError(f"not reachable ({type(error).__name__})") from None
        if not 200 <= answer.status_code < 300:
            raise NotAcceptedError(f"it returned {answer.status_code}")

    def close(self) -> None:
        """Nothing is held between alerts."""


class AlertTopic:
    """A Kafka topic, created if missing; the key is `pipeline/rule`, so that a rule's alerts stay in order."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self.name = f"topic {topic}"
        self._settings, self._topic = settings, topic
        self._producer: Any = None
        self._sent: Body | None = None
        self._outcome: list[Any] = []

    def send(self, body: Body) -> None:
        """Produce an alert, only once even if called again, and wait for the brokers. Raises `NotAcceptedError`."""
        try:
            producer = self._producer = self._producer or self._open()
        except PenstockError as error:
            raise NotAcceptedError(error.summary) from None
        if self._sent is not body:
            self._sent, self._outcome = body, []
            key = f"{body['pipeline']}/{body['rule']}"
            landed = self._outcome.append
            producer.produce(
                self._topic, json.dumps(body).encode(), key.encode(), on_delivery=lambda error, _: landed(error)
            )
        deadline = time.monotonic() + _TRY_SECONDS
        while not self._outcome and time.monotonic() < deadline:
            producer.poll(0.1)
        if not self._outcome:
            raise NotAcceptedError("the brokers do not respond")
        self._sent = None
        if (fault := self._outcome[0]) is not None:
            # An idempotent producer may be unusable after an error; use a new one.
            self._producer = None
            raise NotAcceptedError(f"{fault.name()}: {fault.str()}")

    def close(self) -> None:
        """Drop what was not sent yet."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _open(self) -> Any:
        from confluent_kafka import Producer

        admin = TopicAdmin(self._settings, _TRY_SECONDS)
        if not admin.describe([self._topic]):
            admin.create(self._topic)
        more = {"enable.idempotence": True, "message.timeout.ms": int(_PATIENCE_SECONDS * 1000), "linger.ms": 0}
        return Producer({"log_level": 0, **self._settings.for_librdkafka(), **more})


class AlertSender:
    """Sends alerts to one receiver, one after the other, from a daemon thread.

    `delivered` is called with each accepted alert; `notice` once when the receiver stops accepting alerts, and once
    when it accepts them again. The oldest is dropped when a thousand are queued, and one that was not accepted for an
    hour.
    """

    def __init__(
        self, receiver: Webhook | AlertTopic, delivered: Callable[[QueuedAlert], None], notice: Callable[[str], None]
    ) -> None:
        self._receiver, self._delivered, self._notice = receiver, delivered, notice
        self._waiting: deque[QueuedAlert] = deque(maxlen=_MOST_WAITING)
        self._changed, self._ending = threading.Event(), threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="penstock-alerts", daemon=True)
        self._thread.start()

    def put(self, alert: QueuedAlert) -> None:
        """Queue an alert; returns at once."""
        self._waiting.append(alert)
        self._changed.set()

    def finish(self) -> None:
        """Accept no more, and try each queued alert once more."""
        self._ending.set()
        self._changed.set()

    def join(self, seconds: float) -> None:
        """Wait until that is done."""
        self._thread.join(max(seconds, 0.0))

    def _run(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            while self._waiting:
                self._bring(self._waiting.popleft())
            if self._ending.is_set():
                self._receiver.close()
                return

    def _bring(self, alert: QueuedAlert) -> None:
        began = time.monotonic()
        for attempt in itertools.count(1):
            try:
                self._receiver.send(alert.body)
            except Exception as error:  # no receiver ends the thread
                ended = self._ending.is_set()
                reason = str(error) if isinstance(error, NotAcceptedError) else type(error).__name__
                self._tell(failing=True, text=f"sending an alert to {self._receiver.name}: {reason}; retrying")
            else:
                self._tell(failing=False, text=f"{self._receiver.name} accepts alerts again")
                self._delivered(alert)
                return
            if ended or time.monotonic() - began > _PATIENCE_SECONDS:
                return
            self._ending.wait(back_off(attempt, _FIRST_WAIT, _LONGEST_WAIT))

    def _tell(self, *, failing: bool, text: str) -> None:
        if failing != self._failing:
            self._failing = failing
            with suppress(Exception):  # nor does a listener end it
                self._notice(text)


FIRING_NOTE = ".penstock.alerts"
_CLOSE_SECONDS = 5.0


class Alerting:
    """Evaluates `config.alerts` from a daemon thread until it is closed.

    `settings` are those of the source's brokers, for the alert topic. `observe` returns the figures; `tell` is called
    with each alert, `notice` if a receiver does not accept them.
    """

    def __init__(
        self,
        config: PipelineConfig,
        settings: KafkaSettings,
        observe: Callable[[], Observation],
        tell: Callable[[Alert], None],
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        assert config.alerts is not None
        self._pipeline, self._file = config.name, str(config.file) if config.file is not None else None
        self._observe, self._tell = observe, tell
        self._every = config.alerts.every.total_seconds()
        self._note = _FiringNote(config.checkpoint, storage_of(config))
        self._book = AlertBook(config.alerts.rules, self._note.read())
        self._counting = threading.Lock()
        receivers: list[Webhook | AlertTopic] = []
        if config.alerts.webhook is not None:
            receivers.append(Webhook(config.alerts.webhook))
        if config.alerts.topic is not None:
            receivers.append(AlertTopic(way_in(settings), config.alerts.topic))
        self._senders = [AlertSender(receiver, self._delivered, notice) for receiver in receivers]
        self._looking = Repeating("alerting", self._look, self._every, once_more=True)

    def close(self) -> None:
        """Evaluate the rules once more, and wait a few seconds for what is being sent."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        self._looking.close(_CLOSE_SECONDS)
        for sender in self._senders:
            sender.finish()
        for sender in self._senders:
            sender.join(deadline - time.monotonic())

    def _look(self) -> float:
        # The next look may find figures where this one found none.
        with suppress(TypeError, ValueError, ArithmeticError):
            for alert in self._book.look(self._observe()):
                with suppress(Exception):  # no listener keeps an alert back
                    self._tell(alert)
                self._send(alert)
        return self._every

    def _send(self, alert: Alert) -> None:
        body = {"pipeline": self._pipeline, **alert.as_json(), "file": self._file}
        queued = QueuedAlert(body, len(self._senders))
        for sender in self._senders:
            sender.put(queued)

    def _delivered(self, alert: QueuedAlert) -> None:
        with self._counting:
            alert.left -= 1
            if not alert.left:
                firing = alert.body["state"] == "firing"
                self._note.write(alert.body["rule"], alert.body["since"] if firing else None)


class _FiringNote:
    """The rules that fire, as every receiver knows, and since when."""

    def __init__(self, checkpoint: str, storage: Storage) -> None:
        self._checkpoint = checkpoint
        self._storage = storage
        self._firing: dict[str, str] = {}

    def read(self) -> dict[str, datetime]:
        with suppress(PenstockError, OSError, ValueError, TypeError, AttributeError):
            filesystem, root = self._storage.filesystem(self._checkpoint)
            self._firing = json.loads(filesystem.cat_file(f"{root}/{FIRING_NOTE}"))
            return {rule: datetime.fromisoformat(since) for rule, since in self._firing.items()}
        self._firing = {}
        return {}

    def write(self, rule: str, since: str | None) -> None:
        if since is not None:
            self._firing[rule] = since
        else:
            self._firing.pop(rule, None)
        with suppress(PenstockError, OSError):
            filesystem, root = self._storage.filesystem(self._checkpoint)
            filesystem.makedirs(root, exist_ok=True)
            put_whole_at(filesystem, f"{root}/{FIRING_NOTE}", json.dumps(self._firing).encode())

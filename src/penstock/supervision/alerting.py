"""The alerts of a running pipeline: looked at every few seconds, told once, brought to who asked for them.

What fires is noted beside the checkpoint once every receiver has it, so that a run that is started again neither fires
twice for the same thing nor forgets to resolve it. Nothing here raises, and nothing waits for a receiver.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from penstock.assembly.reaching import storage_of
from penstock.assembly.targets import way_in
from penstock.checkpoint.whole import put_whole_at
from penstock.config import PipelineConfig
from penstock.kafka.settings import KafkaSettings
from penstock.metrics.alerts import Alert, AlertBook, Observation
from penstock.storage import Storage
from penstock.supervision.alert_sender import AlertSender, AlertTopic, QueuedAlert, Receiver, Webhook

FIRING_NOTE = ".penstock.alerts"
_CLOSE_SECONDS = 5.0


class Alerting:
    """Looks after `config.alerts` from a daemon thread until it is closed.

    `settings` reach the brokers of the source, for the topic. `observe` gives the figures; `tell` hears of each alert,
    `notice` that a receiver does not take them.
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
        receivers: list[Receiver] = []
        if config.alerts.webhook is not None:
            receivers.append(Webhook(config.alerts.webhook))
        if config.alerts.topic is not None:
            receivers.append(AlertTopic(way_in(settings), config.alerts.topic))
        self._senders = [AlertSender(receiver, self._delivered, notice) for receiver in receivers]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-alerting", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look once more, and let what is under way arrive, for at most some seconds."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        self._over.set()
        self._thread.join(_CLOSE_SECONDS)
        for sender in self._senders:
            sender.finish()
        for sender in self._senders:
            sender.join(deadline - time.monotonic())

    def _run(self) -> None:
        while not self._over.wait(self._every):
            self._look()
        self._look()

    def _look(self) -> None:
        with suppress(Exception):
            for alert in self._book.look(self._observe()):
                with suppress(Exception):
                    self._tell(alert)
                self._send(alert)

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
        with suppress(Exception):
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
        with suppress(Exception):
            filesystem, root = self._storage.filesystem(self._checkpoint)
            filesystem.makedirs(root, exist_ok=True)
            put_whole_at(filesystem, f"{root}/{FIRING_NOTE}", json.dumps(self._firing).encode())

"""The load: the events of the crash runs without an end, sent at a steady rate, each to its place once.

The producer is idempotent and never gives up, so that event N is at offset N // PARTITIONS of its partition however
many brokers are lost meanwhile: what has to be in the targets follows from the number of events alone.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from random import Random
from typing import Any

from confluent_kafka import Producer
from tests.crash.events import PARTITIONS, Events

_TURN_SECONDS = 0.1


class Load:
    """Sends from a thread of its own, about `rate` events a second; how unevenly the seed says."""

    def __init__(self, brokers: str, topic: str, rate: float, random: Random) -> None:
        self.topic, self.sent, self.failed = topic, 0, list[Any]()
        self._rate, self._random = rate, random
        self._producer = Producer(
            {
                "bootstrap.servers": brokers,
                "enable.idempotence": True,
                "linger.ms": 20,
                "message.timeout.ms": 0,
                "log_level": 0,
            }
        )
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._send, name="load", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float) -> Events:
        """No more events; all of them are delivered. What they were."""
        self._done.set()
        self._thread.join(30)
        left = self._producer.flush(seconds)
        assert not left and not self.failed, f"{left} events are not delivered; {self.failed[:3]}"
        return Events(self.topic, self.sent)

    def _send(self) -> None:
        values = Events(self.topic, sys.maxsize).values()
        due, before = 0.0, time.monotonic()
        while not self._done.wait(_TURN_SECONDS):
            now = time.monotonic()
            due, before = due + (now - before) * self._rate * self._random.uniform(0.5, 1.5), now
            while due >= 1:
                self._put(next(values))
                due -= 1
            self._producer.poll(0)

    def _put(self, value: Any) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        while True:
            with contextlib.suppress(BufferError):
                where = self.sent % PARTITIONS
                self._producer.produce(self.topic, body, partition=where, on_delivery=self._delivered)
                self.sent += 1
                return
            # The brokers have taken nothing for minutes.
            self._producer.poll(1)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self.failed.append(error)

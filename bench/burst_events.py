"""The events of the part `burst`, from a process of their own: the same orders in the same sequence for every variant.

`python bench/burst_events.py BROKERS TOPIC RATE SECONDS` sends RATE orders a second; from SIGUSR1 on ten times as many
for so many seconds, and then RATE again until SIGTERM. A line of JSON tells when each of these begins.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable

from events import PARTITIONS, Sender, order

TIMES = 10
NORMAL, BURST, AFTER, END = "normal", "burst", "after", "end"
_TICK_SECONDS = 0.01


class Stream:
    """The orders from number 0 on."""

    def __init__(self, brokers: str, topic: str) -> None:
        self._sender, self._topic = Sender(brokers, {"linger.ms": 5}), topic
        self.sent = 0

    def send(self, phase: str, rate: int, over: Callable[[], bool], most: int | None = None) -> None:
        """So many a second until it is over, or until so many are sent."""
        self.tell(phase)
        began, first = time.monotonic(), self.sent
        while not over():
            time.sleep(_TICK_SECONDS)
            due = int((time.monotonic() - began) * rate)
            due = first + (due if most is None else min(due, most))
            while self.sent < due:
                self._sender.send(self._topic, order(self.sent), self.sent % PARTITIONS)
                self.sent += 1
            if most is not None and self.sent == first + most:
                return

    def finish(self) -> None:
        """Wait until all are delivered."""
        self._sender.finish()
        self.tell(END)

    def tell(self, phase: str) -> None:
        """When a phase begins, and how many were sent before."""
        print(json.dumps({"phase": phase, "at": time.time(), "sent": self.sent}), flush=True)


def send_burst(brokers: str, topic: str, rate: int, seconds: float) -> None:
    """Send until SIGTERM."""
    # Not Events: a handler that sets one may meet the lock that its own thread holds.
    heard: set[int] = set()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda told, _: heard.add(told))
    stream = Stream(brokers, topic)
    stream.send(NORMAL, rate, lambda: bool(heard))
    stream.send(BURST, TIMES * rate, lambda: signal.SIGTERM in heard, int(TIMES * rate * seconds))
    stream.send(AFTER, rate, lambda: signal.SIGTERM in heard)
    stream.finish()


if __name__ == "__main__":
    send_burst(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))

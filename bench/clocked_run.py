"""A pipeline run with clocks around what it does to show itself, and nothing else changed.

`python bench/clocked_run.py FILE WARM_UP_SECONDS` runs until SIGTERM, and prints what these parts took as JSON.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any

from penstock.config import load
from penstock.engine import measure
from penstock.engine.listener import BatchDone, Event, Started
from penstock.engine.patience import StopRequest
from penstock.kafka import ages
from penstock.supervision import observer
from penstock.supervision.run import run
from penstock.supervision.running_query import Garbage

_LOOK_SECONDS = 0.2
_HEARD = "history, metrics and group"
_LOOKOUT, _GROUP, _ENDPOINT, _CLIENTS = (
    "look at the brokers",
    "consumer group",
    "metrics endpoint",
    "their Kafka clients",
)
_PARTS = (_LOOKOUT, _GROUP, _ENDPOINT, _CLIENTS)
_CLIENT = "rdk:"
"""How the names of librdkafka's threads begin."""


class Clocks:
    """Clocks around the parts in question. Only what runs behind the warm-up counts."""

    def __init__(self) -> None:
        self.warm = False
        self.batches, self.batch_seconds = 0, 0.0
        self.in_batch: defaultdict[str, float] = defaultdict(float)
        self.presence = self._requests = self._looked = 0.0
        self._not_ours: set[int] = set()
        self._took: dict[int, tuple[str, float]] = {}
        self._at_warm: dict[int, float] = {}
        self._over = threading.Event()

    def around(self, owner: Any, name: str, part: str) -> None:
        """Time every call of a function or method."""
        timed = getattr(owner, name)

        def clocked(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return timed(*arguments, **named)
            finally:
                if self.warm:
                    self.in_batch[part] += time.perf_counter() - began

        setattr(owner, name, clocked)

    def around_presence(self) -> None:
        """The file that `status` reads is timed apart from what else the observer does at an event."""
        beat = observer.Presence.beat

        def apart(one: Any, facts: Any = None, *, now: bool = True) -> None:
            began = time.perf_counter()
            beat(one, facts, now=now)
            if facts is not None and self.warm:
                took = time.perf_counter() - began
                self.presence += took
                self.in_batch[_HEARD] -= took

        observer.Presence.beat = apart  # type: ignore

    def around_requests(self) -> None:
        """An answer of the metrics endpoint has a thread of its own, which lives too shortly to be looked at."""
        timed = ThreadingMixIn.process_request_thread

        def clocked(server: Any, *arguments: Any) -> None:
            timed(server, *arguments)
            self._requests += time.thread_time() if self.warm else 0.0

        ThreadingMixIn.process_request_thread = clocked  # type: ignore

    def around_start(self) -> None:
        """The threads of Kafka clients that there are before a run begins to show itself are those of the batches."""
        start = observer.RunObserver._start

        def marked(one: Any) -> None:
            self._not_ours = {thread for thread, (native, _) in _threads().items() if native.startswith(_CLIENT)}
            start(one)

        observer.RunObserver._start = marked  # type: ignore

    def around_ages(self) -> None:
        """The client that reads the ages of records lives shortly: its threads are looked at before they end."""
        clocks = self

        class LookedAt(ages.Consumer):  # type: ignore
            def close(self) -> None:
                before = time.thread_time()
                clocks.look()
                clocks._looked += time.thread_time() - before if clocks.warm else 0.0
                super().close()

        ages.Consumer = LookedAt  # type: ignore

    def look(self) -> None:
        """Take down the processor time of the threads beside the batches."""
        named = {thread.native_id: thread.name for thread in threading.enumerate()}
        for thread, (native, took) in _threads().items():
            part = _part_of(named.get(thread), native)
            if part is not None and thread not in self._not_ours:
                self._took[thread] = (part, took)
                if not self.warm:
                    self._at_warm[thread] = took

    def keep_looking(self) -> None:
        """Again and again: some threads end on the way."""
        while not self._over.wait(_LOOK_SECONDS):
            self.look()

    def stop(self) -> None:
        """No more looks."""
        self._over.set()

    @property
    def beside(self) -> dict[str, float]:
        """Processor time behind the warm-up, by part."""
        missed = set(_PARTS) - {part for part, _ in self._took.values()}
        if missed:
            raise RuntimeError(f"no thread was seen of: {', '.join(sorted(missed))}")
        total = dict.fromkeys(_PARTS, 0.0) | {_ENDPOINT: self._requests, _LOOKOUT: -self._looked}
        for thread, (part, took) in self._took.items():
            total[part] += took - self._at_warm.get(thread, 0.0)
        return total


def _part_of(name: str | None, native: str) -> str | None:
    """What a thread is for, where it shows the run to others."""
    if name is None:
        return _CLIENTS if native.startswith(_CLIENT) else None
    if name == "penstock-lag":
        return _LOOKOUT
    if name.startswith("group "):
        return _GROUP
    return _ENDPOINT if "serve_forever" in name else None


def _threads() -> dict[int, tuple[str, float]]:
    """The threads of this process: their names, and the seconds that they had a processor."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            nanoseconds = int((task / "schedstat").read_text().split()[0])
            found[int(task.name)] = ((task / "comm").read_text().strip(), nanoseconds / 1e9)
    return found


def run_clocked(file: Path, warm_up: float) -> dict[str, Any]:
    """Run until SIGTERM. All in seconds: the batches, what they waited for, and processor time of threads beside."""
    clocks, stop, began = Clocks(), StopRequest(), time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: stop.ask())
    clocks.around(observer.RunObserver, "hear", _HEARD)
    clocks.around(measure, "memory_in_use", "how full the memory is")
    clocks.around(Garbage, "__call__", "garbage of the JVM")
    clocks.around_presence()
    clocks.around_requests()
    clocks.around_start()
    clocks.around_ages()

    def listen(event: Event) -> None:
        nonlocal began
        if isinstance(event, Started):
            began = time.monotonic()
        elif isinstance(event, BatchDone):
            if clocks.warm:
                clocks.batches += 1
                clocks.batch_seconds += event.metrics.seconds
            clocks.warm = time.monotonic() - began > warm_up

    looking = threading.Thread(target=clocks.keep_looking, name="bench-look", daemon=True)
    looking.start()
    run(load(file), listener=listen, stop=stop)
    clocks.stop()
    looking.join()
    told = {"batches": clocks.batches, "batch_seconds": clocks.batch_seconds, "presence": clocks.presence}
    return {**told, "in_batch": dict(clocks.in_batch), "beside": clocks.beside}


if __name__ == "__main__":
    print(json.dumps(run_clocked(Path(sys.argv[1]), float(sys.argv[2]))), flush=True)

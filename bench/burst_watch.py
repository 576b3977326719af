"""A pipeline and its producer, watched through a burst: their processes enter, what was seen leaves."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil
from burst_events import AFTER, BURST, END, TIMES
from burst_run import BurstRun, Decided, Moment, Setting
from processes import BenchError, Process
from slow_sink import SlowTable

_FIRST_BATCHES_SECONDS = 180
_DRAIN_SECONDS = 600
_LOOK_SECONDS = 0.5


class Tree(Process):
    """A process with all that it starts."""

    def signal(self, number: int) -> None:
        """Send a signal to the process itself."""
        os.kill(self._child.pid, number)

    def resident_bytes(self) -> int:
        """What it and its children hold in memory; pages that forked workers share count for each."""
        total = 0
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._child.pid)
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    total += process.memory_info().rss
        return total

    def told(self) -> list[dict[str, Any]]:
        """Its lines of JSON so far."""
        return [json.loads(line) for line in self.lines() if line.startswith("{") and line.endswith("}")]


class Watch:
    """Looks at a pipeline and its producer while time passes."""

    def __init__(self, variant: str, pipeline: Tree, producer: Tree) -> None:
        self._variant, self._pipeline, self._producer = variant, pipeline, producer
        self._memory: list[tuple[float, int]] = []
        self._running = [pipeline, producer]

    def through(self, setting: Setting, cap: int | None, table: SlowTable) -> BurstRun:
        """The normal rate, the burst, the way back, and all that was sent in the table. Both processes end."""
        # What came while Spark started is to be done first.
        late = f"still behind the normal rate after {_FIRST_BATCHES_SECONDS} s"
        self._wait(lambda: self._calm_since(0.0, setting) is not None, _FIRST_BATCHES_SECONDS, late)
        self._until(lambda: False, setting.normal_seconds)
        self._producer.signal(signal.SIGUSR1)
        late = f"the producer does not keep up with {TIMES * setting.rate:,} events a second"
        self._wait(lambda: self._phase(AFTER) is not None, setting.burst_seconds + 10, late)
        began, ended = self._phase(BURST), self._phase(AFTER)
        assert began is not None and ended is not None
        self._until(lambda: self._calm_since(ended, setting) is not None, setting.patience_seconds)
        back = self._calm_since(ended, setting)
        self._running.remove(self._producer)
        self._producer.stop()
        sent = next(body["sent"] for body in self._producer.told() if body["phase"] == END)
        late = f"not all of {sent:,} events landed after {_DRAIN_SECONDS} s"
        self._wait(lambda: table.landed() >= sent, _DRAIN_SECONDS, late)
        self._pipeline.stop()
        decisions = [Decided.told(body) for body in self._pipeline.told() if body["event"] == "flow"]
        return BurstRun(self._variant, cap, sent, began, ended, back, self._moments(), decisions, self._memory)

    def _until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait for something; whether it came in time. A part that has ended is noticed at once."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                return False
            for part in self._running:
                part.check_running()
            self._memory.append((time.time(), self._pipeline.resident_bytes()))
            time.sleep(_LOOK_SECONDS)
        return True

    def _wait(self, done: Callable[[], bool], seconds: float, late: str) -> None:
        if not self._until(done, seconds):
            raise BenchError(f"{self._variant}: {late}")

    def _calm_since(self, since: float, setting: Setting) -> float | None:
        """When a batch began that found little, the first one of the run left out: what waits then is Spark's start."""
        calm = (one.started_at for one in self._moments()[1:] if one.waiting <= setting.calm)
        return next((at for at in calm if at > since), None)

    def _moments(self) -> list[Moment]:
        return [Moment.told(body) for body in self._pipeline.told() if body["event"] == "batch"]

    def _phase(self, name: str) -> float | None:
        """When the producer began a phase."""
        return next((body["at"] for body in self._producer.told() if body["phase"] == name), None)

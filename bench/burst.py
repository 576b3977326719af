"""Part: burst. Ten times the normal rate for a minute, onto a pipeline whose sink is slow.

`python bench/run.py --only burst`. Adaptive flow against fixed caps: the best one, one four times too high and one four
times too low, one after the other, each with a topic, a table and a checkpoint of its own. The table is checked to the
row after every variant.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import yaml
from burst_events import AFTER, BURST, END, TIMES
from databases import Server, running_server
from events import SCHEMA, create_topic, delete_topic
from jobs import PENSTOCK_COMMAND
from processes import BenchError, Process
from slow_sink import TABLE, SlowTable

ADAPTIVE, BEST, HIGH, LOW = "adaptive", "best fixed cap", "4 times too high", "4 times too low"
VARIANTS = (ADAPTIVE, BEST, HIGH, LOW)
BACK_TO_NORMAL = 2.0
"""The lag is back when a batch finds at most so many times what batches found before the burst."""
_FIRST_BATCHES_SECONDS = 180
_DRAIN_SECONDS = 600
_LOOK_SECONDS = 0.5
Say = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """The load, the sink and the bounds of one measurement."""

    rate: int
    normal_seconds: float
    burst_seconds: float
    patience_seconds: float
    """How long a variant may take to catch up."""
    fixed_seconds: float
    rows_a_second: int
    """What the sink's commit takes: so long, and a second for so many rows."""
    target_batch: float
    max_batch: float
    best_cap: int

    def cap(self, variant: str) -> int | None:
        """The fixed cap of a variant."""
        return {BEST: self.best_cap, HIGH: 4 * self.best_cap, LOW: self.best_cap // 4}.get(variant)


FULL = Setting(1_000, 15, 60, 300, 0.75, 6_500, 6, 12, best_cap=45_000)
"""The best cap was found by hand: a backlog drained with caps from 30,000 to 60,000. The larger the cap the better the
rate, and 45,000 was the largest at which no batch came nearer than a tenth to `max_batch`."""
QUICK = Setting(500, 4, 8, 60, 0.3, 3_000, 1, 2.5, best_cap=4_000)


@dataclass(frozen=True)
class Moment:
    """A batch at its start, when it knows what waits: itself and what lies behind it. Seconds since 1970."""

    started_at: float
    finished_at: float
    waiting: int
    offsets: int
    seconds: float
    cap: int | None


@dataclass(frozen=True)
class Decided:
    """A change of the cap."""

    at: float
    cap: int
    reason: str
    text: str


@dataclass(frozen=True)
class BurstRun:
    """One variant, once. `memory` is what the driver, its JVM and the workers hold, over time."""

    variant: str
    cap: int | None
    sent: int
    burst_began: float
    burst_ended: float
    normal_waiting: float
    caught_up_at: float | None
    moments: list[Moment]
    decisions: list[Decided]
    memory: list[tuple[float, int]]

    @property
    def catch_up_seconds(self) -> float | None:
        """From the end of the burst until the lag is back; none where the bench did not wait for it."""
        return None if self.caught_up_at is None else self.caught_up_at - self.burst_ended

    @property
    def longest_batch(self) -> float:
        """Of all batches, the first ones too."""
        return max(one.seconds for one in self.moments)

    @property
    def most_waiting(self) -> int:
        """The largest lag that a batch found."""
        return max(one.waiting for one in self.moments)

    @property
    def memory_before(self) -> int:
        """The most before the burst."""
        return max(held for at, held in self.memory if at < self.burst_began)

    @property
    def memory_peak(self) -> int:
        """The most from the burst on."""
        return max(held for at, held in self.memory if at >= self.burst_began)


def run_burst(brokers: str, folder: Path, setting: Setting, say: Say) -> list[BurstRun]:
    """Run every variant."""
    runs = []
    with running_server(folder / "postgres") as server:
        for variant in VARIANTS:
            place = folder / "burst"
            place.mkdir()
            topic = f"burst-{variant.replace(' ', '-')}"
            create_topic(brokers, topic)
            say(f"burst: {variant}: cap {setting.cap(variant) or 'learned'}")
            run = _run(variant, brokers, topic, place, setting, server)
            runs.append(run)
            delete_topic(brokers, topic)
            shutil.rmtree(place)
            took = f"{run.catch_up_seconds:.1f} s" if run.catch_up_seconds is not None else "not in time"
            say(
                f"burst: {variant}: caught up in {took}, {len(run.moments)} batches, the longest "
                f"{run.longest_batch:.1f} s, at most {run.most_waiting:,} waiting, {run.memory_peak / 2**20:,.0f} MiB"
            )
    return runs


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


class _Watch:
    """Looks at a pipeline and its producer while time passes."""

    def __init__(self, pipeline: Tree, producer: Tree) -> None:
        self.pipeline, self.producer = pipeline, producer
        self.memory: list[tuple[float, int]] = []

    def until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait for something; whether it came in time."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                return False
            self.rest(_LOOK_SECONDS)
        return True

    def rest(self, seconds: float) -> None:
        """Let time pass, and notice at once when a part has ended."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.pipeline.check_running()
            self.producer.check_running()
            self.memory.append((time.time(), self.pipeline.resident_bytes()))
            time.sleep(min(_LOOK_SECONDS, left))

    def moments(self) -> list[Moment]:
        """The batches so far."""
        return [_moment(body) for body in self.pipeline.told() if body["event"] == "batch"]

    def phase(self, name: str) -> float | None:
        """When the producer began a phase."""
        return next((body["at"] for body in self.producer.told() if body["phase"] == name), None)


def _run(variant: str, brokers: str, topic: str, folder: Path, setting: Setting, server: Server) -> BurstRun:
    script = Path(__file__).with_name("burst_events.py")
    sending: list[str | Path] = [
        sys.executable,
        script,
        brokers,
        topic,
        *map(str, (setting.rate, setting.burst_seconds)),
    ]
    with server.database() as database:
        table = SlowTable(database.url)
        table.make(setting.fixed_seconds, setting.rows_a_second)
        file = _pipeline(variant, brokers, topic, folder, setting)
        command: list[str | Path] = [PENSTOCK_COMMAND, "run", file, "--log-format", "json"]
        with (
            Tree("producer", sending, folder) as producer,
            Tree("penstock", command, folder, {"ORDERS_DB": database.url}) as pipeline,
        ):
            run = _watch(variant, _Watch(pipeline, producer), table, setting)
        table.check(variant, run.sent)
    return run


def _watch(variant: str, watch: _Watch, table: SlowTable, setting: Setting) -> BurstRun:
    # What came while Spark started is to be done first. At the normal rate a batch is little more than its fixed part.
    settled = 2 * setting.rate * (1 + setting.fixed_seconds)
    if not watch.until(lambda: any(one.waiting < settled for one in watch.moments()[1:]), _FIRST_BATCHES_SECONDS):
        raise BenchError(f"{variant}: still behind the normal rate after {_FIRST_BATCHES_SECONDS} s")
    settled_at = time.time()
    watch.rest(setting.normal_seconds)
    watch.producer.signal(signal.SIGUSR1)
    if not watch.until(lambda: watch.phase(AFTER) is not None, 2 * setting.burst_seconds):
        raise BenchError(f"{variant}: the producer does not keep up with {TIMES * setting.rate:,} events a second")
    began, ended = watch.phase(BURST), watch.phase(AFTER)
    assert began is not None and ended is not None
    before = [one.waiting for one in watch.moments() if settled_at <= one.started_at < began]
    if not before:
        raise BenchError(f"{variant}: no batch began in the {setting.normal_seconds:g} s before the burst")
    normal = median(before)

    def caught_up_at() -> float | None:
        calm = (one.started_at for one in watch.moments() if one.waiting <= BACK_TO_NORMAL * normal)
        return next((at for at in calm if at > ended), None)

    watch.until(lambda: caught_up_at() is not None, setting.patience_seconds)
    back_at = caught_up_at()
    watch.producer.stop()
    sent = next(body["sent"] for body in watch.producer.told() if body["phase"] == END)
    _drain(variant, watch.pipeline, table, sent)
    decisions = [_decided(body) for body in watch.pipeline.told() if body["event"] == "flow"]
    cap = setting.cap(variant)
    return BurstRun(variant, cap, sent, began, ended, normal, back_at, watch.moments(), decisions, watch.memory)


def _drain(variant: str, pipeline: Tree, table: SlowTable, sent: int) -> None:
    deadline = time.monotonic() + _DRAIN_SECONDS
    while table.landed() < sent:
        pipeline.check_running()
        if time.monotonic() > deadline:
            raise BenchError(f"{variant}: not all of {sent:,} events landed after {_DRAIN_SECONDS} s")
        time.sleep(_LOOK_SECONDS)
    pipeline.stop()


def _pipeline(variant: str, brokers: str, topic: str, folder: Path, setting: Setting) -> Path:
    sink = {"name": "orders_pg", "type": "postgres", "url": "${env:ORDERS_DB}", "table": TABLE}
    body: dict[str, Any] = {
        "name": "orders",
        "source": {"type": "kafka", "brokers": brokers, "topics": [topic], "start": "earliest"},
        "decode": {"format": "json", "schema": SCHEMA},
        "quarantine": {"table": "quarantine"},
        "sinks": [{**sink, "mode": "upsert", "keys": ["order_id"]}],
        "checkpoint": "checkpoint",
    }
    if variant == ADAPTIVE:
        body["flow"] = {
            "target_batch": f"{setting.target_batch * 1000:.0f} ms",
            "max_batch": f"{setting.max_batch * 1000:.0f} ms",
        }
    else:
        body["source"]["max_offsets"] = setting.cap(variant)
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    return file


def _moment(body: dict[str, Any]) -> Moment:
    return Moment(
        started_at=datetime.fromisoformat(body["started_at"]).timestamp(),
        finished_at=datetime.fromisoformat(body["finished_at"]).timestamp(),
        waiting=body["lag"] + body["offsets"],
        offsets=body["offsets"],
        seconds=body["seconds"],
        cap=body["cap"],
    )


def _decided(body: dict[str, Any]) -> Decided:
    return Decided(datetime.fromisoformat(body["at"]).timestamp(), body["cap"], body["reason"], body["text"])

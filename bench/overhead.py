"""What it costs a run to show itself: its history, metrics, consumer group and the look at the brokers.

A caught-up stream of small batches, 20 partitions, with the metrics endpoint on and asked every few seconds. The run
itself is that of `clocked_run.py`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from events import PARTITIONS, SCHEMA, create_topic, delete_topic
from processes import BenchError, Process

from penstock.devstack.processes import free_ports

RATE = 2_000
SCRAPE_SECONDS = 5.0
WARM_UP_SECONDS = 10.0
_FIRST_BATCH_SECONDS = 120
_LOOK_SECONDS = 0.5
Say = Callable[[str], None]


@dataclass(frozen=True)
class Overhead:
    """All in seconds. `in_batch` is what the batches waited for, by part; `beside` the processor time of threads;
    `presence` what they waited for the file that `status` reads, which is not among these."""

    partitions: int
    rate: int
    scrapes: int
    batches: int
    batch_seconds: float
    presence: float
    in_batch: dict[str, float]
    beside: dict[str, float]

    @property
    def waited_share(self) -> float:
        """The part of a batch that it waited for."""
        return sum(self.in_batch.values()) / self.batch_seconds

    @property
    def share(self) -> float:
        """The same with what the threads took, as though each of their cycles had been taken from a batch."""
        return self.waited_share + sum(self.beside.values()) / self.batch_seconds


def run_overhead(brokers: str, folder: Path, seconds: float, say: Say) -> Overhead:
    """Watch a caught-up stream for so long, after a warm-up."""
    place, topic, port = folder / "overhead", "overhead", free_ports(1)[0]
    place.mkdir()
    create_topic(brokers, topic)
    script, events = (Path(__file__).with_name(name) for name in ("clocked_run.py", "events.py"))
    file = _pipeline(brokers, topic, place, port)
    sending: list[str | Path] = [sys.executable, events, brokers, topic, str(RATE)]
    running: list[str | Path] = [sys.executable, script, file, str(WARM_UP_SECONDS)]
    say(f"overhead: watching a caught-up stream for {seconds:.0f} s")
    with (
        Process("producer", sending, place) as producer,
        Process("penstock", running, place) as pipeline,
    ):
        _wait_for_batches(pipeline, port)
        scrapes, deadline = 0, time.monotonic() + WARM_UP_SECONDS + seconds
        while time.monotonic() < deadline:
            pipeline.check_running()
            producer.check_running()
            _scrape(port)
            scrapes += 1
            time.sleep(SCRAPE_SECONDS)
        producer.stop()
        pipeline.stop()
        told = json.loads(pipeline.lines()[-1])
    delete_topic(brokers, topic)
    shutil.rmtree(place)
    found = Overhead(partitions=PARTITIONS, rate=RATE, scrapes=scrapes, **told)
    each = found.batch_seconds / found.batches
    say(f"overhead: {found.batches} batches of {each:.2f} s, {found.share:.2%} of a batch; of these")
    for part, took in (found.in_batch | found.beside).items():
        say(f"overhead: {took / found.batch_seconds:.2%} {part}")
    return found


def overhead_json(found: Overhead) -> dict[str, Any]:
    """With the shares."""
    return {**asdict(found), "waited_share": round(found.waited_share, 5), "share": round(found.share, 5)}


def _wait_for_batches(pipeline: Process, port: int) -> None:
    deadline = time.monotonic() + _FIRST_BATCH_SECONDS
    while True:
        pipeline.check_running()
        with suppress(OSError):
            if "penstock_last_commit_timestamp_seconds{" in _scrape(port):
                return
        if time.monotonic() > deadline:
            raise BenchError(f"overhead: no batch in the metrics after {_FIRST_BATCH_SECONDS} s")
        time.sleep(_LOOK_SECONDS)


def _scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def _pipeline(brokers: str, topic: str, folder: Path, port: int) -> Path:
    body = {
        "name": "orders",
        "source": {"type": "kafka", "brokers": brokers, "topics": [topic], "start": "earliest"},
        "decode": {"format": "json", "schema": SCHEMA},
        "quarantine": {"table": "quarantine"},
        "sinks": [{"name": "orders_delta", "type": "delta", "path": "table", "mode": "append"}],
        "metrics": {"port": port},
        "checkpoint": "checkpoint",
    }
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    return file

"""Many pipelines in one application: what does each more cost, and does the memory stay where it is?

A fleet of 1, 5 and 20 small pipelines, each with a topic, a table, a quarantine and a checkpoint of its own, and a few
events a second. Memory, threads and open files are looked at every two seconds: of the driver, its JVM and the Python
workers. Every event has to be in its table once. Growth is the median of the last quarter of the time against that of
the second one.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import yaml
from confluent_kafka import Producer
from deltalake import DeltaTable
from events import create_topic
from jobs import PENSTOCK_COMMAND
from processes import BenchError, Process

COUNTS = (1, 5, 20)
RATE = 10
"""Events a second for each pipeline."""

_LOOK_SECONDS = 2.0
_START_SECONDS = 240
_DRAIN_SECONDS = 120
Say = Callable[[str], None]


@dataclass(frozen=True)
class Look:
    """What the processes of a run have at one moment; memory in bytes."""

    at: float
    driver: int
    jvm: int
    workers: int
    worker_count: int
    threads: int
    files: int
    cpu_seconds: float

    @property
    def memory(self) -> int:
        """All of it."""
        return self.driver + self.jvm + self.workers


@dataclass(frozen=True)
class FleetRun:
    """One size of the fleet."""

    pipelines: int
    seconds: float
    start_seconds: float
    events: int
    batches: int
    batch_seconds: float
    late_batch_seconds: float
    """The time that 95 of 100 batches stay below."""
    looks: tuple[Look, ...]

    def quarter(self, number: int, part: Callable[[Look], float]) -> float:
        """The median of a figure in a quarter of the time, counted from 0."""
        size = max(1, len(self.looks) // 4)
        return median(part(look) for look in self.looks[number * size : (number + 1) * size])

    @property
    def growth(self) -> float:
        """The memory at the end against the second quarter."""
        return self.quarter(3, lambda look: look.memory) / self.quarter(1, lambda look: look.memory)

    @property
    def cores(self) -> float:
        """How many cores it kept busy."""
        first, last = self.looks[0], self.looks[-1]
        return (last.cpu_seconds - first.cpu_seconds) / (last.at - first.at)


def run_pipelines(brokers: str, folder: Path, seconds: float, counts: Sequence[int], say: Say) -> list[FleetRun]:
    """Every size once, on topics of its own."""
    runs = []
    for count in counts:
        say(f"pipelines: {count}")
        place = folder / f"fleet-{count}"
        place.mkdir()
        runs.append(_run(brokers, place, count, seconds))
        shutil.rmtree(place)
        last = runs[-1]
        memory = last.quarter(3, lambda look: look.memory) / 1e6
        say(
            f"pipelines: {count}: {memory:,.0f} MB ({last.growth:.2f} times the second quarter), "
            f"{last.looks[-1].threads} threads, batches of {last.batch_seconds:.2f} s, {last.cores:.2f} cores"
        )
    return runs


def _run(brokers: str, folder: Path, count: int, seconds: float) -> FleetRun:
    names = [f"p{count}-{number:02d}" for number in range(count)]
    files = folder / "pipelines"
    files.mkdir()
    for name in names:
        create_topic(brokers, name, partitions=2)
        (files / f"{name}.yaml").write_text(yaml.safe_dump(_pipeline(name, brokers), sort_keys=False), encoding="utf-8")
    command = [PENSTOCK_COMMAND, "run", files, "--log-format", "json"]
    with Process("fleet", command, folder) as process:
        started = _await_started(process, count)
        with _sending(brokers, names) as sent:
            looks = _watch(process, seconds)
        _await_rows(process, sum(sent.values()))
        process.stop()
    for name in names:
        landed = DeltaTable(files / "lake" / name).to_pyarrow_table(columns=["id"]).column("id")
        if len(landed) != sent[name] or len(landed.unique()) != sent[name]:
            raise BenchError(f"{name}: the table is wrong: {sent[name]:,} events, {len(landed):,} rows")
    taken = sorted(body["seconds"] for body in _batches(process) if body["rows_in"])
    return FleetRun(
        count,
        seconds,
        started,
        sum(sent.values()),
        len(taken),
        median(taken),
        taken[int(0.95 * (len(taken) - 1))],
        looks,
    )


def _pipeline(name: str, brokers: str) -> dict[str, Any]:
    return {
        "name": name,
        "source": {"type": "kafka", "brokers": brokers, "topics": [name], "start": "earliest"},
        "decode": {"format": "json", "schema": "id BIGINT NOT NULL, text STRING"},
        "quarantine": {"table": f"lake/{name}_quarantine"},
        "transforms": [{"where": "id >= 0"}],
        "sinks": [{"name": "out", "type": "delta", "path": f"lake/{name}"}],
        "checkpoint": f"checkpoints/{name}",
        "trigger": {"every": "1 second"},
    }


def _await_started(process: Process, count: int) -> float:
    began = time.monotonic()
    while sum('"event": "started"' in line for line in process.lines()) < count:
        process.check_running()
        if time.monotonic() - began > _START_SECONDS:
            raise BenchError(f"not all of {count} pipelines have started after {_START_SECONDS} s")
        time.sleep(0.2)
    return time.monotonic() - began


def _await_rows(process: Process, events: int) -> None:
    deadline = time.monotonic() + _DRAIN_SECONDS
    while sum(body["rows_in"] for body in _batches(process)) < events:
        process.check_running()
        if time.monotonic() > deadline:
            raise BenchError(f"not all of {events:,} events have come through")
        time.sleep(0.5)


def _batches(process: Process) -> Iterator[dict[str, Any]]:
    for line in process.lines():
        if '"batch_id"' in line and line.endswith("}"):
            body = json.loads(line)
            if body.get("event", "batch") == "batch":
                yield body


@contextmanager
def _sending(brokers: str, topics: Sequence[str]) -> Iterator[dict[str, int]]:
    """Events for every topic, at its rate, until it is left; how many each got."""
    sent = dict.fromkeys(topics, 0)
    over = threading.Event()

    def send() -> None:
        producer = Producer({"bootstrap.servers": brokers, "linger.ms": 20, "enable.idempotence": True, "log_level": 0})
        while not over.wait(1.0):
            for topic in topics:
                for _ in range(RATE):
                    body = json.dumps({"id": sent[topic], "text": "x" * 180}).encode()
                    producer.produce(topic, body, partition=sent[topic] % 2)
                    sent[topic] += 1
            producer.poll(0)
        producer.flush(30)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        over.set()
        thread.join()


def _watch(process: Process, seconds: float) -> tuple[Look, ...]:
    looks, began = [], time.monotonic()
    while time.monotonic() - began < seconds:
        process.check_running()
        looks.append(_look(process.pid, time.monotonic() - began))
        time.sleep(_LOOK_SECONDS)
    return tuple(looks)


def _look(pid: int, at: float) -> Look:
    root = psutil.Process(pid)
    driver, jvm, workers, count, cpu = root.memory_info().rss, 0, 0, 0, _cpu(root)
    threads, files = root.num_threads(), root.num_fds()
    for child in root.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "java" in child.name():
                jvm += child.memory_info().rss
                threads += child.num_threads()
                files += child.num_fds()
            else:
                # The workers are forks of one parent: what they have in common counts once.
                workers += child.memory_full_info().pss
                count += 1
            cpu += _cpu(child)
    return Look(at, driver, jvm, workers, count, threads, files, cpu)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)

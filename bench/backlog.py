"""Part (a): draining a backlog. Every job reads the same topic from its beginning in a fresh process."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from events import EVENT_BYTES, PARTITIONS, SCHEMA, create_topic, send_backlog
from jobs import DIRECT, FRAME, HAND_WRITTEN, Job, Source

JOBS = (HAND_WRITTEN, DIRECT, FRAME)
_TOPIC = "backlog"
_LONGEST_SECONDS = 1800

Say = Callable[[str], None]


@dataclass(frozen=True)
class Drain:
    """One job, once. `steady_seconds` are its batches alone, by its own account; `checkpoint_seconds` by the
    files of Spark's checkpoint, for every job in the same way."""

    job: str
    repetition: int
    rows: int
    seconds: float
    steady_seconds: float
    checkpoint_seconds: float
    batches: int
    slots: int
    until_query: float | None
    until_batch: float
    after_batch: float
    phases: dict[str, float]

    @property
    def rate(self) -> float:
        """Rows a second in all: from the start of the process to its end."""
        return self.rows / self.seconds

    @property
    def steady_rate(self) -> float:
        """Rows a second of batch time."""
        return self.rows / self.steady_seconds


def run_backlog(brokers: str, folder: Path, rows: int, repeat: int, say: Say) -> list[Drain]:
    """Send the backlog once, then drain it with every job, the order rotated at each repetition."""
    say(f"backlog: sending {rows:,} events of about {EVENT_BYTES} bytes to {PARTITIONS} partitions")
    began = time.monotonic()
    create_topic(brokers, _TOPIC)
    size = send_backlog(brokers, _TOPIC, rows)
    say(f"backlog: sent, {size / rows:.0f} bytes each, {rows / (time.monotonic() - began):,.0f} events/s")
    drains = []
    for repetition in range(repeat):
        turn = repetition % len(JOBS)
        for name in JOBS[turn:] + JOBS[:turn]:
            drain = drain_by(name, Source(brokers, _TOPIC, SCHEMA), folder / "job", rows, repetition)
            drains.append(drain)
            say(
                f"backlog {repetition + 1}/{repeat}: {name:15}  {drain.seconds:6.1f} s in all, "
                f"{drain.rate:9,.0f} rows/s;  steady {drain.steady_seconds:6.1f} s, {drain.steady_rate:9,.0f} rows/s"
            )
    return drains


def drain_by(name: str, source: Source, folder: Path, rows: int, repetition: int, cores: int | None = None) -> Drain:
    """Drain the backlog by one job."""
    job = Job(name, source, folder, drain=True, cores=cores)
    with job.process:
        seconds = job.process.wait(_LONGEST_SECONDS)
    ended_at, started_at = job.process.started_at + seconds, job.process.started_at
    job.check_table(rows)
    batches, query = job.batches(), job.query_started_at()
    phases: dict[str, float] = {}
    for batch in batches:
        for phase, took in batch.phases.items():
            phases[phase] = phases.get(phase, 0.0) + took
    drain = Drain(
        job=name,
        repetition=repetition,
        rows=rows,
        seconds=seconds,
        steady_seconds=sum(batch.seconds for batch in batches),
        checkpoint_seconds=job.checkpoint_seconds(),
        batches=len(batches),
        slots=max(batch.slots for batch in batches),
        until_query=None if query is None else query - started_at,
        until_batch=batches[0].finished_at - batches[0].seconds - started_at,
        after_batch=ended_at - batches[-1].finished_at,
        phases=phases,
    )
    shutil.rmtree(folder)
    return drain

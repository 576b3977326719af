"""Part (b): a caught-up stream. How long is a batch, and how old is an event when the table first shows it?

Freshness is measured from outside and for every job in the same way: each event carries the time of its
sending, and a commit's time is that of its file in `_delta_log`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow.parquet as pq
from events import LIVE_SCHEMA, create_topic
from jobs import DIRECT, HAND_WRITTEN, Batch, Job, Source
from processes import BenchError, Process

JOBS = (HAND_WRITTEN, DIRECT)
RATE = 2_000
WARM_UP_SECONDS = 15
_FIRST_COMMIT_SECONDS = 120
_CATCH_UP_SECONDS = 120

Say = Callable[[str], None]


@dataclass(frozen=True)
class Commit:
    """A commit of the table: when, and when each of its rows was sent. Both in seconds since 1970."""

    at: float
    sent_at: np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True)
class Watch:
    """One job, once. Quantiles are in seconds, from 0 to 100 percent in steps of one."""

    job: str
    repetition: int
    seconds: float
    rows: int
    batches: int
    batch_quantiles: list[float]
    interval_quantiles: list[float]
    freshness_quantiles: list[float]
    phases: dict[str, float]


def run_caught_up(brokers: str, folder: Path, seconds: float, repeat: int, say: Say) -> list[Watch]:
    """Watch every job on a live stream of its own, the order rotated at each repetition."""
    watches = []
    for repetition in range(repeat):
        turn = repetition % len(JOBS)
        for name in JOBS[turn:] + JOBS[:turn]:
            topic = f"live-{repetition}-{name.replace(' ', '-')}"
            create_topic(brokers, topic)
            say(f"caught up {repetition + 1}/{repeat}: {name:15}  watching for {seconds:.0f} s after the warm-up")
            watch = watch_job(name, Source(brokers, topic, LIVE_SCHEMA), folder / "job", seconds, repetition)
            watches.append(watch)
            say(
                f"caught up {repetition + 1}/{repeat}: {name:15}  {watch.batches} batches, p50 "
                f"{watch.batch_quantiles[50]:.2f} s;  freshness p50 {watch.freshness_quantiles[50]:.2f} s, "
                f"p99 {watch.freshness_quantiles[99]:.2f} s"
            )
    return watches


def watch_job(name: str, source: Source, folder: Path, seconds: float, repetition: int) -> Watch:
    """Watch one job on a stream of its own."""
    folder.mkdir()
    sending: list[str | Path] = [
        sys.executable,
        Path(__file__).with_name("events.py"),
        source.brokers,
        source.topic,
        str(RATE),
    ]
    with Process("producer", sending, folder) as producer:
        job = Job(name, source, folder / name.replace(" ", "-"), drain=False)
        with job.process:
            running = (job.process, producer)
            _wait_for(lambda: job.rows_landed() > 0, _FIRST_COMMIT_SECONDS, f"the first commit of {name}", running)
            _rest(WARM_UP_SECONDS, running)
            began = time.time()
            _rest(seconds, running)
            ended = time.time()
            producer.stop()
            sent = int(producer.lines()[-1])
            caught_up = f"{name} to land all of {sent:,} events"
            _wait_for(lambda: job.rows_landed() >= sent, _CATCH_UP_SECONDS, caught_up, (job.process,))
            job.process.stop()
    job.check_table(sent)
    commits = read_commits(job.table)
    # An event counts by the time of its sending: however late it lands, it is in the figures.
    ages = np.concatenate([c.at - c.sent_at[(c.sent_at >= began) & (c.sent_at < ended)] for c in commits])
    moments = np.array([c.at for c in commits])
    intervals = np.diff(moments)[(moments[1:] >= began) & (moments[1:] < ended)]
    batches = [batch for batch in job.batches() if began <= batch.finished_at < ended]
    shutil.rmtree(folder)
    return Watch(
        job=name,
        repetition=repetition,
        seconds=ended - began,
        rows=len(ages),
        batches=len(batches),
        batch_quantiles=_quantiles([batch.seconds for batch in batches]),
        interval_quantiles=_quantiles(intervals),
        freshness_quantiles=_quantiles(ages),
        phases=_typical_phases(batches),
    )


def read_commits(table: Path) -> list[Commit]:
    """The commits that added rows, oldest first."""
    commits = []
    for file in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        added = [table / unquote(action["add"]["path"]) for action in actions if "add" in action]
        if added:
            micros = [pq.read_table(path, columns=["sent_at"]).column(0).to_numpy() for path in added]
            commits.append(Commit(file.stat().st_mtime, np.concatenate(micros) / 1e6))
    return commits


def _wait_for(done: Callable[[], bool], seconds: float, what: str, running: Sequence[Process]) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            said = "\n".join(line for process in running for line in process.lines()[-5:])
            raise BenchError(f"waiting for {what}: not after {seconds:.0f} s\n{said}")
        _rest(0.5, running)


def _rest(seconds: float, running: Sequence[Process]) -> None:
    """Let the stream run, and notice at once when a part of it has ended."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        for process in running:
            process.check_running()
        time.sleep(min(0.5, left))


def _quantiles(values: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
    if not len(values):
        raise BenchError("the time watched is too short: no batch ended in it")
    return [round(float(value), 4) for value in np.quantile(np.asarray(values), np.linspace(0, 1, 101))]


def _typical_phases(batches: Sequence[Batch]) -> dict[str, float]:
    names = sorted({phase for batch in batches for phase in batch.phases})
    return {name: round(float(np.median([b.phases.get(name, 0.0) for b in batches])), 4) for name in names}

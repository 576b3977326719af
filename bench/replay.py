"""Part: replay. A topic again, into another table and into the same one, against the live run that read it first.

`python bench/run.py --only replay`. The table is checked to the row after every job.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from deltalake import DeltaTable
from events import SCHEMA, create_topic, send_backlog
from jobs import PENSTOCK_COMMAND
from machine import machine_facts
from processes import BenchError, Process

from tables import table

LIVE, INTO, PLACE = "live", "replay into another table", "replay into the same table"
JOBS = (LIVE, INTO, PLACE)
WANTED = 0.9
_BATCH = re.compile(r"^batch \d+: ([\d,]+) in, .* ([\d.]+) s$")
_TOPIC = "replay"
_BATCHES = 6
_LONGEST_SECONDS = 900
Say = Callable[[str], None]


@dataclass(frozen=True)
class ReplayRun:
    """One job, once. Steady are its batches past the first, in which the workers of a replay start: the live run
    starts them beside its query, before it counts. The one commit at the end of a replay in place is in no batch."""

    job: str
    repetition: int
    rows: int
    seconds: float
    steady_rows: int
    steady_seconds: float

    @property
    def rate(self) -> float:
        """Rows a second in all."""
        return self.rows / self.seconds

    @property
    def steady_rate(self) -> float:
        """Rows a second of batch time."""
        return self.steady_rows / self.steady_seconds


def run_replay(brokers: str, folder: Path, rows: int, repeat: int, say: Say) -> list[ReplayRun]:
    """Send the events once; then, again and again: run them live, and replay what that read."""
    create_topic(brokers, _TOPIC)
    send_backlog(brokers, _TOPIC, rows)
    say(f"replay: sent {rows:,} events")
    runs: list[ReplayRun] = []
    for repetition in range(repeat):
        place = folder / "replay"
        place.mkdir()
        file = write_pipeline(brokers, _TOPIC, place, SCHEMA, rows // _BATCHES)
        committed = ("--from", "earliest", "--to", "committed")
        words: dict[str, Sequence[str | Path]] = {
            LIVE: ("run", file, "--log-format", "json"),
            INTO: ("replay", file, *committed, "--into", "again"),
            PLACE: ("replay", file, *committed),
        }
        for job in JOBS:
            run = _run(job, place, words[job], rows, repetition)
            check_landed("replay", place / ("again" if job == INTO else "table"), rows)
            runs.append(run)
            say(
                f"replay {repetition + 1}/{repeat}: {job:26} {run.seconds:6.1f} s in all, {run.rate:9,.0f} rows/s;  "
                f"steady {run.steady_rate:9,.0f} rows/s"
            )
        shutil.rmtree(place)
    return runs


def replay_ratio(runs: Sequence[ReplayRun], job: str, figure: Callable[[ReplayRun], float]) -> float:
    """The median of the ratios to the live run of the same repetition."""
    live = {run.repetition: figure(run) for run in runs if run.job == LIVE}
    return median(figure(run) / live[run.repetition] for run in runs if run.job == job)


def replay_text(runs: Sequence[ReplayRun]) -> list[str]:
    """The section of a page of results."""
    rows = [
        (
            job,
            f"{median(run.rate for run in mine):,.0f}",
            f"{median(run.steady_rate for run in mine):,.0f}",
            f"{replay_ratio(runs, job, lambda run: run.rate):.2f}" if job != LIVE else "",
            f"{replay_ratio(runs, job, lambda run: run.steady_rate):.2f}" if job != LIVE else "",
        )
        for job in JOBS
        for mine in [[run for run in runs if run.job == job]]
    ]
    columns = ("", "rows/s in all", "steady", "against live, in all", "against live, steady")
    return ["## Replay", table(columns, rows), f"Wanted: at least {WANTED} of the live rate."]


def write_replay(runs: Sequence[ReplayRun], folder: Path) -> None:
    """The figures of this part, beside those of the others."""
    folder.mkdir(parents=True, exist_ok=True)
    taken, machine = f"{datetime.now(UTC):%Y-%m-%d}", machine_facts()
    body = {"taken_at": taken, "machine": machine, "runs": [asdict(run) for run in runs]}
    (folder / "results.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    said = f"Written by `bench/run.py --only replay` on {taken}: rows {runs[0].rows:,}."
    parts = [said, *replay_text(runs), "## Machine", table(("", ""), machine.items())]
    (folder / "results.md").write_text("\n\n".join(["# Bench: replay", *parts]) + "\n", encoding="utf-8")


def _run(job: str, folder: Path, words: Sequence[str | Path], rows: int, repetition: int) -> ReplayRun:
    process = Process(job.replace(" ", "-"), [PENSTOCK_COMMAND, *words], folder)
    with process:
        seconds = process.wait(_LONGEST_SECONDS)
    _, *batches = (batch for line in process.lines() if (batch := _batch(line)) is not None)
    steady_rows, steady_seconds = (sum(figures) for figures in zip(*batches, strict=True))
    return ReplayRun(job, repetition, rows, seconds, int(steady_rows), steady_seconds)


def _batch(line: str) -> tuple[int, float] | None:
    """The rows and the seconds of a batch, in either form in which they are told."""
    if line.startswith("{"):
        body = json.loads(line)
        return (body["rows_in"], body["seconds"]) if body["event"] == "batch" and body["rows_in"] else None
    found = _BATCH.match(line)
    return (int(found[1].replace(",", "")), float(found[2])) if found is not None else None


def write_pipeline(brokers: str, topic: str, folder: Path, schema: str, max_offsets: int | None = None) -> Path:
    """A pipeline file into a Delta table, that ends when it has drained the topic."""
    cap = {"max_offsets": max_offsets} if max_offsets is not None else {}
    body: dict[str, Any] = {
        "name": "orders",
        "source": {"type": "kafka", "brokers": brokers, "topics": [topic], "start": "earliest", **cap},
        "decode": {"format": "json", "schema": schema},
        "quarantine": {"table": "quarantine"},
        "sinks": [{"name": "orders_delta", "type": "delta", "path": "table"}],
        "checkpoint": "checkpoint",
        "trigger": {"available_now": True},
    }
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    return file


def check_landed(part: str, path: Path, rows: int) -> None:
    """Stop the bench where a table does not have every row once."""
    landed = DeltaTable(path).to_pyarrow_table(columns=["order_id"]).column("order_id")
    if not len(landed) == len(landed.unique()) == rows:
        raise BenchError(f"{part}: the table is wrong: sent {rows:,}, landed {len(landed):,}")

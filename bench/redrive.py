"""Part: redrive. Records that a run has quarantined, brought back in; against a live run that finds them good."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from events import SCHEMA, create_topic, delete_topic, send_backlog
from jobs import PENSTOCK_COMMAND
from machine import machine_facts
from processes import Process
from replay import check_landed, write_pipeline

from tables import table

LIVE, REDRIVE = "live", "redrive"
WANTED = 0.9
_REFUSING = f"{SCHEMA}, missing STRING NOT NULL"
"""With a column that no event has, every record is bad."""
_MENDED = f"{SCHEMA}, missing STRING"
_BATCH = re.compile(r"^batch \d+: ([\d,]+) in, .* ([\d.]+) s$")
_LONGEST_SECONDS = 900


@dataclass(frozen=True)
class RedriveRun:
    """One job, once. `steady_seconds` are its batches alone."""

    job: str
    repetition: int
    rows: int
    seconds: float
    steady_seconds: float

    @property
    def rate(self) -> float:
        """Rows a second in all."""
        return self.rows / self.seconds

    @property
    def steady_rate(self) -> float:
        """Rows a second of batch time."""
        return self.rows / self.steady_seconds


def run_redrive(brokers: str, folder: Path, rows: int, repeat: int, say: Callable[[str], None]) -> list[RedriveRun]:
    """Send the events once; then, again and again: quarantine them all, redrive them, and run them live."""
    topic = "redrive"
    create_topic(brokers, topic)
    send_backlog(brokers, topic, rows)
    say(f"redrive: sent {rows:,} events")
    runs: list[RedriveRun] = []
    for repetition in range(repeat):
        for job in (REDRIVE, LIVE) if repetition % 2 else (LIVE, REDRIVE):
            place = folder / "redrive"
            place.mkdir()
            run = (_live if job == LIVE else _redriven)(brokers, topic, place, rows, repetition)
            check_landed("redrive", place / "table", rows)
            shutil.rmtree(place)
            runs.append(run)
            say(
                f"redrive {repetition + 1}/{repeat}: {job:8} {run.seconds:6.1f} s in all, {run.rate:9,.0f} rows/s;  "
                f"steady {run.steady_seconds:6.1f} s, {run.steady_rate:9,.0f} rows/s"
            )
    delete_topic(brokers, topic)
    return runs


def redrive_ratio(runs: list[RedriveRun], figure: Callable[[RedriveRun], float]) -> float:
    """The median of the ratios to the live run of the same repetition."""
    live = {run.repetition: figure(run) for run in runs if run.job == LIVE}
    return median(figure(run) / live[run.repetition] for run in runs if run.job == REDRIVE)


def redrive_text(runs: list[RedriveRun]) -> list[str]:
    """The section of `results.md`."""
    rows = [
        (job, f"{median(run.rate for run in mine):,.0f}", f"{median(run.steady_rate for run in mine):,.0f}")
        for job in (LIVE, REDRIVE)
        for mine in [[run for run in runs if run.job == job]]
    ]
    return ["## Redrive", table(("", "rows/s in all", "steady"), rows)]


def write_redrive(runs: list[RedriveRun], folder: Path) -> None:
    """The figures of this part, beside those of the others."""
    folder.mkdir(parents=True, exist_ok=True)
    taken, machine = f"{datetime.now(UTC):%Y-%m-%d}", machine_facts()
    body = {"taken_at": taken, "machine": machine, "runs": [asdict(run) for run in runs]}
    (folder / "results.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    ratios = [redrive_ratio(runs, figure) for figure in (lambda run: run.rate, lambda run: run.steady_rate)]
    said = f"Written by `bench/run.py --only redrive` on {taken}: rows {runs[0].rows:,}."
    against = f"Against live: {ratios[0]:.2f} in all, {ratios[1]:.2f} steady; wanted at least {WANTED}."
    parts = [said, *redrive_text(runs), against, "## Machine", table(("", ""), machine.items())]
    (folder / "results.md").write_text("\n\n".join(["# Bench: redrive", *parts]) + "\n", encoding="utf-8")


def _live(brokers: str, topic: str, folder: Path, rows: int, repetition: int) -> RedriveRun:
    told, seconds = _run(LIVE, folder, "run", write_pipeline(brokers, topic, folder, _MENDED), "--log-format", "json")
    batches = [body for line in told if line.startswith("{") and (body := json.loads(line))["event"] == "batch"]
    return RedriveRun(LIVE, repetition, rows, seconds, sum(batch["seconds"] for batch in batches))


def _redriven(brokers: str, topic: str, folder: Path, rows: int, repetition: int) -> RedriveRun:
    _run("quarantine", folder, "run", write_pipeline(brokers, topic, folder, _REFUSING))
    file = write_pipeline(brokers, topic, folder, _MENDED)
    told, seconds = _run(REDRIVE, folder, "quarantine", "redrive", file)
    batches = [float(found[2]) for line in told if (found := _BATCH.match(line))]
    return RedriveRun(REDRIVE, repetition, rows, seconds, sum(batches))


def _run(name: str, folder: Path, *words: str | Path) -> tuple[list[str], float]:
    process = Process(name, [PENSTOCK_COMMAND, *words], folder)
    with process:
        seconds = process.wait(_LONGEST_SECONDS)
    return list(process.lines()), seconds

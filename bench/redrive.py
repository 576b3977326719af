"""Part: redrive. Records that a run has quarantined, brought back in; against a live run that reads them as good ones.

`python bench/redrive.py [ROWS]` runs it alone.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from deltalake import DeltaTable
from events import SCHEMA, create_topic, delete_topic, send_backlog
from jobs import PENSTOCK_COMMAND
from processes import BenchError, Process

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
            _check(place / "table", rows)
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


def _live(brokers: str, topic: str, folder: Path, rows: int, repetition: int) -> RedriveRun:
    told, seconds = _run(LIVE, folder, "run", _pipeline(brokers, topic, folder, _MENDED), "--log-format", "json")
    batches = [body for line in told if line.startswith("{") and (body := json.loads(line))["event"] == "batch"]
    return RedriveRun(LIVE, repetition, rows, seconds, sum(batch["seconds"] for batch in batches))


def _redriven(brokers: str, topic: str, folder: Path, rows: int, repetition: int) -> RedriveRun:
    _run("quarantine", folder, "run", _pipeline(brokers, topic, folder, _REFUSING))
    file = _pipeline(brokers, topic, folder, _MENDED)
    told, seconds = _run(REDRIVE, folder, "quarantine", "redrive", file)
    batches = [float(found[2]) for line in told if (found := _BATCH.match(line))]
    return RedriveRun(REDRIVE, repetition, rows, seconds, sum(batches))


def _run(name: str, folder: Path, *words: str | Path) -> tuple[list[str], float]:
    process = Process(name, [PENSTOCK_COMMAND, *words], folder)
    with process:
        seconds = process.wait(_LONGEST_SECONDS)
    return list(process.lines()), seconds


def _pipeline(brokers: str, topic: str, folder: Path, schema: str) -> Path:
    body: dict[str, Any] = {
        "name": "orders",
        "source": {"type": "kafka", "brokers": brokers, "topics": [topic], "start": "earliest"},
        "decode": {"format": "json", "schema": schema},
        "quarantine": {"table": "quarantine"},
        "sinks": [{"name": "orders_delta", "type": "delta", "path": "table"}],
        "checkpoint": "checkpoint",
        "trigger": {"available_now": True},
    }
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    return file


def _check(path: Path, rows: int) -> None:
    landed = DeltaTable(path).to_pyarrow_table(columns=["order_id"]).column("order_id")
    if not len(landed) == len(landed.unique()) == rows:
        raise BenchError(f"redrive: the table is wrong: sent {rows:,}, landed {len(landed):,}")


def main(rows: int) -> None:
    """This part alone."""
    from penstock.devstack import DevStack
    from penstock.spark.jars import broker_classpath
    from penstock.spark.java import find_java

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        with DevStack(folder / "kafka", java=find_java().executable, classpath=broker_classpath()) as stack:
            runs = run_redrive(stack.bootstrap, folder, rows, 1, print)
    for what, figure in (("in all", lambda run: run.rate), ("steady", lambda run: run.steady_rate)):
        print(f"redrive against live, {what}: {redrive_ratio(runs, figure):.2f}, wanted {WANTED}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)

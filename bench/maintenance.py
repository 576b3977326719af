"""Many small batches merged into one table: how long is a batch at the end, against the start?

With `maintenance` in the pipeline file, without it, and as a blog would write the job. Every event is a new order with
a random number, so that each batch leaves a small file behind, and each merge has to look into all that are there.
Medians of a tenth of the batches, at the start (after a warm-up) and at the end.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from confluent_kafka import Producer
from deltalake import DeltaTable
from events import MANY, SCHEMA, create_topic
from jobs import HAND_WRITTEN, PENSTOCK_COMMAND, Batch, from_log, from_progress
from machine import machine_facts
from processes import BenchError, Process

WITH, WITHOUT = "penstock with maintenance", "penstock without"
JOBS = (WITH, WITHOUT, HAND_WRITTEN)
ROWS = 1_000
EVERY = "10 seconds"
GROWTH = 1.2
"""How much longer a batch may be at the end than at the start, with `maintenance`."""

_SECONDS = 3_600
_WARM_UP = 10
Say = Callable[[str], None]


@dataclass(frozen=True)
class TendedRun:
    """One job, once. Seconds are medians of batches; `upkeep` is what lay between them."""

    job: str
    batches: int
    first_seconds: float
    last_seconds: float
    total_seconds: float
    upkeep_seconds: float
    files: int
    most_files_joined: int

    @property
    def growth(self) -> float:
        """A batch at the end against the start."""
        return self.last_seconds / self.first_seconds


def run_maintenance(brokers: str, folder: Path, batches: int, say: Say) -> list[TendedRun]:
    """Drain the same topic by every job."""
    topic = "tended"
    create_topic(brokers, topic)
    orders = _send(brokers, topic, batches * ROWS)
    runs = []
    for name in JOBS:
        say(f"maintenance: {name}")
        place = folder / "tended"
        place.mkdir()
        runs.append(_run(name, brokers, topic, place, orders))
        shutil.rmtree(place)
        last = runs[-1]
        say(
            f"maintenance: {name}: {last.batches} batches, {last.first_seconds:.2f} s at the start, "
            f"{last.last_seconds:.2f} s at the end ({last.growth:.2f} times), {last.files} files"
        )
    return runs


def write_results(runs: Sequence[TendedRun], folder: Path) -> None:
    """As JSON and as a page."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = machine_facts()
    body = {"taken_at": f"{datetime.now(UTC):%Y-%m-%d}", "machine": facts, "runs": [asdict(run) for run in runs]}
    (folder / "results.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    lines = [
        "# Batches of small files, with and without `maintenance`",
        "",
        f"{body['taken_at']}; " + "; ".join(f"{name}: {value}" for name, value in facts.items()) + ".",
        "",
        f"Merge into one Delta table, {ROWS:,} events a batch, one batch after another. "
        f"`maintenance: {{every: {EVERY}, within: 10 seconds}}`.",
        "",
        "| job | batches | batch at the start | at the end | growth | between batches | files at the end |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {run.job} | {run.batches} | {run.first_seconds:.2f} s | {run.last_seconds:.2f} s | {run.growth:.2f} "
            f"times | {run.upkeep_seconds:.1f} s | {run.files:,} |"
            for run in runs
        ),
        "",
    ]
    tended = next(run for run in runs if run.job == WITH)
    verdict = "pass" if tended.growth <= GROWTH else "falls short"
    lines += [f"With `maintenance` at most {GROWTH} times: {tended.growth:.2f} times: {verdict}.", ""]
    (folder / "results.md").write_text("\n".join(lines), encoding="utf-8")


def _run(name: str, brokers: str, topic: str, folder: Path, orders: int) -> TendedRun:
    table = folder / "table"
    if name == HAND_WRITTEN:
        settings = {"brokers": brokers, "topic": topic, "schema": SCHEMA, "checkpoint": str(folder / "checkpoint"),
                    "max_offsets": ROWS, "table": str(table), "dated": False}  # fmt: skip
        script = Path(__file__).with_name("handwritten_sinks.py")
        command: list[str | Path] = [sys.executable, script, "merge", json.dumps(settings)]
    else:
        file = _pipeline(name, brokers, topic, folder)
        command = [PENSTOCK_COMMAND, "run", file, "--log-format", "json", "--available-now"]
    with Process(name.replace(" ", "-"), command, folder) as process:
        total = process.wait(_SECONDS)
    told = [json.loads(line) for line in process.lines() if line.startswith("{")]
    batches, notes = _told(name, told)
    landed = DeltaTable(table).to_pyarrow_table(columns=["order_id"]).column("order_id")
    if len(landed) != orders or len(landed.unique()) != orders:
        raise BenchError(f"{name}: the table is wrong: {orders:,} orders, {len(landed):,} rows")
    taken = [batch.seconds for batch in batches]
    part, warm = max(3, len(taken) // 10), min(_WARM_UP, len(taken) // 5)
    return TendedRun(
        job=name,
        batches=len(taken),
        first_seconds=median(taken[warm : warm + part]),
        last_seconds=median(taken[-part:]),
        total_seconds=total,
        upkeep_seconds=sum(seconds for _, seconds in notes),
        files=len(DeltaTable(table).file_uris()),
        most_files_joined=max((files for files, _ in notes), default=0),
    )


def _told(name: str, told: Sequence[dict[str, Any]]) -> tuple[list[Batch], list[tuple[int, float]]]:
    """The batches, and of each upkeep how many files it joined and how long it took."""
    if name == HAND_WRITTEN:
        return [from_progress(body) for body in told], []
    notes = []
    for body in told:
        if body["event"] == "notice" and body["text"].startswith("maintenance of orders_delta:"):
            words = body["text"].replace(",", "").split()
            notes.append((int(words[3]) if "compacted" in words else 0, float(words[-2].removeprefix("("))))
        elif body["event"] == "notice" and "failed" in body["text"]:
            raise BenchError(f"{name}: {body['text']}")
    return [from_log(body) for body in told if body["event"] == "batch" and body["rows_in"]], notes


def _pipeline(name: str, brokers: str, topic: str, folder: Path) -> Path:
    body: dict[str, Any] = {
        "name": "orders",
        "source": {"type": "kafka", "brokers": brokers, "topics": [topic], "start": "earliest", "max_offsets": ROWS},
        "decode": {"format": "json", "schema": SCHEMA},
        "quarantine": {"table": "quarantine"},
        "sinks": [
            {"name": "orders_delta", "type": "delta", "path": "table", "mode": "merge", "keys": ["order_id"]},
        ],
        "checkpoint": "checkpoint",
    }
    if name == WITH:
        body["maintenance"] = {"every": EVERY, "within": "10 seconds"}
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    return file


def _send(brokers: str, topic: str, events: int) -> int:
    """New orders, numbered by chance. How many there are."""
    chance, began = random.Random(7), datetime(2026, 1, 1, tzinfo=UTC)
    orders = [chance.getrandbits(62) for _ in range(events)]
    producer = Producer({"bootstrap.servers": brokers, **MANY})
    for number, order in enumerate(orders):
        body = {
            "order_id": order,
            "customer_id": f"c-{order % 1000}",
            "amount": round(chance.uniform(1, 500), 2),
            "event_time": (began + timedelta(seconds=number)).isoformat(),
        }
        producer.produce(topic, json.dumps(body).encode(), key=str(order).encode())
        producer.poll(0)
    producer.flush(60)
    return len(set(orders))

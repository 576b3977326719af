"""The jobs under test: how each is started, and what each says about its batches."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from deltalake import DeltaTable
from events import SCHEMA
from processes import BenchError, Process

HAND_WRITTEN, DIRECT, FRAME = "hand-written", "penstock direct", "penstock frame"
_PARTS = ("table", "checkpoint", "quarantine")
_HERE = Path(__file__).parent
PENSTOCK_COMMAND = Path(sys.executable).with_name("penstock")


@dataclass(frozen=True)
class Source:
    """What a job reads."""

    brokers: str
    topic: str
    schema: str


@dataclass(frozen=True)
class Batch:
    """One batch as the job itself tells it. `seconds` is `triggerExecution` in Spark's progress, and from the
    reading of the offsets to the last commit in Penstock's log."""

    batch_id: int
    rows: int
    seconds: float
    finished_at: float
    phases: dict[str, float]
    slots: int = 0


class Job:
    """One job in a folder of its own: its process, its table and its checkpoint."""

    def __init__(self, name: str, source: Source, folder: Path, *, drain: bool, cores: int | None = None) -> None:
        folder.mkdir(parents=True)
        self.name = name
        self.table, self.checkpoint, self._quarantine = (folder / part for part in _PARTS)
        if name == HAND_WRITTEN:
            mode = "available-now" if drain else "continuous"
            where = (source.brokers, source.topic, source.schema, self.table, self.checkpoint, mode)
            command: Sequence[str | Path] = [sys.executable, _HERE / "handwritten.py", *where]
        else:
            file = write_pipeline(name, source, folder, {"spark.master": f"local[{cores}]"} if cores else {})
            command = [PENSTOCK_COMMAND, "run", file, "--log-format", "json", *(["--available-now"] if drain else [])]
        self.process = Process(name.replace(" ", "-"), command, folder)

    def batches(self) -> list[Batch]:
        """The batches so far that had rows."""
        if self.name == HAND_WRITTEN:
            return [from_progress(body) for body in self._told()]
        return [from_log(body) for body in self._told() if body["event"] == "batch" and body["rows_in"]]

    def query_started_at(self) -> float | None:
        """When Penstock said that its query runs; the hand-written job does not tell."""
        if self.name == HAND_WRITTEN:
            return None
        [started] = [body for body in self._told() if body["event"] == "started"]
        if started["lane"] != self.name.removeprefix("penstock "):
            raise BenchError(f"{self.name} took the {started['lane']} lane: {started['reason']}")
        return datetime.fromisoformat(started["at"]).timestamp()

    def rows_landed(self) -> int:
        """The rows of the table, by the statistics in its log; 0 where there is no table yet."""
        if not DeltaTable.is_deltatable(str(self.table)):
            return 0
        actions: Any = DeltaTable(self.table).get_add_actions(flatten=True)
        return sum(actions.column("num_records").to_pylist())

    def check_table(self, rows: int) -> None:
        """Raise unless the table holds the orders 0 to `rows`, each once, and the quarantine holds none."""
        column = DeltaTable(self.table).to_pyarrow_table(columns=["order_id"]).column("order_id")
        landed, orders = len(column), column.unique().sort()
        whole = landed == rows == len(orders) and orders[0].as_py() == 0 and orders[-1].as_py() == rows - 1
        refused = 0
        if DeltaTable.is_deltatable(str(self._quarantine)):
            refused = DeltaTable(self._quarantine).to_pyarrow_table(columns=["code"]).num_rows
        if not whole or refused:
            raise BenchError(
                f"{self.name}: the table is wrong: sent {rows:,}, landed {landed:,}, "
                f"distinct {len(orders):,}, quarantined {refused:,}"
            )

    def checkpoint_seconds(self) -> float:
        """From `offsets/N` to `commits/N`, over all batches that the checkpoint still has: one clock for all jobs."""
        commits = {f.name: f.stat().st_mtime for f in (self.checkpoint / "commits").iterdir() if f.name.isdigit()}
        return sum(done - (self.checkpoint / "offsets" / name).stat().st_mtime for name, done in commits.items())

    def _told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.process.lines() if line.startswith("{")]


def write_pipeline(name: str, source: Source, folder: Path, spark: Mapping[str, str] | None = None) -> Path:
    """Write the pipeline file of a Penstock job; its table, checkpoint and quarantine are in the same folder."""
    table, checkpoint, quarantine = _PARTS
    body = {
        "name": "orders",
        "lane": name.removeprefix("penstock "),
        "source": {"type": "kafka", "brokers": source.brokers, "topics": [source.topic], "start": "earliest"},
        "decode": {"format": "json", "schema": source.schema},
        "quarantine": {"table": quarantine},
        "sinks": [{"name": "orders_delta", "type": "delta", "path": table, "mode": "append"}],
        "checkpoint": checkpoint,
        "spark": dict(spark or {}),
    }
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    return file


def time_validate(folder: Path) -> float:
    """How long the command line takes to start and to read a pipeline file, at best."""
    file = write_pipeline(DIRECT, Source("localhost:9092", "orders", SCHEMA), folder)
    took = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([PENSTOCK_COMMAND, "validate", file], check=True, capture_output=True)
        took.append(time.perf_counter() - began)
    return min(took)


def from_progress(body: dict[str, Any]) -> Batch:
    """A batch out of Spark's progress."""
    took = {name: millis / 1000 for name, millis in body["durationMs"].items()}
    began = datetime.fromisoformat(body["timestamp"]).timestamp()
    total = took.pop("triggerExecution")
    return Batch(body["batchId"], body["numInputRows"], total, began + total, took)


def from_log(body: dict[str, Any]) -> Batch:
    """A batch out of Penstock's log."""
    finished = datetime.fromisoformat(body["finished_at"]).timestamp()
    return Batch(body["batch_id"], body["rows_in"], body["seconds"], finished, body["phases"], body["slots"])

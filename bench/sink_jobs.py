"""The jobs of the sinks part as processes: started in a folder of their own, timed, and asked what they did."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from deltalake import DeltaTable
from events import PARTITIONS, SCHEMA
from jobs import PENSTOCK_COMMAND, Batch, from_log, from_progress
from processes import BenchError, Process

_HERE = Path(__file__).parent
_LONGEST_SECONDS = 1800


def rotated(jobs: Sequence[str], repetition: int) -> list[str]:
    """The jobs in another order for each repetition."""
    turn = repetition % len(jobs)
    return [*jobs[turn:], *jobs[:turn]]


def batch_cap(rows: int) -> int:
    """The setting that gives batches of about `rows`. Spark rounds down in each partition: without a little more
    there would be one more batch for the few rows that are left."""
    return rows + rows // 50 + PARTITIONS


@dataclass(frozen=True)
class SinkRun:
    """One job of one case, once. `batch_seconds` is by its own account."""

    case: str
    job: str
    repetition: int
    rows: int
    seconds: float
    batch_seconds: list[float]
    slots: int
    phases: dict[str, float]

    @property
    def rate(self) -> float:
        """Rows a second in all: from the start of the process to its end."""
        return self.rows / self.seconds

    @property
    def steady_seconds(self) -> float:
        """The time of all batches."""
        return sum(self.batch_seconds)

    @property
    def steady_rate(self) -> float:
        """Rows a second of batch time."""
        return self.rows / self.steady_seconds

    def told(self) -> str:
        """For a line of progress."""
        return (
            f"{self.job:28}  {self.seconds:6.1f} s in all, {self.rate:9,.0f} rows/s;  "
            f"steady {self.steady_seconds:6.1f} s, {self.steady_rate:9,.0f} rows/s"
        )


@dataclass(frozen=True)
class Ran:
    """A job that has ended: how long its process lived, and its batches."""

    seconds: float
    batches: list[Batch]

    def as_run(self, case: str, job: str, repetition: int, rows: int) -> SinkRun:
        """With what it was run for."""
        phases: dict[str, float] = {}
        for batch in self.batches:
            for phase, took in batch.phases.items():
                phases[phase] = phases.get(phase, 0.0) + took
        took_each = [batch.seconds for batch in self.batches]
        slots = max((batch.slots for batch in self.batches), default=0)
        return SinkRun(case, job, repetition, rows, self.seconds, took_each, slots, phases)


@dataclass(frozen=True)
class Ground:
    """What a job reads, the folder that it has to itself, and a name that no target has seen."""

    brokers: str
    topic: str
    folder: Path
    pipeline: str
    max_offsets: int | None = None

    def run_append(self, table: Path) -> Ran:
        """The hand-written append to Delta, which is that of the backlog part."""
        where = (self.brokers, self.topic, SCHEMA, table, self.folder / "checkpoint", "available-now")
        return _progress_of(self._process("handwritten.py", *where))

    def run_hand_written(self, sink: str, **settings: Any) -> Ran:
        """A job of `handwritten_sinks.py`."""
        body = {
            "brokers": self.brokers,
            "topic": self.topic,
            "schema": SCHEMA,
            "checkpoint": self.folder / "checkpoint",
            "max_offsets": self.max_offsets,
            **settings,
        }
        return _progress_of(self._process("handwritten_sinks.py", sink, json.dumps(body, default=str)))

    def run_penstock(self, *sinks: dict[str, Any], derive: Mapping[str, str] | None = None, **environment: str) -> Ran:
        """`penstock run` with these sinks. Raises where it refused a record."""
        source: dict[str, Any] = {"type": "kafka", "brokers": self.brokers, "topics": [self.topic], "start": "earliest"}
        if self.max_offsets is not None:
            source["max_offsets"] = self.max_offsets
        quarantine = self.folder / "quarantine"
        body: dict[str, Any] = {
            "name": self.pipeline,
            "source": source,
            "decode": {"format": "json", "schema": SCHEMA},
            "quarantine": {"table": str(quarantine)},
            **({"transforms": [{"derive": dict(derive)}]} if derive else {}),
            "sinks": [
                {name: str(value) if isinstance(value, Path) else value for name, value in sink.items()}
                for sink in sinks
            ],
            "checkpoint": str(self.folder / "checkpoint"),
        }
        file = self.folder / "orders.yaml"
        file.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
        command: list[str | Path] = [PENSTOCK_COMMAND, "run", file, "--log-format", "json", "--available-now"]
        process = Process("penstock", command, self.folder, environment)
        with process:
            seconds = process.wait(_LONGEST_SECONDS)
        told = [json.loads(line) for line in process.lines() if line.startswith("{")]
        if DeltaTable.is_deltatable(str(quarantine)):
            codes = DeltaTable(quarantine).to_pyarrow_table(columns=["code"]).column("code")
            if len(codes):
                raise BenchError(f"penstock: it quarantined {len(codes):,} good records: {codes.value_counts()}")
        return Ran(seconds, [from_log(body) for body in told if body["event"] == "batch" and body["rows_in"]])

    def _process(self, script: str, *words: Any) -> Process:
        command: list[str | Path] = [sys.executable, _HERE / script, *(str(word) for word in words)]
        return Process("hand-written", command, self.folder)


def _progress_of(process: Process) -> Ran:
    with process:
        seconds = process.wait(_LONGEST_SECONDS)
    return Ran(seconds, [from_progress(json.loads(line)) for line in process.lines() if line.startswith("{")])

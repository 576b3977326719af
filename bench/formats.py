"""Part (d): the formats. The same orders as JSON, Avro and Protobuf, read and decoded alone, and through to Delta."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from deltalake import DeltaTable
from format_events import AVRO, AVRO_VERSIONS, COLUMNS, JSON, MESSAGE, MIXED, PROTOBUF, send_formats
from jobs import PENSTOCK_COMMAND, Batch, from_log, from_progress
from processes import BenchError, Process
from sink_checks import check, delta_rows
from sink_events import Pairs
from sink_jobs import rotated

DECODE, DELTA = "read and decode alone", "to Delta"
ENDS = (DECODE, DELTA)
FROM_JSON, FROM_AVRO = "hand-written from_json", "hand-written from_avro"
PENSTOCK_JSON, PENSTOCK_AVRO, PENSTOCK_PROTOBUF = "penstock json", "penstock avro", "penstock protobuf"
PENSTOCK_MIXED = "penstock avro, three versions"
_TOPICS = {
    FROM_JSON: JSON,
    FROM_AVRO: AVRO,
    PENSTOCK_JSON: JSON,
    PENSTOCK_AVRO: AVRO,
    PENSTOCK_PROTOBUF: PROTOBUF,
    PENSTOCK_MIXED: MIXED,
}
JOBS = tuple(_TOPICS)
_HAND_WRITTEN = {FROM_JSON: ("json", COLUMNS), FROM_AVRO: ("avro", AVRO_VERSIONS[-1])}

_HERE = Path(__file__).parent
_LONGEST_SECONDS = 1800

Say = Callable[[str], None]


@dataclass(frozen=True)
class FormatRun:
    """One job, once. `steady_seconds` are its batches by its own account, `checkpoint_seconds` by the files of
    Spark's checkpoint, for every job in the same way."""

    end: str
    job: str
    repetition: int
    rows: int
    bytes_each: float
    seconds: float
    steady_seconds: float
    checkpoint_seconds: float
    slots: int
    phases: dict[str, float]

    @property
    def rate(self) -> float:
        """Rows a second in all: from the start of the process to its end."""
        return self.rows / self.seconds

    @property
    def steady_rate(self) -> float:
        """Rows a second of batch time, by the checkpoint."""
        return self.rows / self.checkpoint_seconds

    @property
    def decode_rate(self) -> float | None:
        """Rows a second that one core decodes; the hand-written job does not tell."""
        took = self.phases.get("task_decode")
        return self.rows / took if took else None


def run_formats(brokers: str, registry: str, folder: Path, rows: int, repeat: int, say: Say) -> list[FormatRun]:
    """Fill a topic a format once, then drain them with every job, the order rotated at each repetition."""
    say(f"formats: sending {rows:,} events in each of {len(set(_TOPICS.values()))} topics")
    sent = {each.topic: each for each in send_formats(brokers, registry, (JSON, AVRO, MIXED, PROTOBUF), rows)}
    for each in sent.values():
        say(f"formats: {each.topic:18} {each.bytes_each:.0f} bytes each")
    runs = []
    for repetition in range(repeat):
        for end in ENDS:
            for job in rotated(JOBS, repetition):
                size = sent[_TOPICS[job]].bytes_each
                run = _Ground(brokers, registry, folder / "format", rows, size).run(end, job, repetition)
                say(
                    f"formats {repetition + 1}/{repeat}: {end:21}  {job:30}  {run.seconds:6.1f} s in all;  "
                    f"steady {run.checkpoint_seconds:6.1f} s, {run.steady_rate:9,.0f} rows/s"
                )
                runs.append(run)
    return runs


@dataclass(frozen=True)
class _Ground:
    """What a job reads, and the folder that it has to itself."""

    brokers: str
    registry: str
    folder: Path
    rows: int
    bytes_each: float

    def run(self, end: str, job: str, repetition: int) -> FormatRun:
        """Run one job, check what it left, and clean up."""
        self.folder.mkdir()
        by_hand = job in _HAND_WRITTEN
        process = self._by_hand(end, job) if by_hand else self._penstock(end, job)
        with process:
            seconds = process.wait(_LONGEST_SECONDS)
        told = [json.loads(line) for line in process.lines() if line.startswith("{")]
        if by_hand:
            batches = [from_progress(body) for body in told]
        else:
            batches = [from_log(body) for body in told if body["event"] == "batch" and body["rows_in"]]
        self._check(end, job, batches)
        run = FormatRun(
            end=end,
            job=job,
            repetition=repetition,
            rows=self.rows,
            bytes_each=self.bytes_each,
            seconds=seconds,
            steady_seconds=sum(batch.seconds for batch in batches),
            checkpoint_seconds=self._checkpoint_seconds(),
            slots=max(batch.slots for batch in batches),
            phases={
                phase: sum(batch.phases.get(phase, 0.0) for batch in batches)
                for phase in dict.fromkeys(name for batch in batches for name in batch.phases)
            },
        )
        shutil.rmtree(self.folder)
        return run

    def _by_hand(self, end: str, job: str) -> Process:
        format, schema = _HAND_WRITTEN[job]
        settings = {
            "brokers": self.brokers,
            "topic": _TOPICS[job],
            "schema": schema,
            "checkpoint": str(self.folder / "checkpoint"),
            "table": str(self.folder / "table"),
        }
        sink = "delta" if end == DELTA else "noop"
        words = [sys.executable, _HERE / "handwritten_formats.py", format, sink, json.dumps(settings)]
        return Process("hand-written", words, self.folder)

    def _penstock(self, end: str, job: str) -> Process:
        body: dict[str, Any] = {
            "name": "orders",
            "source": {"type": "kafka", "brokers": self.brokers, "topics": [_TOPICS[job]], "start": "earliest"},
            "decode": self._decode(job),
            "quarantine": {"table": "quarantine"},
            # Every row is decoded, and none is left to write.
            **({"transforms": [{"where": "order_id < 0"}]} if end == DECODE else {}),
            "sinks": [{"name": "orders_delta", "type": "delta", "path": "table", "mode": "append"}],
            "checkpoint": "checkpoint",
        }
        file = self.folder / "orders.yaml"
        file.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
        words: list[str | Path] = [PENSTOCK_COMMAND, "run", file, "--log-format", "json", "--available-now"]
        return Process("penstock", words, self.folder)

    def _decode(self, job: str) -> dict[str, Any]:
        if job == PENSTOCK_JSON:
            return {"format": "json", "schema": COLUMNS}
        registry = {"url": self.registry}
        if job == PENSTOCK_PROTOBUF:
            return {"format": "protobuf", "registry": registry, "message": MESSAGE}
        return {"format": "avro", "registry": registry}

    def _check(self, end: str, job: str, batches: list[Batch]) -> None:
        """Raise unless every event was read and none was refused, and the table holds each."""
        read = sum(batch.rows for batch in batches)
        refused = 0
        if DeltaTable.is_deltatable(str(self.folder / "quarantine")):
            refused = DeltaTable(self.folder / "quarantine").to_pyarrow_table(columns=["code"]).num_rows
        if read != self.rows or refused:
            raise BenchError(f"{job}, {end}: sent {self.rows:,}, read {read:,}, quarantined {refused:,}")
        if end == DELTA:
            numbers = np.arange(self.rows, dtype=np.int64)
            check(job, "table", Pairs(numbers, numbers), delta_rows(self.folder / "table"))

    def _checkpoint_seconds(self) -> float:
        """From `offsets/N` to `commits/N`, over all batches."""
        commits, offsets = (self.folder / "checkpoint" / name for name in ("commits", "offsets"))
        done = {file.name: file.stat().st_mtime for file in commits.iterdir() if file.name.isdigit()}
        return sum(at - (offsets / name).stat().st_mtime for name, at in done.items())

"""Part (e): the transforms. A join with a table, a window and a dedupe with state, to Delta; and an hour of state."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml
from deltalake import DeltaTable
from jobs import PENSTOCK_COMMAND, Batch, from_log, from_progress
from processes import BenchError, Process
from sink_jobs import batch_cap, rotated
from transform_events import COLUMNS, EVENTS, REPEATED, Orders, send_transforms, write_customers

ENRICH, WINDOW, DEDUPE = "enrich", "window", "dedupe"
HAND_WRITTEN, PENSTOCK = "hand-written", "penstock"
FEW, MANY = "hand-written, 8 partitions", "hand-written, 200 partitions"
HOUR = "penstock, an hour in many batches"
JOBS = {ENRICH: (HAND_WRITTEN, PENSTOCK), WINDOW: (FEW, MANY, PENSTOCK), DEDUPE: (FEW, MANY, PENSTOCK)}
STATE = "state"
CASES = (*JOBS, STATE)

_SIZE = timedelta(minutes=1)
_DELAYS = {WINDOW: timedelta(minutes=1), DEDUPE: timedelta(minutes=10)}
_PARTITIONS = {FEW: 8, MANY: 200}
_TOPICS = {ENRICH: EVENTS, WINDOW: EVENTS, DEDUPE: REPEATED}
_BATCHES, _BATCHES_OF_AN_HOUR = 5, 30
"""Of a case with state: for its rate, and to see what the state comes to."""
_HERE = Path(__file__).parent
_LONGEST_SECONDS = 1800

Say = Callable[[str], None]


@dataclass(frozen=True)
class Kept:
    """What a run remembered after a batch, as Spark counts it."""

    batch_id: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class TransformRun:
    """One job of one case, once. `rows` are the records read, `steady_seconds` the batches by the files of Spark's
    checkpoint, for every job in the same way, those without records among them."""

    case: str
    job: str
    repetition: int
    rows: int
    seconds: float
    steady_seconds: float
    batches: int
    slots: int
    phases: dict[str, float]
    kept: list[Kept] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Rows a second in all: from the start of the process to its end."""
        return self.rows / self.seconds

    @property
    def steady_rate(self) -> float:
        """Rows a second of batch time, by the checkpoint."""
        return self.rows / self.steady_seconds


def run_transforms(
    brokers: str, folder: Path, rows: int, repeat: int, only: str | None, say: Say
) -> list[TransformRun]:
    """Fill the topics once, then drain them with every job of every case, the order rotated at each repetition; then
    the cases with state once more, in many batches."""
    say(f"transforms: sending {rows:,} events, and as many with repeats")
    sent = send_transforms(brokers, rows)
    customers = folder / "customers"
    write_customers(customers)
    runs = []
    for repetition in range(repeat):
        for case in (case for case in JOBS if only in (None, case)):
            ground = _Ground(brokers, folder / "transform", customers, Orders(rows), sent[_TOPICS[case]])
            for job in rotated(JOBS[case], repetition):
                run = ground.run(case, job, repetition)
                say(
                    f"transforms {repetition + 1}/{repeat}: {case:7} {job:28}  {run.seconds:6.1f} s in all;  "
                    f"steady {run.steady_seconds:6.1f} s, {run.steady_rate:9,.0f} rows/s, {run.batches} batches"
                )
                runs.append(run)
    for case in _DELAYS if only in (None, STATE) else ():
        ground = _Ground(brokers, folder / "transform", customers, Orders(rows), sent[_TOPICS[case]])
        run = ground.run(case, HOUR, 0)
        rows_kept = [kept.rows for kept in run.kept]
        say(
            f"transforms, an hour: {case:7} {len(rows_kept)} batches, state rows first {rows_kept[0]:,}, "
            f"peak {max(rows_kept):,}, last {rows_kept[-1]:,}"
        )
        runs.append(run)
    return runs


@dataclass(frozen=True)
class _Ground:
    """What a job reads, and the folder that it has to itself."""

    brokers: str
    folder: Path
    customers: Path
    orders: Orders
    records: int

    def run(self, case: str, job: str, repetition: int) -> TransformRun:
        """Run one job, check what it left, and clean up."""
        self.folder.mkdir()
        batches = _BATCHES_OF_AN_HOUR if job == HOUR else _BATCHES
        cap = batch_cap(self.records // batches) if case in _DELAYS else None
        ours = job in (PENSTOCK, HOUR)
        process = self._penstock(case, cap) if ours else self._by_hand(case, job, cap)
        with process:
            seconds = process.wait(_LONGEST_SECONDS)
        told = [json.loads(line) for line in process.lines() if line.startswith("{")]
        if ours:
            found = [from_log(body) for body in told if body["event"] == "batch"]
            self._check_read(case, found)
        else:
            found = [from_progress(body) for body in told]
        self._check_table(case, job)
        steady, count = self._checkpoint_seconds()
        run = TransformRun(
            case=case,
            job=job,
            repetition=repetition,
            rows=self.records,
            seconds=seconds,
            steady_seconds=steady,
            batches=count,
            slots=max(batch.slots for batch in found),
            phases={
                phase: sum(batch.phases.get(phase, 0.0) for batch in found)
                for phase in dict.fromkeys(name for batch in found for name in batch.phases)
            },
            kept=[Kept(body["batch_id"], body["rows"], body["bytes"]) for body in told if body.get("event") == "state"],
        )
        shutil.rmtree(self.folder)
        return run

    def _by_hand(self, case: str, job: str, cap: int | None) -> Process:
        settings: dict[str, Any] = {
            "brokers": self.brokers,
            "topic": _TOPICS[case],
            "schema": COLUMNS,
            "checkpoint": str(self.folder / "checkpoint"),
            "table": str(self.folder / "table"),
        }
        if case in _DELAYS:
            settings |= {"size": _text(_SIZE), "delay": _text(_DELAYS[case]), "max_offsets": cap}
            settings["partitions"] = _PARTITIONS[job]
        else:
            settings["customers"] = str(self.customers)
        words: list[str | Path] = [sys.executable, _HERE / "handwritten_transforms.py", case, json.dumps(settings)]
        return Process("hand-written", words, self.folder)

    def _penstock(self, case: str, cap: int | None) -> Process:
        source = {"type": "kafka", "brokers": self.brokers, "topics": [_TOPICS[case]], "start": "earliest"}
        body: dict[str, Any] = {
            "name": "orders",
            "source": {**source, **({"max_offsets": cap} if cap is not None else {})},
            "decode": {"format": "json", "schema": COLUMNS},
            "quarantine": {"table": "quarantine"},
            "transforms": _steps(case),
            "sinks": [{"name": "orders_delta", "type": "delta", "path": "table", "mode": "append"}],
            "checkpoint": "checkpoint",
        }
        if case == ENRICH:
            body["tables"] = {"customers": {"type": "delta", "path": str(self.customers)}}
        file = self.folder / "orders.yaml"
        file.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
        words: list[str | Path] = [PENSTOCK_COMMAND, "run", file, "--log-format", "json", "--available-now"]
        return Process("penstock", words, self.folder)

    def _check_read(self, case: str, batches: list[Batch]) -> None:
        """Raise unless every record was read and none was refused."""
        read, refused = sum(batch.rows for batch in batches), 0
        if DeltaTable.is_deltatable(str(self.folder / "quarantine")):
            refused = DeltaTable(self.folder / "quarantine").to_pyarrow_table(columns=["code"]).num_rows
        if read != self.records or refused:
            raise BenchError(f"penstock, {case}: sent {self.records:,}, read {read:,}, quarantined {refused:,}")

    def _check_table(self, case: str, job: str) -> None:
        """Raise unless the table holds exactly the rows that it should."""
        if case == ENRICH:
            wanted, keys = self.orders.enriched(), ["order_id"]
        elif case == WINDOW:
            wanted, keys = self.orders.windows(_SIZE, _DELAYS[WINDOW]), ["window_start", "store"]
        else:
            wanted, keys = self.orders.deduplicated(), ["order_id"]
        found = DeltaTable(self.folder / "table").to_pyarrow_table(columns=wanted.column_names).cast(wanted.schema)
        order = [(key, "ascending") for key in keys]
        if not found.sort_by(order).equals(wanted.sort_by(order)):
            raise BenchError(f"{job}, {case}: the table is wrong: wanted {_sums(wanted)}, found {_sums(found)}")

    def _checkpoint_seconds(self) -> tuple[float, int]:
        """From `offsets/N` to `commits/N`, over all batches, and how many there are."""
        commits, offsets = (self.folder / "checkpoint" / name for name in ("commits", "offsets"))
        done = {file.name: file.stat().st_mtime for file in commits.iterdir() if file.name.isdigit()}
        return sum(at - (offsets / name).stat().st_mtime for name, at in done.items()), len(done)


def _steps(case: str) -> list[dict[str, Any]]:
    if case == ENRICH:
        return [{"enrich": {"table": "customers", "on": ["customer_id"], "take": ["name", "credit"]}}]
    delay = _text(_DELAYS[case])
    watermark = {"watermark": {"column": "event_time", "delay": delay}}
    if case == DEDUPE:
        return [watermark, {"dedupe": {"keys": ["order_id"], "within": delay}}]
    aggregates = {"orders": "count(*)", "total": "sum(cents)"}
    return [watermark, {"window": {"size": _text(_SIZE), "by": ["store"], "aggregates": aggregates}}]


def _text(span: timedelta) -> str:
    return f"{span // timedelta(minutes=1)} minutes"


def _sums(table: pa.Table) -> str:
    sums = (
        f"{name} {pc.sum(table.column(name)).as_py():,}"
        for name in table.column_names
        if pa.types.is_integer(table.schema.field(name).type)
    )
    return f"{table.num_rows:,} rows ({', '.join(sums)})"

"""Chores of a run: when the tables are looked after, and the checkpoint copied."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.assembly.build import build
from penstock.checkpoint import SparkCheckpoint
from penstock.checkpoint.backup import backups_of, list_backups, make_backup
from penstock.config import load
from penstock.supervision.upkeep import Chores

FILE = """
name: orders
source: {type: kafka, brokers: "localhost:9", topics: [orders]}
decode: {format: json, schema: "id BIGINT"}
quarantine: {table: lake/quarantine}
sinks: [{name: out, type: delta, path: lake/out}]
checkpoint: cp
"""


def chores(folder: Path, said: list[str], more: str) -> Chores:
    file = folder / "orders.yaml"
    file.write_text(FILE + more)
    return Chores(build(load(file)), None, said.append)


def small_files(folder: Path, count: int = 12) -> Path:
    table = folder / "lake/out"
    for number in range(count):
        write_deltalake(table, pa.table({"id": [number]}), mode="append")
    return table


def test_maintenance_runs_when_due_and_not_before_though_each_run_is_short(tmp_path: Path) -> None:
    said: list[str] = []
    table = small_files(tmp_path)
    chores(tmp_path, said, "maintenance: {every: 1 hour}").between_batches()
    chores(tmp_path, said, "maintenance: {every: 1 hour}").between_batches()
    assert (said, len(DeltaTable(table).file_uris())) == ([], 12)
    SparkCheckpoint(str(tmp_path / "cp")).note_maintained(time.time() - 3601)
    chores(tmp_path, said, "maintenance: {every: 1 hour}").between_batches()
    assert len(DeltaTable(table).file_uris()) == 1
    assert [line for line in said if "12 files compacted into 1" in line]
    assert sorted(DeltaTable(table).to_pyarrow_table().column("id").to_pylist()) == list(range(12))


def test_maintenance_that_fails_is_told_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    one = chores(tmp_path, said, "maintenance: {every: 1 hour}")
    SparkCheckpoint(str(tmp_path / "cp")).note_maintained(0)

    def broken(*_: Any) -> Any:
        raise OSError("the disk is gone")

    monkeypatch.setattr("penstock.supervision.upkeep.upkeep", broken)
    one.between_batches()
    assert said == ["maintenance failed: OSError: the disk is gone"]


def put_batch(checkpoint: Path) -> None:
    """A checkpoint with one committed batch."""
    for name, text in {
        "sources/0/0": '\0v1\n{"orders":{"0":0}}',
        "offsets/0": 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"orders":{"0":3}}',
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
        "metadata": '{"id":"7d8d8c30-0000-4000-8000-000000000000"}',
    }.items():
        file = checkpoint / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_backup_is_due_by_the_newest_copy_that_is_there(tmp_path: Path) -> None:
    checkpoint = tmp_path / "cp"
    put_batch(checkpoint)
    place = backups_of(str(checkpoint))
    for age in (timedelta(days=2), timedelta()):
        made = make_backup(SparkCheckpoint(str(checkpoint)), place, "orders")
        manifest = Path(made.path, "manifest.json")
        was = made.created_at.isoformat()
        manifest.write_text(manifest.read_text().replace(was, (made.created_at - age).isoformat()))
    said: list[str] = []
    with chores(tmp_path, said, "checkpoint_backup: {every: 1 hour}"):
        time.sleep(1.5)
    assert said == []


def test_backup_on_a_schedule_waits_for_the_first_commit_and_keeps_the_newest(tmp_path: Path) -> None:
    said: list[str] = []
    checkpoint = tmp_path / "cp"
    with chores(tmp_path, said, "checkpoint_backup: {every: 600 ms, keep: 2}"):
        time.sleep(1.2)
        assert list_backups(backups_of(str(checkpoint))) == []
        put_batch(checkpoint)
        deadline = time.monotonic() + 20
        while len(said) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert len(said) >= 3 and all(line.startswith("checkpoint copied: ") for line in said)
    assert [backup.batch for backup in list_backups(backups_of(str(checkpoint)))] == [0, 0]

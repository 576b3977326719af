"""Compactions beside a stream that merges every second, for minutes: the stream never notices, files stay few.

`PENSTOCK_COMPACTION_MINUTES` says how long; 10 by default.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.services.running import PENSTOCK, Running, wait_for
from tests.tables import read_table

pytestmark = [pytest.mark.services, pytest.mark.crash, pytest.mark.long]

MINUTES = float(os.environ.get("PENSTOCK_COMPACTION_MINUTES", "10"))
COLUMNS = "order_id BIGINT NOT NULL, version BIGINT, day STRING"
DAYS = 3


class Orders:
    """Sends orders every quarter of a second: new ones, and newer versions of old ones."""

    def __init__(self, topics: Any, topic: str) -> None:
        self.newest: dict[int, int] = {}
        self._topics, self._topic = topics, topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Orders:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _send(self) -> None:
        while not self._over.is_set():
            first = len(self.newest)
            again = range(0, first, max(1, first // 3)) if first % 400 == 0 else ()
            for number in (*again, *range(first, first + 40)):
                self.newest[number] = self.newest.get(number, 0) + 1
            rows = [
                {"order_id": n, "version": self.newest[n], "day": f"day {n % DAYS}"}
                for n in (*again, *range(first, first + 40))
            ]
            self._topics.send(self._topic, rows)
            self._over.wait(0.25)


def told(run: Running, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in run.printed.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


def merges(table: Path) -> int:
    return sum(1 for entry in DeltaTable(table).history() if entry["operation"] == "MERGE")


def test_compactions_beside_a_merging_stream_fail_no_batch_and_keep_files_few(
    tmp_path: Path, topics: Any, pipeline_file: Callable[..., Path]
) -> None:
    topic = topics.create(partitions=1)
    sink = {"name": "out", "type": "delta", "path": "lake/out", "mode": "merge", "keys": ["order_id", "day"]}
    file = pipeline_file(
        topic,
        decode={"format": "json", "schema": COLUMNS},
        sinks=[{**sink, "partition_by": ["day"]}],
        trigger={"every": "1 second"},
    )
    table, files, codes = tmp_path / "lake/out", [], []
    with Running(tmp_path, "run", str(file), "--log-format", "json") as run:
        run.await_text('"started"')
        with Orders(topics, topic) as orders:
            wait_for(lambda: len(told(run, "batch")) >= 3, "the first batches", 120)
            end = time.monotonic() + MINUTES * 60
            while time.monotonic() < end:
                assert run.process.poll() is None, run.complained
                command = [PENSTOCK, "compact", str(file), "--within", "30s", "--json"]
                codes.append(subprocess.run(command, capture_output=True, cwd=tmp_path, timeout=120).returncode)
                files.append(len(DeltaTable(table).file_uris()))
        latest = len(orders.newest)
        run.send(signal.SIGTERM)
        assert run.process.wait(90) == 0, run.complained
    with Running(tmp_path, "run", str(file), "--available-now", name="drain") as drain:
        assert drain.process.wait(120) == 0, drain.complained

    batches = told(run, "batch")
    assert not told(run, "retrying"), "a batch failed"
    assert set(codes) <= {0, 75}, codes
    assert latest == len(orders.newest)
    rows = read_table(table).select(["order_id", "version"]).to_pylist()
    assert {row["order_id"]: row["version"] for row in rows} == orders.newest and len(rows) == latest
    print(f"{len(batches)} batches, {len(codes)} compactions {codes}, files {files}, {merges(table)} merges")
    assert codes.count(0) > 0, "no compaction came to its end"
    assert max(files[len(files) // 2 :]) <= 60 * DAYS

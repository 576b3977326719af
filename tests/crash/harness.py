"""Starts the driver as a user would, kills it, starts it again, and reads the tables with two readers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable
from tests.crash.checker import Coordinates
from tests.tables import read_table

DRIVER = Path(__file__).with_name("driver.py")
_SPARK_READER = """
import json, sys
from pathlib import Path
from penstock.spark.session import start_session, stop_session
spark = start_session("reader", {}, tables=True, log=Path(sys.argv[3]))
def rows(path, columns):
    return [list(r) for r in spark.read.format("delta").load(path).selectExpr(*columns).collect()]
print(json.dumps([
    rows(sys.argv[1], ["_penstock.topic", "_penstock.partition", "_penstock.offset"]),
    rows(sys.argv[2], ["topic", "partition", "offset"]),
]))
stop_session(spark)
"""


@dataclass
class Crashes:
    """One pipeline file, run and killed again and again."""

    file: Path
    seed: int = 7
    kills: list[str] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)

    def kill_at(self, point: str, visit: int = 1, timeout: float = 120) -> bool:
        """Run until the named point kills the driver. False if the run came to its end instead."""
        status = self._start(f"{point}:{visit}").wait(timeout)
        if status == 0:
            return False
        assert status == -9, f"the driver ended with {status} instead of by SIGKILL"
        self.kills.append(point)
        return True

    def kill_after(self, seconds: float) -> bool:
        """Run, and kill the driver from outside after a while. False if it had ended before."""
        driver = self._start("none:1")
        try:
            driver.wait(seconds)
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()
            self.kills.append("random")
            return True
        return False

    def finish(self) -> float:
        """Run to the end; the seconds that it took."""
        began = time.monotonic()
        driver = self._start("none:1")
        assert driver.wait(300) == 0
        return time.monotonic() - began

    def random_delay(self, low: float, high: float) -> float:
        return random.Random(self.seed + len(self.kills)).uniform(low, high)

    def _start(self, kill: str) -> subprocess.Popen[bytes]:
        log = self.file.with_suffix(".log").open("ab")
        return subprocess.Popen(
            [sys.executable, str(DRIVER), "run", str(self.file), "--available-now", "--log-format", "text"],
            env={**os.environ, "PENSTOCK_TEST_KILL": kill, "PYTHONPATH": str(DRIVER.parents[2])},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def read_with_deltalake(table: Path, quarantine: Path) -> list[Coordinates]:
    """The coordinates of every row and every quarantined record."""
    rows = read_table(table, ["_penstock"]).column(0).to_pylist()
    found = [(r["topic"], r["partition"], r["offset"]) for r in rows]
    if (quarantine / "_delta_log").exists():
        bad = read_table(quarantine, ["topic", "partition", "offset"]).to_pylist()
        found += [(r["topic"], r["partition"], r["offset"]) for r in bad]
    return found


def read_with_spark(table: Path, quarantine: Path, log: Path) -> list[Coordinates]:
    """The same by Spark's Delta, in a fresh process."""
    command = [sys.executable, "-c", _SPARK_READER, str(table), str(quarantine), str(log)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=180).stdout
    good, bad = json.loads(printed.splitlines()[-1])
    return [tuple(r) for r in (*good, *bad)]


def commit_ranges(table: Path) -> list[tuple[int, dict[tuple[str, int], tuple[int, int]]]]:
    """Each batch in the table's history with its offset ranges."""
    entries = []
    for commit in DeltaTable(table).history():
        if "penstock.token" in commit:
            token = json.loads(commit["penstock.token"])
            entries.append((token["batch_id"], {(t, p): (s, e) for t, p, s, e in token["ranges"]}))
    return entries

"""Kafka to Delta while the driver is killed: nothing lost, nothing twice, by two readers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.checker import check, ranges_in_order
from tests.crash.harness import Crashes, commit_ranges, read_with_deltalake, read_with_spark

pytestmark = [pytest.mark.services, pytest.mark.crash]
PARTITIONS = 4
POINTS = ["offsets", "staged", "write", "between", "committed"]


def fill(topics: Any, rows: int) -> str:
    topic: str = topics.create(PARTITIONS, prefix="crash")
    order = {"customer_id": "c", "amount": 1.5, "event_time": "2026-01-01T00:00:00Z"}
    values: list[Any] = [{"order_id": n, **order} if n % 1000 else b"{broken" for n in range(rows)]
    topics.send(topic, values)
    return topic


def crash_and_check(file: Path, topic: str, rows: int, kills: list[str], capsys: Any) -> None:
    crashes = Crashes(file)
    began = time.monotonic()
    for number, point in enumerate(kills):
        killed = (
            crashes.kill_after(crashes.random_delay(5, 13))
            if point == "random"
            else crashes.kill_at(point, visit=1 + number % 2)
        )
        assert killed, f"the run ended before kill {number + 1} ({point}): give it more batches"
    last = crashes.finish()
    table, quarantine = file.parent / "lake/out", file.parent / "lake/quarantine"
    sent = {(topic, p): rows // PARTITIONS for p in range(PARTITIONS)}
    by_deltalake = check(read_with_deltalake(table, quarantine), sent)
    by_spark = check(read_with_spark(table, quarantine, file.parent / "reader.log"), sent)
    with capsys.disabled():
        print(
            f"\n{len(crashes.kills)} kills, {rows:,} rows, lost {len(by_spark.lost)}, twice {len(by_spark.twice)}, "
            f"last recovery and drain {last:.1f} s, {time.monotonic() - began:.0f} s in all"
        )
    assert by_deltalake.clean, by_deltalake
    assert by_spark.clean, by_spark
    assert by_deltalake.rows == by_spark.rows == rows
    assert ranges_in_order(commit_ranges(table))


def delete_last_commit(file: Path) -> None:
    commits = file.parent / "checkpoints/orders/commits"
    newest = max(int(f.name) for f in commits.iterdir() if f.name.isdigit())
    (commits / str(newest)).unlink()
    (commits / f".{newest}.crc").unlink(missing_ok=True)


def test_delta_append_driver_killed_loses_nothing(topics: Any, pipeline_file: Callable[..., Path], capsys: Any) -> None:
    rows = 20_000
    topic = fill(topics, rows)
    file = pipeline_file(topic, source={"max_offsets": 2_000})
    crash_and_check(file, topic, rows, ["offsets", "write", "committed"], capsys)

    table = file.parent / "lake/out"
    before = (sorted(read_with_deltalake(table, file.parent / "lake/quarantine")), commit_ranges(table))
    delete_last_commit(file)
    Crashes(file).finish()
    after = (sorted(read_with_deltalake(table, file.parent / "lake/quarantine")), commit_ranges(table))
    assert after == before


@pytest.mark.long
def test_delta_append_twenty_kills_lose_nothing(topics: Any, pipeline_file: Callable[..., Path], capsys: Any) -> None:
    rows = 200_000
    topic = fill(topics, rows)
    file = pipeline_file(topic, source={"max_offsets": 2_000})
    crash_and_check(file, topic, rows, POINTS * 3 + ["random"] * 8, capsys)


@pytest.mark.long
def test_delta_append_frame_lane_killed_loses_nothing(
    topics: Any, pipeline_file: Callable[..., Path], capsys: Any
) -> None:
    rows = 40_000
    topic = fill(topics, rows)
    file = pipeline_file(topic, source={"max_offsets": 2_000}, lane="frame")
    crash_and_check(file, topic, rows, POINTS, capsys)

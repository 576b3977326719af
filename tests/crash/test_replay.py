"""A replay into the table of a live run, killed again and again: every row is there once, replayed or live."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.services.running import Running, wait_for
from tests.tables import read_table

from penstock.model import COORDINATES

pytestmark = [pytest.mark.services, pytest.mark.crash, pytest.mark.long]
ROWS, PARTITIONS = 60_000, 4


def orders(start: int, end: int) -> list[dict[str, Any]]:
    return [
        {"order_id": n, "customer_id": f"c{n}", "amount": 1.0, "event_time": "2026-01-01T00:00:00Z"}
        for n in range(start, end)
    ]


def batches_done(folder: Path) -> int:
    found = list((folder / "checkpoints/orders-replays").glob("*/progress.json"))
    return int(json.loads(found[0].read_text())["done"]) if found else 0


def test_replay_into_a_live_table_killed_and_resumed_is_right_to_the_row(
    topics: Any, pipeline_file: Callable[..., Path], tmp_path: Path
) -> None:
    topic = topics.create(PARTITIONS)
    topics.send(topic, orders(0, ROWS))
    file = pipeline_file(
        topic,
        source={"max_offsets": 4_000},
        transforms=[{"derive": {"mark": "'live'"}}],
        sinks=[{"name": "out", "type": "delta", "path": "lake/out"}],
        trigger={"every": "500 ms"},
    )
    changed = file.with_name("again.yaml")
    changed.write_text(file.read_text().replace("'live'", "'again'"))
    table, sent = tmp_path / "lake/out", ROWS

    def rows() -> int:
        return read_table(table).num_rows if table.exists() else 0

    with Running(tmp_path, "run", str(file), name="live") as live:
        wait_for(lambda: rows() >= ROWS, "the live run", 180)
        # It starts at offset 1,000 of each partition, and ends where the live run stood when it was first asked for.
        starts = ",".join(f"{partition}=1000" for partition in range(PARTITIONS))
        command = ("replay", str(changed), "--from", starts, "--to", "committed")
        for kill in range(4):
            before = batches_done(tmp_path)
            with Running(tmp_path, *command, name=f"replay{kill}") as replay:
                wait_for(
                    lambda at=before: batches_done(tmp_path) >= at + 2 or replay.process.poll() is not None,
                    "two more batches",
                    120,
                )
                assert replay.process.poll() is None, replay.printed + replay.complained
                replay.look_around()
                os.killpg(replay.process.pid, signal.SIGKILL)
                topics.send(topic, orders(sent, sent + 400))
                sent += 400
        with Running(tmp_path, *command, name="last") as replay:
            assert replay.process.wait(240) == 0, replay.printed + replay.complained
            assert "continues an earlier start" in replay.printed
        wait_for(lambda: rows() >= sent, "the live run's end", 60)
        live.send(signal.SIGTERM)
        assert live.process.wait(60) == 0, live.complained
    [plan] = (tmp_path / "checkpoints/orders-replays").glob("*/plan.json")
    replayed = {
        (partition, offset)
        for _, partition, start, end in json.loads(plan.read_text())["ranges"]
        for offset in range(start, end)
    }
    assert len(replayed) == ROWS - 1_000 * PARTITIONS
    found = sorted(
        (row[COORDINATES]["partition"], row[COORDINATES]["offset"], row["mark"])
        for row in read_table(table).select([COORDINATES, "mark"]).to_pylist()
    )
    assert found == [
        (partition, offset, "again" if (partition, offset) in replayed else "live")
        for partition in range(PARTITIONS)
        for offset in range(sent // PARTITIONS)
    ]

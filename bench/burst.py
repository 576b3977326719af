"""Part: burst. Ten times the normal rate for a minute, onto a pipeline whose sink is slow.

`python bench/run.py --only burst`. First several fixed caps, of which the best is taken; then adaptive flow, and a cap
four times too high and one four times too low. All with the same load, one after the other, each with a topic, a table
and a checkpoint of its own. The table is checked to the row after every run.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from burst_run import ADAPTIVE, BEST, HIGH, LOW, TRIED, BurstRun, Setting, best_of
from burst_watch import Tree, Watch
from databases import Server, running_server
from events import SCHEMA, create_topic, delete_topic
from jobs import PENSTOCK_COMMAND
from slow_sink import TABLE, SlowTable

FULL = Setting(1_000, 15, 60, 300, 0.75, 6_500, 6, 12, caps=(36_000, 44_000, 54_000))
"""The larger the cap the better the rate, until a batch is over `max_batch`: the caps are the largest that are not, and
those around it, each a fifth larger than the one before."""
QUICK = Setting(500, 4, 8, 60, 0.3, 3_000, 2, 5, caps=(6_000, 9_000))
Say = Callable[[str], None]


def run_burst(brokers: str, folder: Path, setting: Setting, say: Say) -> list[BurstRun]:
    """Run every variant."""
    with running_server(folder / "postgres") as server:
        bench = _Bench(brokers, folder / "burst", setting, server, say)
        tried = [bench.run(TRIED, cap) for cap in setting.caps]
        best = best_of(tried, setting)
        assert best.cap is not None
        say(f"burst: the best fixed cap is {best.cap:,}")
        return [
            bench.run(ADAPTIVE, None),
            *(replace(run, variant=BEST) if run is best else run for run in tried),
            bench.run(HIGH, 4 * best.cap),
            bench.run(LOW, best.cap // 4),
        ]


@dataclass(frozen=True)
class _Bench:
    brokers: str
    folder: Path
    setting: Setting
    server: Server
    say: Say

    def run(self, variant: str, cap: int | None) -> BurstRun:
        """One variant, once."""
        name = f"{variant}, {cap:,}" if cap is not None else variant
        topic = f"burst-{cap or 'adaptive'}"
        self.folder.mkdir()
        create_topic(self.brokers, topic)
        run = self._watched(variant, cap, topic)
        delete_topic(self.brokers, topic)
        shutil.rmtree(self.folder)
        took = f"{run.catch_up_seconds:.1f} s" if run.catch_up_seconds is not None else "not in time"
        self.say(
            f"burst: {name}: caught up in {took}, {len(run.moments)} batches, the longest {run.longest_batch:.1f} s, "
            f"at most {run.most_waiting:,} waiting, {run.memory_peak / 2**20:,.0f} MiB"
        )
        return run

    def _watched(self, variant: str, cap: int | None, topic: str) -> BurstRun:
        script = Path(__file__).with_name("burst_events.py")
        load = (str(self.setting.rate), str(self.setting.burst_seconds))
        sending: list[str | Path] = [sys.executable, script, self.brokers, topic, *load]
        with self.server.database() as database:
            table = SlowTable(database.url)
            table.make(self.setting.fixed_seconds, self.setting.rows_a_second)
            running: list[str | Path] = [PENSTOCK_COMMAND, "run", self._pipeline(cap, topic), "--log-format", "json"]
            with (
                Tree("producer", sending, self.folder) as producer,
                Tree("penstock", running, self.folder, {"ORDERS_DB": database.url}) as pipeline,
            ):
                run = Watch(variant, pipeline, producer).through(self.setting, cap, table)
            table.check(variant, run.sent)
        return run

    def _pipeline(self, cap: int | None, topic: str) -> Path:
        sink = {"name": "orders_pg", "type": "postgres", "url": "${env:ORDERS_DB}", "table": TABLE}
        body: dict[str, Any] = {
            "name": "orders",
            "source": {"type": "kafka", "brokers": self.brokers, "topics": [topic], "start": "earliest"},
            "decode": {"format": "json", "schema": SCHEMA},
            "quarantine": {"table": "quarantine"},
            "sinks": [{**sink, "mode": "upsert", "keys": ["order_id"]}],
            "checkpoint": "checkpoint",
        }
        if cap is None:
            body["flow"] = {
                "target_batch": f"{self.setting.target_batch * 1000:.0f} ms",
                "max_batch": f"{self.setting.max_batch * 1000:.0f} ms",
            }
        else:
            body["source"]["max_offsets"] = cap
        file = self.folder / "orders.yaml"
        file.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
        return file

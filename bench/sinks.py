"""Part (c): every sink against the job that one would write by hand for it, on the same events."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from databases import Database, Server, running_server
from events import create_topic, delete_topic
from pruning import PRUNE, run_pruning
from sink_checks import check, delta_rows, iceberg_rows, postgres_rows, topic_rows
from sink_events import Pairs, send_orders
from sink_jobs import Ground, Ran, SinkRun, batch_cap, rotated

MERGE, ICEBERG, KAFKA, POSTGRES, THREE = "merge", "iceberg", "kafka", "postgres", "three"
SINKS = (MERGE, PRUNE, ICEBERG, KAFKA, POSTGRES, THREE)
HAND_WRITTEN, TUNED, PENSTOCK = "hand-written", "hand-written, tuned producer", "penstock"
HAND_DELTA, HAND_ICEBERG, HAND_KAFKA = "hand-written, Delta", "hand-written, Iceberg", "hand-written, Kafka"

_TOPIC = "orders"
_BATCHES = 4
_PRODUCER = {"linger.ms": "50", "batch.size": "524288", "buffer.memory": "134217728", "compression.type": "lz4"}

Say = Callable[[str], None]
Case = Callable[[str, Ground], Ran]


def run_sinks(brokers: str, folder: Path, rows: int, repeat: int, asked: str | None, say: Say) -> list[SinkRun]:
    """Run every case, or the one that was asked for; the order of its jobs is rotated at each repetition."""
    runs: list[SinkRun] = []
    if asked in (None, PRUNE):
        runs += run_pruning(brokers, folder, rows // 4, repeat, say)
    if asked == PRUNE:
        return runs
    say(f"sinks: sending {rows:,} events, 30 % of them updates")
    sent = send_orders(brokers, _TOPIC, rows)
    with ExitStack() as stack:
        cases = _Cases(brokers, sent, batch_cap(rows // _BATCHES), None)
        if asked in (None, POSTGRES):
            cases = replace(cases, server=stack.enter_context(running_server(folder / "postgres")))
        for name, (jobs, case) in cases.all().items():
            if asked in (None, name):
                runs += _repeat(name, jobs, case, brokers, folder / "sink", rows, repeat, say)
    return runs


def _repeat(
    name: str, jobs: tuple[str, ...], case: Case, brokers: str, folder: Path, rows: int, repeat: int, say: Say
) -> list[SinkRun]:
    runs = []
    for repetition in range(repeat):
        for job in rotated(jobs, repetition):
            folder.mkdir()
            began = time.monotonic()
            ran = case(job, Ground(brokers, _TOPIC, folder, f"orders-{name}-{repetition}"))
            run = ran.as_run(name, job, repetition, rows)
            checked = time.monotonic() - began - ran.seconds
            say(f"{name} {repetition + 1}/{repeat}: {run.told()};  checked in {checked:.1f} s")
            runs.append(run)
            shutil.rmtree(folder)
    return runs


@dataclass(frozen=True)
class _Cases:
    """How each case runs one of its jobs and checks what it left."""

    brokers: str
    sent: Pairs
    max_offsets: int
    server: Server | None

    def all(self) -> dict[str, tuple[tuple[str, ...], Case]]:
        """The jobs of each case, the one to be held against first."""
        return {
            MERGE: ((HAND_WRITTEN, PENSTOCK), self._merge),
            ICEBERG: ((HAND_WRITTEN, PENSTOCK), self._iceberg),
            KAFKA: ((HAND_WRITTEN, TUNED, PENSTOCK), self._kafka),
            POSTGRES: ((HAND_WRITTEN, PENSTOCK), self._postgres),
            THREE: ((HAND_DELTA, HAND_ICEBERG, HAND_KAFKA, PENSTOCK), self._three),
        }

    def _merge(self, job: str, ground: Ground) -> Ran:
        ground, table = replace(ground, max_offsets=self.max_offsets), ground.folder / "table"
        if job == PENSTOCK:
            ran = ground.run_penstock({**_delta(table), "mode": "merge", "keys": ["order_id"]})
        else:
            ran = ground.run_hand_written("merge", table=table, dated=False)
        check(job, "table", self.sent.newest(), delta_rows(table))
        return ran

    def _iceberg(self, job: str, ground: Ground) -> Ran:
        warehouse = ground.folder / "warehouse"
        if job == PENSTOCK:
            ran = ground.run_penstock(_iceberg(warehouse))
        else:
            warehouse.mkdir()
            ran = ground.run_hand_written("iceberg", warehouse=warehouse)
        check(job, "Iceberg table", self.sent, iceberg_rows(warehouse))
        return ran

    def _kafka(self, job: str, ground: Ground) -> Ran:
        create_topic(self.brokers, topic := ground.pipeline)
        if job == PENSTOCK:
            ran = ground.run_penstock(_kafka(topic))
        else:
            ran = ground.run_hand_written("kafka", to=topic, producer=_PRODUCER if job == TUNED else {})
        check(job, "topic", self.sent, topic_rows(self.brokers, topic))
        delete_topic(self.brokers, topic)
        return ran

    def _postgres(self, job: str, ground: Ground) -> Ran:
        assert self.server is not None, "started for this case"
        ground = replace(ground, max_offsets=self.max_offsets)
        with self.server.database() as database:
            return self._postgres_in(database, job, ground)

    def _postgres_in(self, database: Database, job: str, ground: Ground) -> Ran:
        table = "public.orders"
        if job == PENSTOCK:
            sink = {"name": "pg", "type": "postgres", "url": "${env:ORDERS_DB}", "table": table, "create": True}
            ran = ground.run_penstock({**sink, "mode": "upsert", "keys": ["order_id"]}, ORDERS_DB=database.url)
        else:
            ran = ground.run_hand_written("postgres", table=table, **database.jdbc())
        wanted = self.sent.newest() if job == PENSTOCK else self.sent
        check(job, "database", wanted, postgres_rows(database.url, table))
        return ran

    def _three(self, job: str, ground: Ground) -> Ran:
        if job == HAND_ICEBERG:
            return self._iceberg(job, ground)
        if job == HAND_KAFKA:
            return self._kafka(job, ground)
        table, warehouse = ground.folder / "table", ground.folder / "warehouse"
        if job == HAND_DELTA:
            ran = ground.run_append(table)
        else:
            create_topic(self.brokers, topic := ground.pipeline)
            ran = ground.run_penstock(_delta(table), _iceberg(warehouse), _kafka(topic))
            check(job, "Iceberg table", self.sent, iceberg_rows(warehouse))
            check(job, "topic", self.sent, topic_rows(self.brokers, topic))
            delete_topic(self.brokers, topic)
        check(job, "table", self.sent, delta_rows(table))
        return ran


def _delta(table: Path) -> dict[str, Any]:
    return {"name": "out", "type": "delta", "path": str(table)}


def _iceberg(warehouse: Path) -> dict[str, Any]:
    return {"name": "ice", "type": "iceberg", "table": "shop.orders", "warehouse": str(warehouse)}


def _kafka(topic: str) -> dict[str, Any]:
    return {"name": "clean", "type": "kafka", "topic": topic, "key": "order_id"}

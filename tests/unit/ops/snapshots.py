"""A pipeline of one topic with two partitions, and snapshots of it as a look would take them. No broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.committing import position_at
from tests.spark_checkpoint import QUERY

from penstock.checkpoint import Offsets
from penstock.checkpoint.logs import read_files
from penstock.checkpoint.presence import RunStatus
from penstock.checkpoint.state_stores import read_state
from penstock.config import PipelineConfig, load
from penstock.kafka import LogBounds
from penstock.model import BatchToken, Guarantee, OffsetRange, TopicPartition
from penstock.ops.snapshot import Brokers, Snapshot
from penstock.preflight.standings import Standing

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
TWO_BATCHES = [{0: 10, 1: 20}, {0: 30, 1: 40}]
FILE = """\
name: orders
source: {type: kafka, brokers: "127.0.0.1:1", topics: [orders], start: START}
decode: {format: json, schema: "order_id BIGINT NOT NULL"}
quarantine: {table: lake/bad}
sinks: [{name: out, type: delta, path: lake/orders}]
checkpoint: checkpoints/orders
"""


def pipeline(folder: Path, start: str) -> PipelineConfig:
    (folder / "orders.yaml").write_text(FILE.replace("START", start))
    return load(folder / "orders.yaml")


def seen(
    config: PipelineConfig,
    standings: Sequence[Standing] = (),
    bounds: Mapping[TopicPartition, LogBounds] | None = None,
    topic_ids: Mapping[str, str] | None = None,
) -> Snapshot:
    files = read_files(config.checkpoint)
    logs = bounds or {P0: LogBounds(0, 100), P1: LogBounds(7, 100)}
    brokers = Brokers(logs, topic_ids or {})
    run, state = RunStatus("none", None, None), read_state(config.checkpoint)
    return Snapshot(config, run, files.committed, tuple(standings), files, state, brokers)


def standing(name: str, batch: int | None, ends: Offsets, **more: Any) -> Standing:
    ranges = tuple(OffsetRange(at.topic, at.partition, 0, end) for at, end in ends.items())
    token = None if batch is None else BatchToken("orders", more.pop("query", QUERY), batch, ranges)
    return Standing(name, more.pop("guarantee", Guarantee.EXACTLY_ONCE), position_at(token), **more)

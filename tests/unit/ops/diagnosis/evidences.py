"""Evidence as values: a pipeline that is behind, and what may be odd about it."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from tests.batches import finished

from penstock.checkpoint.presence import RunFacts, RunNote, RunStatus, State
from penstock.config import PipelineConfig, load
from penstock.kafka import LogBounds
from penstock.metrics import BatchMetrics
from penstock.model import TopicPartition
from penstock.ops.diagnosis.diagnosing import rank_causes
from penstock.ops.diagnosis.evidence import Cause, CheckpointFacts, Evidence
from penstock.ops.snapshot import Brokers

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
COLUMNS = "id BIGINT NOT NULL, who STRING, at TIMESTAMP"
WATERMARK = {"watermark": {"column": "at", "delay": "10 minutes"}}


def config(folder: Path, **keys: Any) -> PipelineConfig:
    """A pipeline; keyword arguments replace or add top-level keys, `source` is merged."""
    source = {"type": "kafka", "brokers": "127.0.0.1:1", "topics": ["orders"], **keys.pop("source", {})}
    body = {
        "name": "orders",
        "source": source,
        "decode": {"format": "json", "schema": COLUMNS},
        "quarantine": {"table": "lake/bad"},
        "sinks": [{"name": "out", "type": "delta", "path": "lake/orders"}],
        "checkpoint": "checkpoints/orders",
        **keys,
    }
    if "sources" in body:
        del body["source"], body["decode"]
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump(body, sort_keys=False))
    return load(file)


def batch(number: int, seconds: float = 8.0, **figures: Any) -> BatchMetrics:
    """Batch after batch, half a second between them, most of the time spent transforming."""
    waited = figures.pop("waited", 0.5)
    at = NOW - timedelta(seconds=(20 - number) * (seconds + waited))
    spent = {"offsets": 0.01, "stage": seconds, "task_read": 0.2, "task_decode": 0.3, "task_transform": 12.0}
    phases = {**spent, "task_stage": 0.4, "task_stage:out": 0.4, "commit": 0.1, "commit:out": 0.1}
    fixed: dict[str, Any] = {
        "rows_in": 10_000,
        "rows_out": 10_000,
        "bytes_in": 1_000_000,
        "offsets": 10_000,
        "cap": 10_000,
        "lag": 50_000,
        "slot_rows": (5_000, 5_000),
        "slot_rows_out": (5_000, 5_000),
        "slot_seconds": (7.5, 7.4),
    }
    phases |= figures.pop("phases", {})
    times = {"finished_at": at, "started_at": at - timedelta(seconds=seconds), "seconds": seconds, "waited": waited}
    return finished(number, **{**times, **fixed, **figures}, phases=phases)


def batches(count: int = 6, **figures: Any) -> tuple[BatchMetrics, ...]:
    return tuple(batch(number, **figures) for number in range(count))


def brokers(*lags: int, seconds: float = 0.003) -> Brokers:
    bounds = {TopicPartition("orders", number): LogBounds(0, lag) for number, lag in enumerate(lags)}
    return Brokers(bounds, seconds=seconds)


def behind(pipeline: PipelineConfig, **facts: Any) -> Evidence:
    """A pipeline with a backlog that stays as it is, and nothing else that is odd."""
    made = Evidence(pipeline, NOW, batches=batches(), cores=2, brokers=brokers(25_000, 25_000))
    return replace(made, checkpoint=CheckpointFacts(5, NOW, 5), **facts) if "checkpoint" not in facts else replace(
        made, **facts
    )  # fmt: skip


def caught_up(evidence: Evidence) -> Evidence:
    """The same with nothing waiting."""
    return replace(evidence, batches=tuple(replace(one, lag=0) for one in evidence.batches), brokers=brokers(0, 0))


def run(state: State, doing: str = "running", error: str | None = None, **facts: Any) -> RunStatus:
    """A run that told of itself at noon, and then ended or was not heard of any more."""
    told = RunFacts(doing=doing, **facts)
    ended = NOW if state in ("failed", "stopped") else None
    note = RunNote(os.getpid(), socket.gethostname(), NOW, NOW, ended_at=ended, error=error, facts=told)
    return RunStatus(state, note.who if state == "running" else None, note)


def causes(evidence: Evidence) -> Sequence[Cause]:
    return rank_causes(evidence).causes


def codes(evidence: Evidence) -> list[str]:
    return [cause.code for cause in causes(evidence)]

"""A pipeline file with a quarantine table that holds some records, for tests that need neither broker nor Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from deltalake import write_deltalake

from penstock.config import PipelineConfig, load
from penstock.quarantine import QUARANTINE_SCHEMA

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
TWO_SINKS = [
    {"name": "out", "type": "delta", "path": "lake/out"},
    {"name": "other", "type": "delta", "path": "lake/other", "mode": "merge", "keys": ["order_id"]},
]


def bad(offset: int, **more: Any) -> dict[str, Any]:
    return {
        "pipeline": "orders",
        "batch_id": 1,
        "stage": "decode",
        "code": "MALFORMED_JSON",
        "message": "no closing brace",
        "value": b"{oops",
        "topic": "orders",
        "partition": offset % 2,
        "offset": offset,
        "timestamp": MOMENT,
        "quarantined_at": MOMENT + timedelta(hours=offset),
        **more,
    }


def pipeline(folder: Path, rows: Sequence[dict[str, Any]] = (), **keys: Any) -> PipelineConfig:
    body = {
        "name": "orders",
        "source": {
            "type": "kafka", "brokers": "localhost:1", "topics": ["orders"], "options": {"socket.timeout.ms": "200"},
        },
        "decode": {"format": "json", "schema": "order_id BIGINT NOT NULL, lines ARRAY<BIGINT>"},
        "quarantine": {"table": "lake/quarantine"},
        "sinks": TWO_SINKS[:1],
        "checkpoint": "checkpoint",
        **keys,
    }  # fmt: skip
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump({name: value for name, value in body.items() if value is not None}))
    if rows:
        table = pa.Table.from_pylist(list(rows), schema=QUARANTINE_SCHEMA)
        write_deltalake(str(folder / "lake/quarantine"), table, mode="append")
    return load(file)

"""Rows and tokens for the contract suite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from penstock.contracts import Sink
from penstock.model import COORDINATES, COORDINATES_FIELD, BatchToken, Manifest, OffsetRange, SlotAttempt

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("note", pa.string()),
        pa.field("item", pa.struct([pa.field("sku", pa.string()), pa.field("tags", pa.list_(pa.string()))])),
        COORDINATES_FIELD,
    ]
)
START = datetime(2026, 1, 1, tzinfo=UTC)


def token(batch_id: int, start: int, end: int, query: str = "5f0c7f3e-0000", pipeline: str = "orders") -> BatchToken:
    return BatchToken(pipeline, query, batch_id, (OffsetRange("orders", 0, start, end),))


def records(ids: Iterable[int], schema: pa.Schema = SCHEMA, **columns: Any) -> pa.RecordBatch:
    """Rows with these ids, which are their offsets too; `columns` are functions of the id or plain values."""
    rows = []
    for number in ids:
        row: dict[str, Any] = {
            "id": number,
            "note": f"note {number}",
            "item": {"sku": f"sku-{number}", "tags": ["a", None]},
            COORDINATES: {
                "topic": "orders",
                "partition": 0,
                "offset": number,
                "timestamp": START + timedelta(seconds=number),
            },
        }
        row.update({name: made(number) if callable(made) else made for name, made in columns.items()})
        rows.append(row)
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def stage(
    sink: Sink,
    batch: BatchToken,
    parts: Sequence[pa.RecordBatch],
    slot: int = 0,
    attempt: str = "0",
    schema: pa.Schema = SCHEMA,
) -> Manifest:
    staging = sink.stage(batch, SlotAttempt(slot, attempt), schema)
    for part in parts:
        staging.write(part)
    return staging.finish()


def land(sink: Sink, batch: BatchToken, schema: pa.Schema = SCHEMA, **columns: Any) -> Manifest:
    """Stage and commit the rows of a batch: one for every offset."""
    ids = [number for r in batch.ranges for number in range(r.start, r.end)]
    manifest = stage(sink, batch, [records(ids, schema, **columns)], schema=schema)
    sink.commit(batch, [manifest])
    return manifest

"""Rows and tokens for the contract suite, and what a run does with a sink."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from tests.committing import commit, holds
from tests.contract.kits import Rows, SinkKit

from penstock.contracts import Sink, SlotSink
from penstock.errors import TransientError
from penstock.model import COORDINATES, COORDINATES_FIELD, BatchToken, Manifest, OffsetRange, Refusal, SlotAttempt
from penstock.model.stored_manifests import manifests_from_json, manifests_to_json

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


def records(offsets: Iterable[int], schema: pa.Schema = SCHEMA, **columns: Any) -> pa.RecordBatch:
    """Rows of these offsets, which are their ids too; `columns` are functions of the offset or plain values."""
    rows = []
    for number in offsets:
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


def ids(kit: SinkKit) -> list[int]:
    return sorted(row["id"] for row in kit.rows())


def by_id(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: row["id"])


def shown(rows: Rows, like: pa.RecordBatch) -> tuple[Rows, Rows]:
    """What a kit read and what was written, by id; without coordinates where the target keeps none."""
    columns = ["id", "note", "item", *([COORDINATES] if rows and COORDINATES in rows[0] else [])]
    written: Rows = like.select(columns).to_pylist()
    return [{name: row[name] for name in columns} for row in by_id(rows)], by_id(written)


def prepared(sink: Sink, schema: pa.Schema = SCHEMA, slots: int = 1) -> Sink:
    """The sink as at the start of a run."""
    sink.prepare(schema)
    if isinstance(sink, SlotSink):
        assert sink.pin(slots) == slots
    return sink


def stage(
    sink: Sink,
    batch: BatchToken,
    parts: Sequence[pa.RecordBatch],
    slot: int = 0,
    attempt: str = "0",
    schema: pa.Schema = SCHEMA,
) -> Manifest:
    manifest, refused = stage_some(sink, batch, parts, slot, attempt, schema)
    assert not refused
    return manifest


def stage_some(
    sink: Sink,
    batch: BatchToken,
    parts: Sequence[pa.RecordBatch],
    slot: int = 0,
    attempt: str = "0",
    schema: pa.Schema = SCHEMA,
) -> tuple[Manifest, list[Refusal]]:
    """Stage the rows that the target can hold; the others come back. What is staged can wait for its commit as JSON."""
    staging = sink.stage(batch, SlotAttempt(slot, attempt), schema)
    refused = [refusal for part in parts for refusal in staging.write(part)]
    manifest = staging.finish()
    if not isinstance(sink, SlotSink):  # its slots have committed
        assert manifests_from_json(manifests_to_json([manifest])) == [manifest]
    return manifest, refused


def land(
    sink: Sink, batch: BatchToken, schema: pa.Schema = SCHEMA, *, attempt: str = "0", **columns: Any
) -> list[Manifest]:
    """Stage and commit the rows of a batch: one for every offset."""
    offsets = [number for r in batch.ranges for number in range(r.start, r.end)]
    manifest = stage(sink, batch, [records(offsets, schema, **columns)], attempt=attempt, schema=schema)
    commit(sink, batch, [manifest])
    return [manifest]


def land_nothing(sink: Sink, batch: BatchToken) -> None:
    """Commit a batch without rows: a slot sink has its slot staged even then, others have no slot at all."""
    commit(sink, batch, [stage(sink, batch, [])] if isinstance(sink, SlotSink) else [])


def land_as_a_run(sink: Sink, batch: BatchToken) -> None:
    """Land a batch as a run does: what may pass is tried again from the records on, unless the sink has it."""
    for attempt in range(5):
        try:
            if not holds(sink, batch):
                land(sink, batch, attempt=str(attempt))
            return
        except TransientError as error:
            failure = error
    raise failure


class Killed(BaseException):
    """The process is dead: nothing may catch this and go on."""


def kill() -> None:
    raise Killed

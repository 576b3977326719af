"""Gaps: records that were gone from the topic before they could be read, written down as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from penstock.model import TIMESTAMP, BatchToken

GAPS_SCHEMA = pa.schema(
    [
        pa.field("pipeline", pa.string(), nullable=False),
        pa.field("batch_id", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("from_offset", pa.int64(), nullable=False),
        pa.field("to_offset", pa.int64()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("recorded_at", TIMESTAMP, nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Gap:
    """The offsets `[start, end)` of one partition that nobody can read any more. `end` may be unknown."""

    topic: str
    partition: int
    start: int
    end: int | None
    reason: str

    def __str__(self) -> str:
        end = "?" if self.end is None else self.end
        return f"{self.topic}[{self.partition}] {self.start}-{end}: {self.reason}"


def gap_rows(token: BatchToken, gaps: Sequence[Gap], recorded_at: datetime | None = None) -> pa.RecordBatch:
    """The gaps of a batch as rows of `GAPS_SCHEMA`, recorded now unless said otherwise."""
    moment = recorded_at or datetime.now(UTC)
    rows = [
        {
            "pipeline": token.pipeline,
            "batch_id": token.batch_id,
            "topic": gap.topic,
            "partition": gap.partition,
            "from_offset": gap.start,
            "to_offset": gap.end,
            "reason": gap.reason,
            "recorded_at": moment,
        }
        for gap in gaps
    ]
    return pa.RecordBatch.from_pylist(rows, schema=GAPS_SCHEMA)

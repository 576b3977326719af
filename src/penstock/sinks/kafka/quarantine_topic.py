"""The quarantine as a topic: bad records with their bytes as they were, and what is wrong with them as headers.

Key and value are the original's, byte for byte, and so is the timestamp. The headers are first the columns of the
quarantine, in their order and as text, then the original's own, under their own names, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa

from penstock.errors import TerminalError
from penstock.kafka import KafkaSettings
from penstock.model import HEADERS, Refusal
from penstock.sinks.kafka.records import RECORD_SCHEMA, RecordMaker, as_bytes, milliseconds
from penstock.sinks.kafka.sink import TRANSACTION_TIMEOUT, KafkaSink

HEADER_COLUMNS = (
    "pipeline",
    "batch_id",
    "stage",
    "code",
    "message",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "quarantined_at",
)
"""The headers that come first; one whose value is null is left out."""

Header = dict[str, str | bytes | None]


class QuarantineTopic(KafkaSink):
    """Takes rows in the quarantine's columns. Sparse: most batches have none."""

    def __init__(
        self,
        pipeline: str,
        name: str,
        settings: KafkaSettings,
        *,
        topic: str,
        slots: int | None = None,
        writers_per_slot: int = 1,
        create: bool = False,
        transaction_timeout: timedelta = TRANSACTION_TIMEOUT,
    ) -> None:
        super().__init__(
            pipeline,
            name,
            settings,
            topic=topic,
            slots=slots,
            sparse=True,
            writers_per_slot=writers_per_slot,
            create=create,
            transaction_timeout=transaction_timeout,
        )

    def _maker(self) -> RecordMaker:
        assert self.topic is not None
        return BadRecords(self.name, self.topic)


@dataclass(frozen=True)
class BadRecords:
    """Implements `RecordMaker` over the quarantine's columns."""

    sink: str
    topic: str

    def screen(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[Refusal]]:
        """A record can be made of every bad one."""
        return rows, ()

    def make(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Each bad record as it was, with its headers."""
        columns = [
            pa.repeat(pa.scalar(self.topic), rows.num_rows),
            pa.nulls(rows.num_rows, pa.int32()),
            rows.column("key"),
            rows.column("value"),
            self._headers(rows),
            milliseconds(rows.column("timestamp")),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)

    def refuse(self, rows: pa.RecordBatch, code: str, message: str) -> Sequence[Refusal]:
        """There is no quarantine behind the quarantine: stop, and lose nothing."""
        first = rows.select(["topic", "partition", "offset"]).slice(0, 1).to_pylist()[0]
        raise TerminalError(
            code,
            f"{message}, and a bad record is larger with its headers",
            context={"record": f"{first['topic']}[{first['partition']}] offset {first['offset']}"},
            hint=f"raise max.message.bytes of topic {self.topic}, or quarantine to a table",
        )

    def _headers(self, rows: pa.RecordBatch) -> pa.Array:
        told = [as_bytes(rows.column(name)).to_pylist() for name in HEADER_COLUMNS]
        original = rows.column("headers").to_pylist()
        return pa.array([_together(of, own) for *of, own in zip(*told, original, strict=True)], HEADERS)


def _together(told: Sequence[bytes | None], original: Sequence[Header] | None) -> list[Header]:
    ours: list[Header] = [
        {"key": name, "value": text} for name, text in zip(HEADER_COLUMNS, told, strict=True) if text is not None
    ]
    return [*ours, *(original or ())]

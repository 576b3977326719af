"""One attempt of one slot: rows in, one committed transaction out, or nothing where it was committed before.

Rows that no topic takes are refused whether or not the slot is drained, so that the quarantine gets the same both
times. A sparse slot takes its slot over with its first row: one without rows leaves no marker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import pyarrow as pa

from penstock.errors import TerminalError
from penstock.model import BatchToken, Manifest, Refusal, SlotAttempt
from penstock.sinks.failures import other_offsets
from penstock.sinks.kafka.fitting import TopicBook
from penstock.sinks.kafka.markers import Marker
from penstock.sinks.kafka.records import TOPIC, RecordMaker, pieces
from penstock.sinks.kafka.transaction import SlotTransaction


class SlotOutcome(Enum):
    """How a slot ended: the item of a Kafka manifest."""

    COMMITTED = "committed"
    DRAINED = "drained: it was committed before"
    IDLE = "idle: a sparse slot without rows"


class KafkaStage:
    """Implements `contracts.Stage`. `finish` is the commit."""

    def __init__(
        self,
        sink: str,
        token: BatchToken,
        writer: SlotAttempt,
        maker: RecordMaker,
        topics: TopicBook,
        slots: int,
        take_over: Callable[[], SlotTransaction],
        *,
        sparse: bool,
    ) -> None:
        self._sink = sink
        self._token = token
        self._writer = writer
        self._maker = maker
        self._topics = topics
        self._slots = slots
        self._take_over = take_over
        self._sparse = sparse
        self._transaction: SlotTransaction | None = None
        self._outcome = SlotOutcome.IDLE
        self._rows = 0
        self._size_bytes = 0
        if not sparse:
            self._begin()

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Send the rows, or only look at them where the slot is committed; give back those that no topic takes."""
        refused: list[Refusal] = []
        for piece in pieces(rows):
            good, unfit = self._maker.screen(piece)
            records, out = self._topics.fit(good, self._maker.make(good), self._maker)
            refused += [*unfit, *out]
            if records.num_rows:
                self._send(records, None if TOPIC in piece.schema.names else self._topics.fixed)
        return refused

    def finish(self) -> Manifest:
        """Commit the rows together with the marker."""
        if self._transaction is not None:
            transaction, self._transaction = self._transaction, None
            number = transaction.marker.number + 1 if transaction.marker is not None else 1
            fixed = self._topics.facts.get(self._topics.fixed or "")
            transaction.commit(Marker(self._token, self._slots, number, fixed.partitions if fixed else None))
            self._outcome = SlotOutcome.COMMITTED
        return Manifest(self._sink, self._writer, self._rows, self._size_bytes, (self._outcome,))

    def abort(self) -> None:
        """Give the transaction up."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.abort()

    def _send(self, records: pa.RecordBatch, topic: str | None) -> None:
        if self._transaction is None and self._outcome is SlotOutcome.IDLE:
            self._begin()
        self._rows += records.num_rows
        self._size_bytes += sum(records.column(name).nbytes for name in ("key", "value"))
        if self._transaction is not None:
            self._transaction.send(records, topic)

    def _begin(self) -> None:
        """Take the slot over; begin where this batch is next, and drain where it is there."""
        transaction = self._take_over()
        try:
            if is_committed(self._sink, self._token, self._writer.slot, transaction.marker, self._slots, self._sparse):
                self._outcome = SlotOutcome.DRAINED
                transaction.close()
                return
            transaction.begin()
        except BaseException:
            transaction.abort()
            raise
        self._transaction = transaction


def is_committed(
    sink: str, token: BatchToken, slot: int, marker: Marker | None, slots: int, sparse: bool = False
) -> bool:
    """Whether a slot has the batch; no where it is the next one. Raises where the marker contradicts the token."""
    if marker is None or (marker.token.query_id != token.query_id and marker.slots == slots):
        return False
    if marker.slots != slots:
        raise TerminalError(
            "SINK_SLOTS_CHANGED",
            f"sink {sink}: slot {slot} was written by a run with another number of slots",
            context={"this run": slots, "marker": marker.slots},
            hint="another run of this pipeline is at work: only one may be",
        )
    refuse_other_offsets(sink, token, marker.token)
    behind = token.batch_id - marker.token.batch_id
    if behind == 0:
        return True
    if behind == 1 or (sparse and behind > 0):
        return False
    raise TerminalError(
        "SINK_SLOT_OUT_OF_STEP",
        f"sink {sink}: slot {slot} holds batch {marker.token.batch_id}, so batch {token.batch_id} cannot be next",
        context={"checkpoint": token.describe_ranges(), "topic": marker.token.describe_ranges()},
        hint="the checkpoint and the sink are of different times: was one of them restored from a copy?\n"
        "a new checkpoint can go on where the sink ends: penstock run FILE --resume-from-table",
    )


def refuse_other_offsets(sink: str, token: BatchToken, held: BatchToken) -> None:
    """Stop where the batch is committed, by this query, with other offsets."""
    same_batch = (held.query_id, held.batch_id) == (token.query_id, token.batch_id)
    if same_batch and held.ranges != token.ranges:
        raise other_offsets(sink, token, held, "topic")

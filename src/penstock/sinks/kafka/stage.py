"""One attempt of one slot: rows in, one committed transaction out, or nothing where it was committed before.

Rows that no topic takes are refused whether or not the slot is drained, so that the quarantine gets the same both
times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum

import pyarrow as pa

from penstock.contracts import Sink
from penstock.errors import TerminalError
from penstock.model import COORDINATES, BatchToken, Manifest, Position, Refusal, Rule, SlotAttempt
from penstock.sinks.commit import is_committed
from penstock.sinks.kafka.fitting import TopicCache
from penstock.sinks.kafka.markers import Marker, Record, in_step
from penstock.sinks.kafka.records import TOPIC, RecordMaker, pieces
from penstock.sinks.kafka.transaction import SlotTransaction


class SlotOutcome(Enum):
    """How a slot ended: the first item of a Kafka manifest. The others are the topics that its rows named."""

    COMMITTED = "committed"
    DRAINED = "drained: it was committed before"


class KafkaStage:
    """Implements `contracts.Stage`. `finish` is the commit.

    `newest` is the newest position that any slot had when the run began.
    """

    def __init__(
        self,
        sink: Sink,
        token: BatchToken,
        writer: SlotAttempt,
        maker: RecordMaker,
        topics: TopicCache,
        slots: int,
        newest: Position | None,
        take_over: Callable[[], SlotTransaction],
    ) -> None:
        self._sink = sink
        self._token = token
        self._writer = writer
        self._maker = maker
        self._topics = topics.for_stage()
        self._slots = slots
        self._newest = newest
        self._rows = 0
        self._size_bytes = 0
        self._named: set[str] = set()
        self._redriven: set[Record] = set()
        self._transaction = self._begin(take_over())
        # Asked again now that no other writer can commit to the slot: two redrives may run at once.
        redriven = self._transaction.redriven(token.ranges) if self._transaction and self._is_redrive else ()
        self._held = frozenset(redriven)

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Send the rows, or only look at them where the slot is committed; give back those that no topic takes."""
        refused: list[Refusal] = []
        if self._held:
            rows = rows.filter(pa.array([record not in self._held for record in _records(rows)], pa.bool_()))
        for piece in pieces(rows):
            good, unfit = self._maker.screen(piece)
            records, out = self._topics.fit(good, self._maker.make(good), self._maker)
            refused += [*unfit, *out]
            if records.num_rows:
                self._send(records, None if TOPIC in piece.schema.names else self._topics.fixed)
            if self._is_redrive:
                self._redriven |= _records_sent(good, out)
        return refused

    def finish(self) -> Manifest:
        """Commit the rows together with the marker."""
        outcome = SlotOutcome.DRAINED
        if self._transaction is not None:
            transaction, self._transaction = self._transaction, None
            held = transaction.marker.position if transaction.marker is not None else None
            fixed = self._topics.facts.get(self._topics.fixed or "")
            position = in_step(Position.after(held, self._token), self._newest)
            marker = Marker(position, self._slots, fixed.partitions if fixed else None, self._topics.fixed)
            transaction.commit(marker, sorted(self._redriven))
            outcome = SlotOutcome.COMMITTED
        items = (outcome, *sorted(self._named))
        return Manifest(self._sink.name, self._writer, self._rows, self._size_bytes, items)

    def abort(self) -> None:
        """Give the transaction up."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.abort()

    @property
    def _is_redrive(self) -> bool:
        return self._token.rule is Rule.RECORDS

    def _send(self, records: pa.RecordBatch, topic: str | None) -> None:
        self._rows += records.num_rows
        self._size_bytes += sum(records.column(name).nbytes for name in ("key", "value"))
        if topic is None:
            self._named.update(records.column("topic").unique().to_pylist())
        if self._transaction is not None:
            self._transaction.send(records, topic)

    def _begin(self, transaction: SlotTransaction) -> SlotTransaction | None:
        """Begin where this batch is next; none where the slot has it: its rows are then only looked at."""
        try:
            if slot_has_batch(self._sink, self._token, self._writer.slot, transaction.marker, self._slots):
                transaction.close()
                return None
            transaction.begin()
        except BaseException:
            transaction.abort()
            raise
        return transaction


def slot_has_batch(sink: Sink, token: BatchToken, slot: int, marker: Marker | None, slots: int) -> bool:
    """Whether a slot has the batch; no where it is the next one. Raises where the marker contradicts the token."""
    if marker is None:
        return False
    if marker.slots != slots:
        raise TerminalError(
            "SINK_SLOTS_CHANGED",
            f"sink {sink.name}: slot {slot} was written by a run with another number of slots",
            context={"this run": slots, "marker": marker.slots},
            hint="another run of this pipeline is active: only one may be",
        )
    return is_committed(sink, marker.position, token)


def _records(rows: pa.RecordBatch) -> list[Record]:
    """The source record of each row."""
    return [(at["topic"], at["partition"], at["offset"]) for at in rows.column(COORDINATES).to_pylist()]


def _records_sent(rows: pa.RecordBatch, refused: Sequence[Refusal]) -> set[Record]:
    """The source records that rows were sent of: a record of several rows may have some of them refused."""
    sent = Counter(_records(rows))
    sent.subtract((r.record.topic, r.record.partition, r.record.start) for r in refused)
    return {record for record, count in sent.items() if count > 0}

"""The stages of a slot that write to Kafka: rows in, records out.

Exactly once, the records are one committed transaction, or none where the slot has committed the batch before. Rows
that no topic takes are refused whether or not the slot is drained, so that the quarantine gets the same both times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum

import pyarrow as pa

from penstock.contracts import Sink
from penstock.errors import TerminalError
from penstock.model import COORDINATES, BatchToken, Manifest, Position, Refusal, Rule, SlotAttempt
from penstock.sinks.commit import is_committed
from penstock.sinks.kafka.fitting import TopicCache
from penstock.sinks.kafka.markers import Marker, Record, in_step
from penstock.sinks.kafka.producer import RecordProducer
from penstock.sinks.kafka.records import TOPIC, RecordMaker
from penstock.sinks.kafka.transaction import SlotTransaction

_PIECE_ROWS = 10_000
_PIECE_BYTES = 64 << 20


def pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in pieces of bounded size: a deduped slot comes as one batch, however large."""
    mean = max(1, rows.nbytes // max(1, rows.num_rows))
    step = max(1, min(_PIECE_ROWS, _PIECE_BYTES // mean))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


class RecordStage:
    """The part of `contracts.Stage` that all stages here have: `write`, over a `_send` of their own."""

    def __init__(self, writer: SlotAttempt, maker: RecordMaker, topics: TopicCache) -> None:
        self._writer = writer
        self._maker = maker
        self._topics = topics.for_stage()
        self._rows = 0
        self._size_bytes = 0

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Make records of the rows; return those that no topic takes."""
        refused: list[Refusal] = []
        for piece in pieces(rows):
            good, unfit = self._maker.screen(piece)
            records, out = self._topics.fit(good, self._maker.make(good), self._maker)
            refused += [*unfit, *out]
            if records.num_rows:
                self._rows += records.num_rows
                self._size_bytes += sum(records.column(name).nbytes for name in ("key", "value"))
                self._send(records, None if TOPIC in piece.schema.names else self._topics.fixed)
        return refused

    def _send(self, records: pa.RecordBatch, topic: str | None) -> None:
        """Take records in their order; `topic` where all have the same."""
        raise NotImplementedError

    def _manifest(self, *items: object) -> Manifest:
        return Manifest(self._topics.sink, self._writer, self._rows, self._size_bytes, items)


class SentRecords(RecordStage):
    """Implements `contracts.Stage`, at least once: readers see a record as soon as it is sent."""

    def __init__(self, writer: SlotAttempt, maker: RecordMaker, topics: TopicCache) -> None:
        super().__init__(writer, maker, topics)
        self._producer = RecordProducer(topics)

    def finish(self) -> Manifest:
        """Wait until the brokers have stored all of it."""
        self._producer.flush()
        self._producer.close()
        return self._manifest()

    def abort(self) -> None:
        """Drop what is not sent yet."""
        self._producer.abort()

    def _send(self, records: pa.RecordBatch, topic: str | None) -> None:
        self._producer.send(records, topic)


class SlotOutcome(Enum):
    """How a slot ended: the first item of a Kafka manifest. The others are the topics that its rows named."""

    COMMITTED = "committed"
    DRAINED = "drained: it was committed before"


class KafkaStage(RecordStage):
    """Implements `contracts.Stage`, exactly once: `finish` is the commit.

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
        super().__init__(writer, maker, topics)
        self._sink = sink
        self._token = token
        self._slots = slots
        self._newest = newest
        self._named: set[str] = set()
        self._redriven: set[Record] = set()
        self._transaction = self._begin(take_over())
        # Read again now that no other writer can commit to the slot: two redrives may run at once.
        redriven = self._transaction.redriven(token.ranges) if self._transaction and self._is_redrive else ()
        self._held = frozenset(redriven)

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Send the rows, unless the slot has committed the batch; return those that no topic takes."""
        if self._held:
            rows = rows.filter(pa.array([record not in self._held for record in _records(rows)], pa.bool_()))
        refused = super().write(rows)
        if self._is_redrive:
            self._redriven |= _records_sent(rows, refused)
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
        return self._manifest(outcome, *sorted(self._named))

    def abort(self) -> None:
        """Abort the transaction."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.abort()

    @property
    def _is_redrive(self) -> bool:
        return self._token.rule is Rule.RECORDS

    def _send(self, records: pa.RecordBatch, topic: str | None) -> None:
        if topic is None:
            self._named.update(records.column("topic").unique().to_pylist())
        if self._transaction is not None:
            self._transaction.send(records, topic)

    def _begin(self, transaction: SlotTransaction) -> SlotTransaction | None:
        """Begin where this batch is next; None where the slot has it: its rows are then only checked."""
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
    """Whether a slot has the batch; false where it is the next one. Raises where the marker contradicts the token."""
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

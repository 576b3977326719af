"""One transaction of one slot, with a producer of its own: rows and marker, all or nothing.

`init_transactions` of the new producer fences a dead or stalled writer of the slot and ends its transaction; only then
is the marker read. The producer is never used again: its epoch keeps a late commit out of the next transaction.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from penstock.errors import MissingError, TransientError
from penstock.kafka.client import poll_reports
from penstock.kafka.topics import MAX_MESSAGE_BYTES
from penstock.model import OffsetRange
from penstock.sinks.kafka.fitting import TopicCache
from penstock.sinks.kafka.marker_topic import read_markers, read_redriven
from penstock.sinks.kafka.markers import KEY, Marker, Record, SlotState, record_key
from penstock.sinks.kafka.producer import FENCED, RecordProducer
from penstock.sinks.kafka.records import RECORD_SCHEMA

_CONNECT_SECONDS = 2.0
_INIT_SECONDS = 30.0
_INIT_STEP_SECONDS = 3.0
_ABORT_SECONDS = 5.0
_TOPIC_SECONDS = 5.0
"""How long a broker may take to see a topic that another one has created."""


@dataclass(frozen=True)
class SlotId:
    """A slot, its marker topic and its transactional id."""

    topics: TopicCache
    transactional_id: str
    markers: str
    slot: int
    timeout: timedelta


class SlotTransaction(RecordProducer):
    """Open: the slot is ours and its marker is read. Then rows, then `commit` or `abort`; both close."""

    def __init__(self, of: SlotId) -> None:
        self._of = of
        self._begun = False
        self._entries = 0
        """How many records the marker topic was given ahead of the marker."""
        self._landed: int | None = None
        self._unwritten: KafkaError | None = None
        super().__init__(of.topics, [of.markers])
        try:
            self.state = self._read_state()
        except BaseException:
            self.abort()
            raise

    @property
    def marker(self) -> Marker | None:
        """What the slot committed last."""
        return self.state.marker

    def redriven(self, ranges: Sequence[OffsetRange]) -> set[Record]:
        """The records in these ranges that redrives have committed in this slot."""
        return read_redriven(self._sink, self._settings, self._of.markers, [self._of.slot], ranges)

    def begin(self) -> None:
        """Begin the transaction."""
        with self._failures("beginning a transaction"):
            self._producer.begin_transaction()
            self._begun = True

    def commit(self, marker: Marker, redriven: Collection[Record] = ()) -> None:
        """Write which records were redriven, then the marker, and commit.

        On any doubt the slot's marker decides whether it landed.
        """
        try:
            self._write_redriven(redriven)
            self._write_marker(marker)
        except BaseException:
            self.abort()
            raise
        try:
            self._end()
            self._begun = False
        except KafkaException as error:
            self._settle(marker, error)
        finally:
            self.close()

    def abort(self) -> None:
        """Abort. Never raises: a transaction that stays open is aborted by the slot's next writer."""
        if self._begun and self._producer is not None:
            with suppress(Exception):
                self._producer.purge()
                self._producer.abort_transaction(_ABORT_SECONDS)
                self._begun = False
        self.close()

    def close(self) -> None:
        """Let the producer go, with its threads and connections."""
        # With an open transaction the client's own `close` would wait for the brokers, without end, to abort it.
        # It is freed when nothing references it, and the slot's next writer aborts the transaction.
        if self._begun:
            self._producer = None
        super().close()

    def _end(self) -> None:
        self._producer.commit_transaction(self._of.timeout.total_seconds())

    def _open(self) -> Any:
        producer: Any = None
        own = {
            # A marker may be larger than what the topic of the rows takes: these are measured before.
            "message.max.bytes": max(self._sizes.record_bytes, MAX_MESSAGE_BYTES),
            "transactional.id": self._of.transactional_id,
            "transaction.timeout.ms": int(self._of.timeout.total_seconds() * 1000),
        }
        try:
            producer = self._client({}, own)
            self._connect(producer)
            self._init(producer)
        except KafkaException as error:
            producer = None  # no reference in the traceback
            raise self._lost(error, "taking the slot over") from None
        return producer

    def _connect(self, producer: Any) -> None:
        """Connect to a broker before the client looks for its transaction coordinator.

        The client closes its bootstrap connection once it has metadata. If it has no other connection when it looks
        for the coordinator, it retries only after half a second. The first request ends the bootstrap connection, the
        second one opens another. Errors are ignored here: `_init` reports brokers that cannot be reached.
        """
        with suppress(KafkaException):
            for _ in range(2):
                producer.list_topics(self._of.markers, _CONNECT_SECONDS)

    def _init(self, producer: Any) -> None:
        """Take the slot over; a refusal by the brokers is raised before the timeout."""
        deadline = time.monotonic() + _INIT_SECONDS
        while True:
            left = deadline - time.monotonic()
            try:
                producer.init_transactions(min(left, _INIT_STEP_SECONDS) if self._settings.is_secured else left)
                return
            except KafkaException as error:
                poll_reports(producer)
                self._errors.refuse(self._where("taking the slot over"))
                if error.args[0].code() != KafkaError._TIMED_OUT or time.monotonic() + 0.1 > deadline:
                    raise

    def _read_state(self) -> SlotState:
        slot, markers = self._of.slot, self._of.markers
        deadline = time.monotonic() + _TOPIC_SECONDS
        while slot not in (found := read_markers(self._sink, self._settings, markers, [slot])):
            if time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            raise MissingError(
                "SINK_MARKERS_GONE",
                f"sink {self._sink}: the marker topic has no partition for slot {slot}",
                context={"topic": markers},
                hint="start again: the topic is then created again; the markers of the old one are lost",
            )
        return found[slot]

    def _write_redriven(self, records: Collection[Record]) -> None:
        """One entry for each record in the slot's partition of the marker topic."""
        if records:
            entry = {"partition": self._of.slot, "value": b"1", "timestamp": 0}
            rows = [{**entry, "key": record_key(record)} for record in records]
            self.send(pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA), self._of.markers)
            self._entries = len(rows)

    def _write_marker(self, marker: Marker) -> None:
        """Write the marker and wait for it: the transaction must land where the partition ended when it was read."""
        deadline = time.monotonic() + self._of.timeout.total_seconds()
        with self._failures("writing the marker"):
            self._producer.produce(
                self._of.markers,
                marker.to_bytes(),
                KEY,
                partition=self._of.slot,
                on_delivery=self._note_marker,
            )
            while self._producer.flush(0.5) and time.monotonic() < deadline:
                self._errors.refuse(self._where("writing the marker"))
        if self._landed is None:
            raise self._lost(KafkaException(self._unwritten or KafkaError(KafkaError._TIMED_OUT)), "writing the marker")
        expected = self.state.end + self._entries
        if self._landed != expected:
            raise TransientError(
                "SINK_MARKER_MOVED",
                f"sink {self._sink}: the marker of slot {self._of.slot} was not written at the expected offset",
                context={"expected at": expected, "landed at": self._landed, "topic": self._of.markers},
                hint="a stale leader, or a second writer of the slot: the batch is retried",
            )

    def _note_marker(self, error: KafkaError | None, message: Any) -> None:
        self._landed = message.offset() if error is None else None
        self._unwritten = error

    def _settle(self, marker: Marker, error: KafkaException) -> None:
        """Find out whether a commit without a clear answer landed. Raises where it did not."""
        self.close()
        self._begun = False
        lost = self._lost(error, f"committing batch {marker.position.last.batch_id}")
        if error.args[0].code() in FENCED:
            # Another writer has the slot, or the brokers revoked it: it must not be fenced in turn.
            raise lost from None
        self._producer = self._open()
        if self._read_state().marker != marker:
            raise lost from None

    def _where(self, doing: str) -> str:
        return f"sink {self._sink}: slot {self._of.slot}: {doing}"

    def _ended(self, doing: str, said: str) -> TransientError:
        return TransientError(
            "SINK_TRANSACTION_LOST",
            f"{doing}: the transaction is lost",
            context={"client": said, "timeout": self._of.timeout},
            hint="it took longer than its timeout, or another run writes as this slot",
        )


class TransactionTrial(SlotTransaction):
    """Raises where the brokers refuse the writer of this slot. Reads no marker and begins nothing.

    The transactional id must be one that no run uses: it would be fenced.
    """

    def _read_state(self) -> SlotState:
        return SlotState(None, 0)

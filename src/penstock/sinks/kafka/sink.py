"""Kafka, exactly once: each slot commits its rows and its marker in one transaction, inside its task.

For readers of committed records every record is there once, whatever dies on the way. A batch is visible slot by
slot, or whole where there is one slot. The driver only looks: it prepares the topics, pins the number of slots, and
reads the markers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa

from penstock.errors import MissingError, TerminalError
from penstock.kafka import KafkaSettings
from penstock.kafka.topics import TopicAdmin
from penstock.model import BatchToken, Guarantee, Manifest, SlotAttempt
from penstock.sinks.kafka.encode.encoding import Encoders, Encoding, Encodings
from penstock.sinks.kafka.fitting import TopicBook, topic_missing
from penstock.sinks.kafka.markers import TOPIC_SETTINGS, Marker, SlotState, marker_topic, read_markers
from penstock.sinks.kafka.records import PARTITION, RecordMaker, RowRecords
from penstock.sinks.kafka.slots import (
    change_needed,
    describe_slots,
    last_whole,
    newest_in_all,
    newest_in_any,
    order_of_change,
    slots_in_force,
)
from penstock.sinks.kafka.stage import KafkaStage, SlotOutcome, refuse_other_offsets
from penstock.sinks.kafka.transaction import SlotId, SlotTransaction, try_transaction

TRANSACTION_TIMEOUT = timedelta(minutes=1)
_REPLICAS = 3
_OPENED_AT_ONCE = 16


class KafkaSink:
    """Implements `contracts.Sink` and `contracts.SlotSink`.

    `sparse` is for a sink that few batches have rows for: a slot without rows then leaves no marker. Each slot of
    the runtime may have several writers, numbered on behind the slots.
    """

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        pipeline: str,
        name: str,
        settings: KafkaSettings,
        *,
        topic: str | None = None,
        slots: int | None = None,
        sparse: bool = False,
        writers_per_slot: int = 1,
        keep_coordinates: bool = False,
        create: bool = False,
        partitions: int | None = None,
        transaction_timeout: timedelta = TRANSACTION_TIMEOUT,
        encode_value: Encoding | None = None,
        encode_key: Encoding | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.name = name
        self.settings = settings
        self.topic = topic
        self.markers = marker_topic(pipeline, name)
        self.sparse = sparse
        self.writers_per_slot = writers_per_slot
        self.keep_coordinates = keep_coordinates
        self.partitions = partitions
        self.transaction_timeout = transaction_timeout
        self.notices: tuple[str, ...] = ()
        """What `prepare` and `check` found that stops nothing but should be said."""
        self._given = slots
        self._slots: int | None = None
        self._topics = TopicBook(name, settings, topic, create)
        self._encodings = Encodings(pipeline, name, topic, keep_coordinates, encode_value, encode_key)
        self._encoders = Encoders()

    @property
    def target(self) -> str:
        """The topic and its brokers."""
        return f"{self.topic or 'a topic for each row'} at {self.settings.brokers}"

    def prepare(self, schema: pa.Schema) -> None:
        """Check the topic, make the marker topic, and take every slot over once.

        That ends what a dead run left open, which would hold readers up. The marker topic is the only one that is
        made unasked. Where nothing says yet how many slots there are, `pin` does this. Schemas are registered here; a
        call with other columns registers a further version, for the batches that come.
        """
        self._check_topics(schema)
        self._encoders = self._encodings.open(schema)
        self.notices += self._encoders.notices
        self._topics.facts.clear()
        if self.topic is not None:
            self._topics.learn([self.topic])
        slots = self._given or self._slots_there()
        if slots is not None:
            self._open_slots(slots)

    def check(self, schema: pa.Schema) -> None:
        """Look at the topic, whether the brokers allow such transactions, and at the schemas in the registry."""
        self._check_topics(schema)
        if self.settings.is_secured:
            try_transaction(replace(self._slot_id(0), transactional_id=f"{self.pipeline}/{self.name}/plan"))
        self._encodings.check(schema)

    def changes(self, schema: pa.Schema) -> list[str]:
        """Nothing: a topic has no columns. Raises what `check` raises."""
        self.check(schema)
        return []

    def _check_topics(self, schema: pa.Schema) -> None:
        self.notices = ()
        admin = TopicAdmin(self.settings)
        self._check_timeout(admin)
        facts = admin.describe([topic for topic in (self.topic, self.markers) if topic is not None])
        if self.markers in facts and facts[self.markers].cleanup_policy not in ("", "compact"):
            raise MissingError(
                "SINK_MARKERS_EXPIRE",
                f"sink {self.name}: the marker topic must be compacted and nothing else",
                context={"topic": self.markers, "cleanup.policy": facts[self.markers].cleanup_policy},
                hint="set cleanup.policy=compact on the topic: markers that expire let batches be written twice",
            )
        if self.topic is None:
            return
        if self.topic not in facts:
            if not self._topics.create:
                raise topic_missing(self.name, [self.topic], self.settings.brokers, admin.names())
            return
        there = facts[self.topic].partitions
        before = self.partitions
        if before is None and self.markers in facts:
            known = [state.marker for state in self._read(range(1)).values() if state.marker is not None]
            before = known[0].partitions if known else None
        self._check_partitions(there, before, chosen=PARTITION in schema.names)

    def pin(self, cores: int) -> int:
        """The number of slots: as given, or as the marker topic has it, else `cores`."""
        if self._slots is None:
            self._open_slots(self._given or self._slots_there() or cores)
        assert self._slots is not None
        return self._slots

    def last_commit(self) -> BatchToken | None:
        """The newest batch that every slot has, whichever query wrote it; of a sparse sink, that any slot has."""
        states = self._states()
        if self.sparse:
            return newest_in_any(states)
        return newest_in_all(states, (slots_in_force(states) or 0) * self.writers_per_slot)

    def holds(self, token: BatchToken) -> bool:
        """Whether every slot has the batch. Raises where one has it with other offsets."""
        states = self._states()
        seats = range((slots_in_force(states) or 0) * self.writers_per_slot)
        held = [states[slot].marker for slot in seats if slot in states]
        mine = [marker.token for marker in held if marker is not None and marker.token.query_id == token.query_id]
        for other in mine:
            refuse_other_offsets(self.name, token, other)
        return bool(seats) and len(mine) == len(seats) and all(other.batch_id >= token.batch_id for other in mine)

    def begun(self) -> BatchToken | None:
        """The newest batch that some slot has."""
        return newest_in_any(self._states())

    def torn(self) -> str | None:
        """How the slots stand where the last batch is not whole: another query must not go on from there."""
        states = self._states()
        seats = (slots_in_force(states) or 0) * self.writers_per_slot
        whole = self.sparse or not seats or last_whole(states, seats) is not None
        return None if whole else describe_slots(states, seats)

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> KafkaStage:
        """In a task: take the slot over and begin its transaction, or drain it where it has the batch."""
        if self._slots is None or writer.slot >= self._slots * self.writers_per_slot:
            raise TerminalError(
                "SINK_SLOT_UNKNOWN",
                f"sink {self.name}: there is no slot {writer.slot}",
                context={"slots": self._slots or "not pinned yet", "writers a slot": self.writers_per_slot},
            )
        return KafkaStage(
            self.name,
            token,
            writer,
            self._maker(),
            self._topics,
            self._slots,
            lambda: self._take_over(writer.slot),
            sparse=self.sparse,
        )

    def commit(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """The slots have committed: see that none is missing."""
        done = {m.writer.slot for m in manifests if m.items and isinstance(m.items[0], SlotOutcome)}
        missing = [] if self.sparse else sorted(set(range((self._slots or 0) * self.writers_per_slot)) - done)
        if missing or len(done) < len({m.writer.slot for m in manifests}):
            raise TerminalError(
                "SINK_SLOTS_INCOMPLETE",
                f"sink {self.name}: not every slot of batch {token.batch_id} was staged",
                context={"slots": self._slots, "missing": ", ".join(map(str, missing)) or "unknown"},
            )

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """There is nothing to remove: an attempt that did not commit was never to be seen."""

    def _maker(self) -> RecordMaker:
        return RowRecords(self.name, self.topic, self.keep_coordinates, self._encoders)

    def _take_over(self, slot: int) -> SlotTransaction:
        return SlotTransaction(self._slot_id(slot))

    def _slot_id(self, slot: int) -> SlotId:
        return SlotId(
            self.name,
            self.settings,
            f"{self.pipeline}/{self.name}/{slot}",
            self.markers,
            slot,
            self.transaction_timeout,
            self._topics.batch_bytes,
            self._topics.record_bytes,
        )

    def _states(self) -> dict[int, SlotState]:
        return self._read(range(self._marker_partitions(TopicAdmin(self.settings))))

    def _read(self, slots: Iterable[int]) -> dict[int, SlotState]:
        return read_markers(self.name, self.settings, self.markers, slots)

    def _marker_partitions(self, admin: TopicAdmin) -> int:
        facts = admin.describe([self.markers]).get(self.markers)
        return facts.partitions if facts is not None else 0

    def _slots_there(self) -> int | None:
        there = self._marker_partitions(TopicAdmin(self.settings))
        return slots_in_force(self._read(range(there))) or there // self.writers_per_slot or None

    def _open_slots(self, slots: int) -> None:
        """Make the marker topic large enough, take every slot over, and change their number where that is safe."""
        seats = slots * self.writers_per_slot
        admin = TopicAdmin(self.settings)
        there = self._marker_partitions(admin)
        if there:
            change_needed(self.name, self._read(range(there)), slots, self.writers_per_slot, sparse=self.sparse)
        if not there:
            admin.create(self.markers, seats, min(_REPLICAS, admin.brokers()), TOPIC_SETTINGS)
        elif there < seats:
            admin.add_partitions(self.markers, seats)
        with ThreadPoolExecutor(min(_OPENED_AT_ONCE, max(there, seats))) as pool:
            list(pool.map(self._free, range(max(there, seats))))
        states = self._read(range(max(there, seats)))
        marker = change_needed(self.name, states, slots, self.writers_per_slot, sparse=self.sparse)
        if marker is not None:
            for slot in order_of_change(states, slots, self.writers_per_slot):
                self._write_marker(slot, marker)
        self._slots = slots

    def _free(self, slot: int) -> None:
        self._take_over(slot).close()

    def _write_marker(self, slot: int, marker: Marker) -> None:
        transaction = self._take_over(slot)
        try:
            transaction.begin()
        except BaseException:
            transaction.abort()
            raise
        transaction.commit(marker)

    def _check_timeout(self, admin: TopicAdmin) -> None:
        limit = admin.transaction_limit()
        if limit is not None and self.transaction_timeout > limit:
            raise MissingError(
                "SINK_TRANSACTION_TIMEOUT",
                f"sink {self.name}: the brokers do not allow so long a transaction",
                context={
                    "transaction timeout": self.transaction_timeout,
                    "the brokers' transaction.max.timeout.ms": limit,
                },
                hint="set the sink's transaction timeout to at most that, or raise the brokers' limit",
            )

    def _check_partitions(self, there: int, before: int | None, *, chosen: bool) -> None:
        """Another number of partitions than before: wrong where rows choose theirs, else worth a word."""
        if before is None or before == there:
            return
        if chosen:
            raise MissingError(
                "SINK_PARTITIONS_CHANGED",
                f"sink {self.name}: topic {self.topic} has another number of partitions than `partition` reckons with",
                context={"before": before, "now": there},
                hint=f"when the expression is right for the new number, say so in the sink: partitions: {there}",
            )
        self.notices = (
            f"topic {self.topic} has {there} partitions and had {before}: from now on a key may go to another one, "
            "and its order holds only from here",
        )

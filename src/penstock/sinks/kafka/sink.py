"""Rows to Kafka topics: exactly once, or at least once.

Exactly once, each slot commits its rows and its marker in one transaction, inside its task. Readers of committed
records see every record once, whatever fails. A batch becomes visible slot by slot, or whole where there is
one slot. The driver prepares the topics, pins the number of slots and reads the markers; it writes only where a
position is moved on purpose, or the number of slots changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from penstock.contracts import SlotSink
from penstock.errors import MissingError, TerminalError
from penstock.kafka import KafkaSettings
from penstock.kafka.topics import TopicAdmin
from penstock.model import BatchToken, Guarantee, Manifest, OffsetRange, Position, Rule, SlotAttempt
from penstock.sinks.commit import position_moved
from penstock.sinks.kafka.encode.encoding import Encoding, Encodings
from penstock.sinks.kafka.fitting import ChosenTopics, TopicCache
from penstock.sinks.kafka.marker_topic import read_markers, read_redriven
from penstock.sinks.kafka.markers import (
    Marker,
    Record,
    SlotState,
    change_needed,
    describe_slots,
    known_partitions,
    last_whole,
    marker_of,
    newest_position,
    oldest_position,
    order_of_change,
    sink_of_markers,
    slots_in_force,
)
from penstock.sinks.kafka.records import PARTITION, RowRecords
from penstock.sinks.kafka.stage import KafkaStage, SentRecords, SlotOutcome
from penstock.sinks.kafka.topic_sink import TRANSACTION_TIMEOUT, TopicSink, TransactionalSink

_OPENED_AT_ONCE = 16
_NO_MAINTENANCE = "a topic is compacted by its brokers (cleanup.policy)"


class KafkaAtLeastOnceSink(TopicSink):
    """Implements `contracts.Sink`. Readers see what its tasks send at once. No position is stored.

    The producer is idempotent, but a batch that runs again is sent again.
    """

    guarantee = Guarantee.AT_LEAST_ONCE
    no_maintenance = _NO_MAINTENANCE

    def __init__(
        self,
        pipeline: str,
        name: str,
        settings: KafkaSettings,
        *,
        topic: str | None = None,
        keep_coordinates: bool = False,
        create: bool = False,
        chosen: ChosenTopics = ChosenTopics(),
        encode_value: Encoding | None = None,
        encode_key: Encoding | None = None,
    ) -> None:
        super().__init__(pipeline, TopicCache(name, settings, topic, create, chosen=chosen))
        self._encodings = Encodings(pipeline, name, topic, keep_coordinates, encode_value, encode_key)
        self._records = RowRecords(name, topic, keep_coordinates)

    def prepare(self, schema: pa.Schema) -> None:
        """Check the topic and the schemas in the registry; create and register them where the file says so."""
        self._topics.learn()
        self._records = replace(self._records, encoders=self._encodings.open(schema))

    def check(self, schema: pa.Schema) -> None:
        """Check that the topic exists, and the schemas in the registry."""
        if self.topic is not None:
            admin = TopicAdmin(self.settings)
            self._topics.require_fixed(admin, admin.describe([self.topic]))
        self._encodings.check(schema)

    def changes(self, schema: pa.Schema) -> list[str]:
        """None: a topic has no columns. Raises what `check` raises."""
        self.check(schema)
        return []

    def position(self) -> Position | None:
        """None is stored."""
        return None

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> SentRecords:
        """In a task: begin to send."""
        return SentRecords(writer, self._records, self._topics)

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """Does nothing: the tasks have sent the records."""

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Does nothing: what an attempt has sent stays."""


class KafkaSink(TransactionalSink, SlotSink):
    """Implements `contracts.Sink` and `contracts.SlotSink`."""

    no_maintenance = _NO_MAINTENANCE

    def __init__(
        self,
        pipeline: str,
        name: str,
        settings: KafkaSettings,
        *,
        topic: str | None = None,
        slots: int | None = None,
        keep_coordinates: bool = False,
        create: bool = False,
        chosen: ChosenTopics = ChosenTopics(),
        partitions: int | None = None,
        transaction_timeout: timedelta = TRANSACTION_TIMEOUT,
        encode_value: Encoding | None = None,
        encode_key: Encoding | None = None,
    ) -> None:
        super().__init__(pipeline, TopicCache(name, settings, topic, create, chosen=chosen), transaction_timeout)
        self.partitions = partitions
        self._configured_slots = slots
        self._slots: int | None = None
        self._newest: Position | None = None
        """The newest position of any slot when the slots were opened."""
        self._last_states: dict[int, SlotState] = {}
        """The markers when the position was last read."""
        self._durable_for: frozenset[str] = frozenset()
        """The topics named by rows that the marker topic is known to be as durable as."""
        self._encodings = Encodings(pipeline, name, topic, keep_coordinates, encode_value, encode_key)
        self._records = RowRecords(name, topic, keep_coordinates)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last_states": {}}  # with many partitions it is large, and tasks do not use it

    def prepare(self, schema: pa.Schema) -> None:
        """Check the topic, create the marker topic, and take every slot over once.

        That ends transactions that a dead run left open, which would block readers. The marker topic is the only one
        that is created without `create: true`. Where the number of slots is not known yet, `pin` does this. Schemas are
        registered here; a call with other columns registers a further version, for later batches.
        """
        self._check_partitions(schema)
        encoders = self._encodings.open(schema)
        self._records = replace(self._records, encoders=encoders)
        self.notices += encoders.notices
        self._topics.learn()
        slots = self._configured_slots or self._slots_there()
        if slots is not None:
            self._open_slots(slots)

    def check(self, schema: pa.Schema) -> None:
        """Check the topic, that the brokers authorize the transactions, and the schemas in the registry."""
        self._check_partitions(schema)
        self._check_transactions()
        self._encodings.check(schema)

    def changes(self, schema: pa.Schema) -> list[str]:
        """None: a topic has no columns. Raises what `check` raises."""
        self.check(schema)
        return []

    def pin(self, cores: int) -> int:
        """The number of slots: as given, or as the marker topic has it, else `cores`."""
        if self._slots is None:
            self._open_slots(self._configured_slots or self._slots_there() or cores)
        assert self._slots is not None
        return self._slots

    def position(self) -> Position | None:
        """The position of the oldest slot: every slot has committed that. None where one has committed nothing yet."""
        self._last_states = self._states()
        return oldest_position(self._last_states)

    def begun(self) -> Position | None:
        """The newest position of any slot."""
        return newest_position(self._states())

    def torn(self) -> str | None:
        """The batch of each slot where the last batch is incomplete: another query must not continue from there."""
        states = self._states()
        slots = slots_in_force(states)
        return None if not slots or last_whole(states, slots) is not None else describe_slots(states, slots)

    def records_held(self, ranges: Sequence[OffsetRange]) -> set[Record]:
        """The records in these ranges that redrives have written. The position covers what the stream wrote."""
        slots = range(self._admin().partitions())
        return read_redriven(self.name, self.settings, self.markers, slots, ranges)

    def other_writers(self) -> list[str]:
        """The other sinks of this pipeline whose markers name this topic. Other pipelines are not checked."""
        found = []
        for topic in self._admin().names() if self.topic is not None else ():
            name = sink_of_markers(topic, self.pipeline)
            if name is not None and name != self.name:
                states = read_markers(self.name, self.settings, topic, range(1)).values()
                if any(state.marker is not None and state.marker.topic == self.topic for state in states):
                    found.append(f"{self.pipeline}/{name}")
        return sorted(found)

    def stage(self, token: BatchToken, writer: SlotAttempt, schema: pa.Schema) -> KafkaStage:
        """In a task: take the slot over and begin its transaction, or drain it where it has committed the batch."""
        if self._slots is None or writer.slot >= self._slots:
            raise TerminalError(
                "SINK_SLOT_UNKNOWN",
                f"sink {self.name}: unknown slot {writer.slot}",
                context={"slots": self._slots or "not pinned yet"},
            )
        return KafkaStage(
            self,
            token,
            writer,
            self._records,
            self._topics,
            self._slots,
            self._newest,
            lambda: self._take_over(writer.slot),
        )

    def land(self, position: Position, manifests: Sequence[Manifest], onto: Position | None) -> None:
        """The slots have committed: check that none is missing. A moved position is written into every slot."""
        if position.last.rule is Rule.MOVES:
            self._move(position, onto)
            return
        done = {m.writer.slot: m.items for m in manifests if m.items and isinstance(m.items[0], SlotOutcome)}
        missing = sorted(set(range(self._slots or 0)) - done.keys())
        if missing or len(done) < len({m.writer.slot for m in manifests}):
            raise TerminalError(
                "SINK_SLOTS_INCOMPLETE",
                f"sink {self.name}: not every slot of batch {position.last.batch_id} was staged",
                context={"slots": self._slots, "missing": ", ".join(map(str, missing)) or "unknown"},
            )
        named = {str(topic) for items in done.values() for topic in items[1:]} - self._durable_for
        if named:
            self.notices += tuple(self._admin().keep_durable(named))
            self._durable_for |= named

    def claim(self, token: BatchToken, position: Position) -> None:
        """Give every slot the next number at its position, unless another run has written to one.

        A slot may have this very batch by now, from this run: it then carries the quarantine's number as `token` does.
        """
        slots = self._slots
        assert slots is not None, "pinned before the first batch"
        states = self._states()
        partitions = known_partitions(states)
        markers: dict[int, Marker] = {}
        for slot in range(slots):
            marker = marker_of(states, slot)
            held = marker.position if marker is not None else None
            own = held is not None and held.last == token and held.last.quarantine == token.quarantine
            if not own and marker != marker_of(self._last_states, slot):
                raise position_moved(self.name)
            claimed = position if held is None else Position.claimed(held, token, position.last.reason or "")
            markers[slot] = Marker(claimed, slots, partitions if marker is None else marker.partitions, self.topic)
        # The newest first: after a crash half-way, an older slot must not look as new as one that has a later batch.
        for slot in sorted(markers, key=lambda one: -markers[one].number):
            self._write_marker(slot, markers[slot], states)
        self._newest = newest_position(self._states())

    def discard(self, token: BatchToken, manifests: Sequence[Manifest]) -> None:
        """Does nothing: an attempt that did not commit was never visible."""

    def _slots_there(self) -> int | None:
        states = self._states()
        return slots_in_force(states) or len(states) or None

    def _open_slots(self, slots: int) -> None:
        """Make the marker topic large enough, take every slot over, and change their number where that is safe."""
        admin = self._admin()
        there = admin.partitions()
        if there:
            change_needed(self.name, self._read(range(there)), slots)
        self.notices += tuple(admin.open(slots, [self.topic] if self.topic is not None else []))
        count = max(there, slots)
        with ThreadPoolExecutor(min(_OPENED_AT_ONCE, count)) as pool:
            list(pool.map(self._free, range(count)))
        states = self._read(range(count))
        marker = change_needed(self.name, states, slots)
        if marker is not None:
            for slot in order_of_change(states, slots):
                self._write_marker(slot, marker, states)
        self._slots, self._newest = slots, newest_position(states)

    def _move(self, position: Position, onto: Position | None) -> None:
        """Write a position into every slot, slot 0 last. After a crash half-way it can be repeated."""
        slots = self._slots or self._slots_there() or self._configured_slots
        if slots is None:
            raise TerminalError(
                "SINK_SLOT_UNKNOWN",
                f"sink {self.name}: the number of slots is not known yet",
                hint="write `slots` in the sink, or run the pipeline once",
            )
        if self._slots is None:
            self._open_slots(slots)
        states = self._states()
        held, newest = oldest_position(states), newest_position(states)
        if (held and (held.last, held.next)) != (onto and (onto.last, onto.next)):
            raise position_moved(self.name)
        partitions = known_partitions(states)
        # Above every slot, so that after a crash half-way a slot that was not written is the oldest.
        number = max(position.number, newest.number + 1 if newest is not None else 0)
        marker = Marker(replace(position, number=number), slots, partitions, self.topic)
        for slot in order_of_change(states, slots):
            self._write_marker(slot, marker, states)
        self._newest = marker.position

    def _write_marker(self, slot: int, marker: Marker, seen: Mapping[int, SlotState]) -> None:
        """Give a slot another marker, unless another run has written since its marker was `seen`."""
        transaction = self._take_over(slot)
        try:
            if transaction.marker != marker_of(seen, slot):
                raise position_moved(self.name)
            transaction.begin()
        except BaseException:
            transaction.abort()
            raise
        transaction.commit(marker)

    def _check_partitions(self, schema: pa.Schema) -> None:
        """Has the number of partitions changed? An error where rows choose their partition, else a notice."""
        self.notices = ()
        found = self._check_topics()
        if self.topic is None or self.topic not in found:
            return
        there, before = found[self.topic].partitions, self.partitions
        if before is None and self.markers in found:
            before = known_partitions(self._read([0]))
        if before is None or before == there:
            return
        if PARTITION in schema.names:
            raise MissingError(
                "SINK_PARTITIONS_CHANGED",
                f"sink {self.name}: topic {self.topic}: `partition` was written for another number of partitions",
                context={"before": before, "now": there},
                hint=f"when the expression fits the new number, confirm it in the sink: partitions: {there}",
            )
        self.notices += (
            f"topic {self.topic} has {there} partitions and had {before}: a key may now go to another partition, "
            "so its order starts over",
        )

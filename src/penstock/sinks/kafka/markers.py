"""The markers: the position of each slot, written in the same transaction as its rows.

They live in a compacted topic of the sink's own, one partition for each slot, and are read below the last stable
offset. A slot's writer has the partition to itself once its `init_transactions` has returned, so a transaction must
land at the end that was read before: anything else means that the reading was out of date.

A redrive writes single records, which no position can list. Its transactions also have one entry for each record,
with the record as the key, ahead of the marker: the last record of every transaction is the marker.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from penstock.errors import TerminalError, TransientError
from penstock.kafka import KafkaSettings, explain
from penstock.kafka.hearing import Hearing, check_access, refuse_known
from penstock.model import OffsetRange, Position

KEY = b"marker"
TAIL = 20
_LONGEST_NAME = 249
_MARK = 12
"""Digits of the hash in the names of marker topics that would be too long, not legal, or not unique."""
_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 30.0
_OPTIONS = {
    "group.id": "penstock-markers",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
}
# No group is used: that one may not look at it concerns nobody.
_OF_GROUPS = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED})
_GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})


Record = tuple[str, int, int]
"""The topic, partition and offset of a source record."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The position of a slot. Slots in step have the same one, with the same `number`."""

    position: Position
    slots: int
    partitions: int | None = None
    """How many partitions the sink's fixed topic had."""
    topic: str | None = field(default=None, compare=False)
    """The sink's fixed topic: a sink that is renamed finds its former name by it."""
    whole: bool = field(default=True, compare=False)
    """Whether the position names every partition ever committed; versions before 0.8 stored the last batch alone."""

    @property
    def number(self) -> int:
        """How many commits the slot has made."""
        return self.position.number

    def to_bytes(self) -> bytes:
        """The value of the marker's record."""
        body = {"slots": self.slots, "number": self.number, "partitions": self.partitions}
        named = {"topic": self.topic} if self.topic is not None else {}
        return json.dumps({"token": self.position.to_json(), **body, **named}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Marker:
        """The marker that `to_bytes` wrote, or an earlier version."""
        body = json.loads(value)
        position = Position.from_json(body["token"])
        if position.number:
            return cls(position, body["slots"], body["partitions"], body.get("topic"))
        return cls(replace(position, number=body["number"]), body["slots"], body["partitions"], whole=False)


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot's marker, where its partition ended when that was read, and when the marker was written."""

    marker: Marker | None
    end: int
    written_ms: int = 0


def marker_topic(pipeline: str, sink: str) -> str:
    """The name of a sink's marker topic: legal, at most 249 long, and of no other sink."""
    name = f"penstock.markers.{pipeline}.{sink}"
    plain = _plain(name)
    if plain == name and "." not in pipeline and len(name) <= _LONGEST_NAME:
        return name
    mark = hashlib.sha256(f"{pipeline}\0{sink}".encode()).hexdigest()[:_MARK]
    return f"{plain[: _LONGEST_NAME - len(mark) - 1]}-{mark}"


def sink_of_markers(topic: str, pipeline: str) -> str | None:
    """The sink of this pipeline that a marker topic belongs to; None for other topics and for truncated names."""
    rest = topic.removeprefix(_plain(f"penstock.markers.{pipeline}."))
    return next((name for name in (rest, rest[: -_MARK - 1]) if marker_topic(pipeline, name) == topic), None)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def record_key(record: Record) -> bytes:
    """The key of a redriven record in the marker topic; a topic's name has no slash."""
    return "/".join(map(str, record)).encode()


def read_markers(
    sink: str, settings: KafkaSettings, topic: str, slots: Iterable[int], patience: float = _PATIENCE_SECONDS
) -> dict[int, SlotState]:
    """The newest marker of each slot; nothing for a slot whose partition is not there."""
    reader = _MarkerReader(sink, settings, topic, patience)
    with reader.opened():
        return {slot: state for slot in slots if (state := reader.read(slot)) is not None}


def read_redriven(
    sink: str, settings: KafkaSettings, topic: str, slots: Iterable[int], ranges: Sequence[OffsetRange]
) -> set[Record]:
    """The records in these ranges that redrives have committed, in any slot."""
    found: set[Record] = set()
    reader = _MarkerReader(sink, settings, topic, _PATIENCE_SECONDS)
    with reader.opened():
        for slot in slots:
            found.update(record for record in reader.redriven(slot) if any(_holds(r, record) for r in ranges))
    return found


def _holds(r: OffsetRange, record: Record) -> bool:
    return (r.topic, r.partition) == record[:2] and r.start <= record[2] < r.end


class _MarkerReader:
    def __init__(self, sink: str, settings: KafkaSettings, topic: str, patience: float) -> None:
        self._doing = f"sink {sink}: reading markers from {topic}"
        self._settings = settings
        self._hearing = Hearing(settings)
        self._topic = topic
        self._patience = patience
        self._deadline = time.monotonic() + patience
        self._consumer: Any = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        refuse_known(self._settings)
        own = {"log_level": 0, "fetch.wait.max.ms": 10}
        try:
            self._consumer = Consumer({**own, **self._settings.for_librdkafka(), **_OPTIONS, **self._hearing.options})
            if self._settings.is_secured:
                check_access(self._consumer, self._hearing, self._settings, self._patience, self._doing)
            yield
        except KafkaException as error:
            if self._consumer is None:
                raise explain(error.args[0], self._doing, self._settings.brokers) from None
            raise self._hearing.failure(self._consumer, error.args[0], self._doing) from None
        finally:
            if self._consumer is not None:
                self._consumer.close()

    def read(self, slot: int) -> SlotState | None:
        """The newest marker of a slot; of one from before 0.8, with what the older ones know beyond it."""
        bounds = self._bounds(slot)
        if bounds is None:
            return None
        start, end = bounds
        tail = max(start, end - TAIL)
        found = self._markers(slot, tail, end)
        if not found and tail > start:
            found = self._markers(slot, start, end)
        if not found:
            return SlotState(None, end)
        newest = self._parse(found[-1])
        if not newest.whole:
            older = [self._parse(message).position for message in reversed(self._markers(slot, start, end)[:-1])]
            newest = replace(newest, position=Position.united(newest.position, older))
        return SlotState(newest, end, found[-1].timestamp()[1])

    def redriven(self, slot: int) -> Iterator[Record]:
        """The records that redrives have committed in a slot."""
        bounds = self._bounds(slot)
        for message in self._messages(slot, *bounds) if bounds is not None else ():
            topic, _, place = (message.key() or b"").decode(errors="replace").partition("/")
            partition, _, offset = place.partition("/")
            if partition.isdecimal() and offset.isdecimal():
                yield topic, int(partition), int(offset)

    def _markers(self, slot: int, start: int, end: int) -> list[Any]:
        """The records of markers in `[start, end)`, the newest last."""
        return [message for message in self._messages(slot, start, end) if message.key() == KEY]

    def _parse(self, message: Any) -> Marker:
        try:
            return Marker.from_bytes(message.value())
        except (ValueError, KeyError, TypeError) as error:
            raise TerminalError(
                "SINK_MARKER_UNREADABLE",
                f"{self._doing}: a record is not a marker",
                context={"record": f"{self._topic}[{message.partition()}] offset {message.offset()}", "reason": error},
                hint="only this sink may write to its marker topic",
            ) from None

    def _bounds(self, slot: int) -> tuple[int, int] | None:
        """Where the partition begins and its last stable offset, as its leader has them."""
        self._deadline = time.monotonic() + self._patience
        while True:
            try:
                low, high = self._consumer.get_watermark_offsets(ClientPartition(self._topic, slot), timeout=5.0)
                return int(low), int(high)
            except KafkaException as error:
                if error.args[0].code() in _GONE and slot not in self._partitions():
                    return None
                # A leader that was elected a moment ago does not know the end yet.
                if time.monotonic() > self._deadline or not _may_pass(error.args[0]):
                    raise
                time.sleep(0.1)

    def _partitions(self) -> Iterable[int]:
        topic = self._consumer.list_topics(timeout=5.0).topics.get(self._topic)
        return topic.partitions if topic is not None else ()

    def _messages(self, slot: int, start: int, end: int) -> Iterator[Any]:
        """The records in `[start, end)`. Reads until the position is `end`: nothing after it is committed."""
        if start >= end:
            return
        self._deadline = time.monotonic() + self._patience
        self._consumer.assign([ClientPartition(self._topic, slot, start)])
        try:
            while True:
                message = self._consumer.poll(_POLL_SECONDS)
                error = message.error() if message is not None else None
                if message is None or (error is not None and error.code() != KafkaError._PARTITION_EOF):
                    self._check_patience(slot, end, error)
                    continue
                if error is None:
                    self._deadline = time.monotonic() + self._patience
                if error is None and message.offset() < end:
                    yield message
                if message.offset() >= (end - 1 if error is None else end):
                    return
                self._check_patience(slot, end, None)
        finally:
            self._consumer.unassign()

    def _check_patience(self, slot: int, end: int, error: KafkaError | None) -> None:
        if error is not None and not _may_pass(error):
            raise KafkaException(error)
        self._hearing.refuse(self._doing)
        if time.monotonic() > self._deadline:
            raise TransientError(
                "BROKER_SILENT",
                f"{self._doing}: nothing came for {self._patience:g} s",
                context={"waiting for": f"{self._topic}[{slot}] up to {end}", "client": error or "no answer"},
            )


def _may_pass(error: KafkaError) -> bool:
    return error.code() in _OF_GROUPS or isinstance(explain(error, "", ""), TransientError)


# The slots of a sink, as their markers show them: how many there are, where they stand, and how that changes.
#
# Slot 0's marker says how many slots there are. A change is possible while every slot holds the same last batch: each
# slot's marker is then written anew with the new number, in a transaction of its own, slot 0 last. A crash before that
# leaves the old number in force, with the same last batch in all of its slots, so the change can be done again or not.
#
# A slot that commits counts on: its position's `number` tells which of two slots is older. Slots stay in step because
# each run notes at its start the newest position of any slot, and counts on from there.

States = Mapping[int, SlotState]


def slots_in_force(states: States) -> int | None:
    """The number of slots that the markers speak of; none where there is no marker."""
    found = [state.marker for _, state in sorted(states.items()) if state.marker is not None]
    return found[0].slots if found else None


def last_whole(states: States, slots: int) -> Marker | None:
    """The marker of the last batch, if every one of the first `slots` slots holds it."""
    markers = [_marker(states, slot) for slot in range(slots)]
    first = markers[0]
    if first is None or any(one is None or one.position.last != first.position.last for one in markers):
        return None
    return first


def oldest_position(states: States) -> Position | None:
    """What every slot in force holds at least; none where one of them has no marker."""
    markers = [_marker(states, slot) for slot in range(slots_in_force(states) or 0)]
    there = [marker.position for marker in markers if marker is not None]
    return min(there, key=lambda one: one.number) if there and len(there) == len(markers) else None


def newest_position(states: States) -> Position | None:
    """The newest position of any slot."""
    there = [
        (state.marker.number, state.written_ms, slot) for slot, state in states.items() if state.marker is not None
    ]
    if not there:
        return None
    newest = _marker(states, max(there)[-1])
    assert newest is not None
    return newest.position


def in_step(position: Position, newest: Position | None) -> Position:
    """The position that a slot is about to commit, counted on from the newest one of any slot at the start.

    A batch that some slots have already gets their number, and another one a number that no slot has.
    """
    if newest is None:
        return position
    number = newest.number if newest.last == position.last else max(position.number, newest.number + 1)
    return replace(position, number=number)


def change_needed(sink: str, states: States, slots: int) -> Marker | None:
    """The marker that every slot must be given before `slots` slots can write; none where all is well."""
    held = slots_in_force(states)
    used = [marker for slot in range(slots) if (marker := _marker(states, slot)) is not None]
    if held is None or (held == slots and all(marker.slots == slots for marker in used)):
        return None
    whole = last_whole(states, held)
    if whole is not None:
        return replace(whole, slots=slots)
    raise TerminalError(
        "SINK_SLOTS_CHANGED",
        f"sink {sink}: the number of slots cannot change now: the last batch is not whole",
        context={"in the file": slots, "in the marker topic": held, "slots": describe_slots(states, held)},
        hint=f"run with slots: {held} until a batch is done, then change it",
    )


def order_of_change(states: States, slots: int) -> Sequence[int]:
    """The slots in the order in which a change writes them: slot 0, which decides, is the last."""
    return range(max(slots, slots_in_force(states) or 0) - 1, -1, -1)


def describe_slots(states: States, slots: int, limit: int = 8) -> str:
    """Which batch each slot holds, for messages."""
    shown = [f"{slot}: {_batch(_marker(states, slot))}" for slot in range(min(slots, limit))]
    return ", ".join(shown) + (f" and {slots - limit} more" if slots > limit else "")


def _marker(states: States, slot: int) -> Marker | None:
    return states[slot].marker if slot in states else None


def _batch(marker: Marker | None) -> str:
    return "none" if marker is None else f"batch {marker.position.last.batch_id}"

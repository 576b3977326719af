"""Markers: the position of each slot, written in the same transaction as its rows; and what the markers of all slots
mean together: the number of slots, their positions, and how the number changes.

Slot 0's marker says how many slots there are. A change is possible while every slot holds the same last batch: each
slot's marker is then written anew with the new number, in a transaction of its own, slot 0 last. A crash before that
leaves the old number in force, with the same last batch in all of its slots, so the change can be done again or not.

A slot that commits counts on: its position's `number` tells which of two slots is older. Slots stay in step because
each run notes at its start the newest position of any slot, and counts on from there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.errors import TerminalError
from penstock.model import Position

KEY = b"marker"
_LONGEST_NAME = 249
_MARK = 12
"""Digits of the hash in the names of marker topics that would be too long, not legal, or not unique."""
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
        """The number of commits of the slot."""
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


States = Mapping[int, SlotState]


def slots_in_force(states: States) -> int | None:
    """The number of slots according to the markers; None where there is no marker."""
    found = [state.marker for _, state in sorted(states.items()) if state.marker is not None]
    return found[0].slots if found else None


def last_whole(states: States, slots: int) -> Marker | None:
    """The marker of the last batch, if each of the first `slots` slots has committed it."""
    markers = [marker_of(states, slot) for slot in range(slots)]
    first = markers[0]
    if first is None or any(one is None or one.position.last != first.position.last for one in markers):
        return None
    return first


def oldest_position(states: States) -> Position | None:
    """The position that every slot in force has reached; None where one of them has no marker."""
    markers = [marker_of(states, slot) for slot in range(slots_in_force(states) or 0)]
    there = [marker.position for marker in markers if marker is not None]
    return min(there, key=lambda one: one.number) if there and len(there) == len(markers) else None


def newest_position(states: States) -> Position | None:
    """The newest position of any slot."""
    there = [
        (state.marker.number, state.written_ms, slot) for slot, state in states.items() if state.marker is not None
    ]
    if not there:
        return None
    newest = marker_of(states, max(there)[-1])
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
    """The marker to write into every slot before `slots` slots can write; None where nothing has to change."""
    held = slots_in_force(states)
    used = [marker for slot in range(slots) if (marker := marker_of(states, slot)) is not None]
    if held is None or (held == slots and all(marker.slots == slots for marker in used)):
        return None
    whole = last_whole(states, held)
    if whole is not None:
        return replace(whole, slots=slots)
    raise TerminalError(
        "SINK_SLOTS_CHANGED",
        f"sink {sink}: the number of slots cannot change now: the last batch is incomplete",
        context={"in the file": slots, "in the marker topic": held, "slots": describe_slots(states, held)},
        hint=f"run with slots: {held} until a batch is done, then change it",
    )


def order_of_change(states: States, slots: int) -> Sequence[int]:
    """The slots in the order in which a change writes them: slot 0, which decides, is the last."""
    return range(max(slots, slots_in_force(states) or 0) - 1, -1, -1)


def known_partitions(states: States) -> int | None:
    """How many partitions the sink's fixed topic had, by the first marker."""
    return next((one.marker.partitions for one in states.values() if one.marker is not None), None)


def describe_slots(states: States, slots: int, limit: int = 8) -> str:
    """The batch of each slot, for messages."""
    shown = [f"{slot}: {_batch(marker_of(states, slot))}" for slot in range(min(slots, limit))]
    return ", ".join(shown) + (f" and {slots - limit} more" if slots > limit else "")


def marker_of(states: States, slot: int) -> Marker | None:
    """The marker of a slot, if it has one."""
    return states[slot].marker if slot in states else None


def _batch(marker: Marker | None) -> str:
    return "none" if marker is None else f"batch {marker.position.last.batch_id}"

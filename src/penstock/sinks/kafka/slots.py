"""The slots of a sink, as their markers show them: how many there are, where they stand, and how that changes.

Slot 0's marker says how many slots there are. A change is possible while every slot holds the same last batch: each
slot's marker is then written anew with the new number, in a transaction of its own, slot 0 last. A crash before that
leaves the old number in force, with the same last batch in all of its slots, so the change can be done again or not.

A slot that commits counts on: its position's `number` tells which of two slots is older. Slots stay in step because
each run notes at its start the newest position of any slot, and counts on from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.errors import TerminalError
from penstock.model import Position
from penstock.sinks.kafka.markers import Marker, SlotState

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

"""The number of slots, held in the markers, and how it changes without a record lost or twice.

Slot 0's marker says how many slots there are. A change is possible while every slot holds the same last batch: each
slot's marker is then written anew with the new number, in a transaction of its own, slot 0 last. A crash before that
leaves the old number in force, with the same last batch in all of its slots, so the change can be done again or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.errors import TerminalError
from penstock.model import BatchToken
from penstock.sinks.kafka.markers import Marker, SlotState

States = Mapping[int, SlotState]


def slots_in_force(states: States) -> int | None:
    """The number of slots that the markers speak of; none where there is no marker."""
    found = [state.marker for _, state in sorted(states.items()) if state.marker is not None]
    return found[0].slots if found else None


def last_whole(states: States, seats: int) -> Marker | None:
    """The last batch, if every one of the first `seats` slots holds it."""
    markers = [_marker(states, slot) for slot in range(seats)]
    first = markers[0]
    alike = first is not None and all(
        marker is not None and (marker.token, marker.number) == (first.token, first.number) for marker in markers
    )
    return first if alike else None


def change_needed(sink: str, states: States, slots: int, writers: int, *, sparse: bool) -> Marker | None:
    """The marker that every slot must be given before `slots` slots can write; none where all is well."""
    held = slots_in_force(states)
    used = [marker for slot in range(slots * writers) if (marker := _marker(states, slot)) is not None]
    if held is None or (held == slots and all(marker.slots == slots for marker in used)):
        return None
    whole = None if sparse else last_whole(states, held * writers)
    if whole is not None:
        return Marker(whole.token, slots, whole.number, whole.partitions)
    why = "which of its slots wrote the last batch cannot be told" if sparse else "the last batch is not whole"
    raise TerminalError(
        "SINK_SLOTS_CHANGED",
        f"sink {sink}: the number of slots cannot change now: {why}",
        context={"in the file": slots, "in the marker topic": held, "slots": describe_slots(states, held * writers)},
        hint=f"run with slots: {held} until a batch is done, then change it"
        if not sparse
        else f"go on with slots: {held}; another number needs another name for the sink",
    )


def order_of_change(states: States, slots: int, writers: int) -> Sequence[int]:
    """The slots in the order in which a change writes them: slot 0, which decides, is the last."""
    return range(max(slots, slots_in_force(states) or 0) * writers - 1, -1, -1)


def newest_in_all(states: States, seats: int) -> BatchToken | None:
    """The newest batch that every slot has, whichever query wrote it.

    Where a slot has none yet, the first batch is under way: what all have is then what lies before it.
    """
    markers = [_marker(states, slot) for slot in range(seats)]
    there = [marker for marker in markers if marker is not None]
    if not there:
        return None
    oldest = min(there, key=lambda marker: marker.number).token
    if len(there) == len(markers):
        return oldest
    before = tuple(type(r)(r.topic, r.partition, r.start, r.start) for r in oldest.ranges)
    return BatchToken(oldest.pipeline, oldest.query_id, oldest.batch_id - 1, before)


def newest_in_any(states: States) -> BatchToken | None:
    """The newest batch that some slot has: all that a sparse sink can tell."""
    there = [(state.written_ms, state.marker) for state in states.values() if state.marker is not None]
    return max(there, key=lambda found: (found[0], found[1].token.batch_id))[1].token if there else None


def describe_slots(states: States, seats: int, limit: int = 8) -> str:
    """Which batch each slot holds, for messages."""
    told = [f"{slot}: {_batch(_marker(states, slot))}" for slot in range(min(seats, limit))]
    return ", ".join(told) + (f" and {seats - limit} more" if seats > limit else "")


def _marker(states: States, slot: int) -> Marker | None:
    return states[slot].marker if slot in states else None


def _batch(marker: Marker | None) -> str:
    return "none" if marker is None else f"batch {marker.token.batch_id}"

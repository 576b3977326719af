"""How a batch is cut into slots. Pure and deterministic.

As it suits the batch: large partitions are split, small ones are joined. Or pinned, for sinks that commit in the
slot: then a slot is a function of the partition alone, none is split, and every slot is there in every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from zlib import crc32

from penstock.model import OffsetRange

SMALLEST_SLOT = 5_000
"""Below this many offsets a further task costs more than it gains."""


def plan_slots(
    ranges: Sequence[OffsetRange], cores: int, smallest: int = SMALLEST_SLOT
) -> list[tuple[OffsetRange, ...]]:
    """At most `cores` slots of nearly equal size that cover `ranges` exactly."""
    total = sum(len(r) for r in ranges)
    if total == 0:
        return []
    count = max(1, min(cores, ceil(total / smallest)))
    cuts = [total * i // count for i in range(1, count + 1)]
    slots: list[tuple[OffsetRange, ...]] = []
    current: list[OffsetRange] = []
    seen = 0
    for whole in ranges:
        start = whole.start
        while start < whole.end:
            room = cuts[len(slots)] - seen
            end = min(whole.end, start + room)
            current.append(OffsetRange(whole.topic, whole.partition, start, end))
            seen += end - start
            start = end
            if seen == cuts[len(slots)]:
                slots.append(tuple(current))
                current = []
    return slots


def pin_slots(ranges: Sequence[OffsetRange], slots: int) -> list[tuple[OffsetRange, ...]]:
    """Exactly `slots` slots, some of them empty: each partition in its own, always the same."""
    pinned: list[list[OffsetRange]] = [[] for _ in range(slots)]
    for whole in ranges:
        if len(whole):
            pinned[pinned_slot(whole.topic, whole.partition, slots)].append(whole)
    return [tuple(slot) for slot in pinned]


def pinned_slot(topic: str, partition: int, slots: int) -> int:
    """The slot of a partition. The partitions of one topic go round, so that slots are alike in size."""
    return (crc32(topic.encode()) + partition) % slots

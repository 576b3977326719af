"""How a batch is cut into slots: large partitions are split, small ones are joined. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

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

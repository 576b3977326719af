"""What a slot leaves behind for the driver: who wrote it, how much, and how to commit it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Guarantee(Enum):
    """What a sink promises about each record."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


@dataclass(frozen=True, slots=True)
class SlotAttempt:
    """One try of one slot. Staged data is named by it, so that a task run twice does no harm."""

    slot: int
    attempt: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one slot staged for one sink. `items` are the sink's own and small; they must pickle."""

    sink: str
    writer: SlotAttempt
    rows: int
    size_bytes: int
    items: tuple[object, ...] = ()

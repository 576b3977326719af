"""Finished batches as flow control sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_OFFSETS = 10**12
"""More than any batch: what stands for no bound."""
REMEMBERED = 50
"""How many batches are looked at."""
_SHORTEST, _LONGEST = 0.001, 10.0**7


@dataclass(frozen=True, slots=True)
class Observed:
    """One finished batch."""

    batch_id: int
    offsets: int
    rows: int
    seconds: float
    bytes_in: int
    backlog: int
    """How many offsets waited behind the batch when it was planned out."""
    cap: int
    """The most offsets that it could have taken; 0 where there was no cap, or an unknown one."""
    pressure: float = 0.0
    """The share of the memory that was in use, from 0 to 1."""
    skipped: bool = False


def telling(history: Sequence[Observed]) -> list[Observed]:
    """The batches that tell something about the cost of a batch: they carried records, and took time."""
    return [
        batch
        for batch in history
        if not batch.skipped and 0 < batch.offsets <= MOST_OFFSETS and _SHORTEST <= batch.seconds <= _LONGEST
    ]

"""Finished batches as flow control sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


def observed_in(entries: Iterable[Mapping[str, Any]]) -> list[Observed]:
    """The batches of a run's history. An entry that is not whole is left out: the controller does without it."""
    found = []
    for entry in entries:
        if entry.get("event", "batch") != "batch":
            continue
        try:
            found.append(
                Observed(
                    batch_id=int(entry["batch_id"]),
                    offsets=int(entry["offsets"]),
                    rows=int(entry.get("rows_in") or 0),
                    seconds=float(entry["seconds"]),
                    bytes_in=int(entry.get("bytes_in") or 0),
                    backlog=int(entry.get("lag") or 0),
                    cap=int(entry.get("cap") or 0),
                    pressure=float(entry.get("pressure") or 0.0),
                    skipped=bool(entry.get("skipped")),
                )
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return found

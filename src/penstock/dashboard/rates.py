"""How much goes through a pipeline a second, from the batches of the last minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.dashboard.recent import moment

_WINDOW = 60.0


@dataclass(frozen=True)
class Rates:
    """Rows a second."""

    rows_in: float = 0.0
    rows_out: float = 0.0
    quarantined: float = 0.0


def rates_of(batches: Sequence[Mapping[str, Any]], started_at: str | None, now: float) -> Rates:
    """What the batches that ended in the last minute carried, over the time since the first of them began.

    Where a batch takes longer than that, the last one counts until the next is overdue.
    """
    recent = []
    for batch in reversed(batches):
        if now - moment(batch["at"]) > _WINDOW:
            break
        recent.append(batch)
    if recent:
        first = recent[-1]
        began = moment(first["at"]) - first["seconds"]
        since = max(moment(started_at), now - _WINDOW) if started_at is not None else now - _WINDOW
        return _over(recent, max(now - min(began, since), 1.0))
    if batches:
        last = batches[-1]
        took = last["seconds"] + (last["waited"] or 0.0)
        if last["seconds"] > _WINDOW / 2 and now - moment(last["at"]) < 2 * took:
            return _over([last], took)
    return Rates()


def _over(batches: Sequence[Mapping[str, Any]], seconds: float) -> Rates:
    def rate(name: str) -> float:
        return round(float(sum(batch[name] for batch in batches)) / seconds, 1)

    return Rates(rate("rows_in"), rate("rows_out"), rate("quarantined"))

"""The entries of a run's history as values, as far as a diagnosis needs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

from penstock.model import TopicPartition

MOST_BATCHES = 20
_FEW = 3


@dataclass(frozen=True)
class Batch:
    """One finished batch."""

    batch_id: int
    at: datetime
    started_at: datetime
    seconds: float
    waited: float = 0.0
    rows_in: int = 0
    rows_out: int = 0
    quarantined: int = 0
    bytes_in: int = 0
    offsets: int = 0
    cap: int | None = None
    lag: int = 0
    """The offsets that waited behind it when it began."""
    gc_seconds: float = 0.0
    slot_rows: tuple[int, ...] = ()
    slot_rows_out: tuple[int, ...] = ()
    slot_seconds: tuple[float, ...] = ()
    codes: Mapping[str, int] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def cycle(self) -> float:
        """From the end of the batch before to its own."""
        return self.seconds + self.waited

    @property
    def full(self) -> bool:
        """Whether it took as much as it could."""
        return self.cap is not None and self.offsets >= 0.9 * self.cap

    def wall(self, phase: str, cores: int | None) -> float:
        """The part of the batch's own time that its tasks, side by side, spent on a phase."""
        slots = max(1, len(self.slot_seconds))
        return self.phases.get(phase, 0.0) / min(slots, cores or slots)

    def sink_seconds(self, sink: str, cores: int | None) -> float:
        """The part of the batch's own time that one sink took, staging and committing."""
        return self.wall(f"task_stage:{sink}", cores) + self.phases.get(f"commit:{sink}", 0.0)


@dataclass(frozen=True)
class Kept:
    """What the steps with state remembered after a batch."""

    batch_id: int
    at: datetime
    rows: int
    size_bytes: int
    watermark: datetime | None


@dataclass(frozen=True)
class Retried:
    """A fault that the run tries to outlive."""

    at: datetime
    code: str
    summary: str


def batches_in(entries: Iterable[Mapping[str, Any]]) -> list[Batch]:
    """The batches with anything in them, oldest first; one that was only skipped tells nothing."""
    found = (_batch(entry) for entry in entries if entry["event"] == "batch" and not entry.get("skipped"))
    return [batch for batch in found if batch is not None and (batch.offsets or batch.rows_in)]


def recent_batches(entries: Sequence[Mapping[str, Any]]) -> tuple[Batch, ...]:
    """The last batches of the last run without its first, which warms up; of the runs before it where it had few."""
    last = next((at for at in range(len(entries) - 1, -1, -1) if entries[at]["event"] == "started"), 0)
    own = batches_in(entries[last:])
    if len(own) > _FEW:
        own = own[1:]
    elif len(own) < _FEW:
        own = batches_in(entries)[-_FEW:]
    return tuple(own[-MOST_BATCHES:])


def kept_in(entries: Iterable[Mapping[str, Any]]) -> tuple[Kept, ...]:
    """What was remembered, batch by batch; of a batch that was told of twice the last."""
    found: dict[int, Kept] = {}
    for entry in entries:
        if entry["event"] == "state":
            found[int(entry["batch_id"])] = Kept(
                int(entry["batch_id"]),
                datetime.fromisoformat(entry["at"]),
                int(entry["rows"]),
                int(entry["size_bytes"]),
                _time(entry.get("watermark")),
            )
    return tuple(found[batch_id] for batch_id in sorted(found))


def retries_in(entries: Iterable[Mapping[str, Any]]) -> tuple[Retried, ...]:
    """The faults that were tried again."""
    return tuple(
        Retried(datetime.fromisoformat(entry["at"]), str(entry.get("code")), str(entry.get("summary", "")))
        for entry in entries
        if entry["event"] == "retry"
    )


def input_in(entries: Iterable[Mapping[str, Any]], since: datetime) -> dict[TopicPartition, int]:
    """How many offsets each partition grew by, from the first look at the log ends since then to the last."""
    looks = [e for e in entries if e["event"] == "lag" and datetime.fromisoformat(e["at"]) >= since]
    if len(looks) < 2:
        return {}
    first, last = (_ends(look) for look in (looks[0], looks[-1]))
    return {at: end - first[at] for at, end in last.items() if at in first}


def middle(figures: Iterable[float]) -> float:
    """The median; 0 of nothing."""
    found = list(figures)
    return median(found) if found else 0.0


def _ends(look: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, number): end
        for topic, ends in (look.get("ends") or {}).items()
        for number, end in enumerate(ends)
        if end is not None
    }


def _batch(entry: Mapping[str, Any]) -> Batch | None:
    try:
        at = datetime.fromisoformat(entry["at"])
        return Batch(
            batch_id=int(entry["batch_id"]),
            at=at,
            started_at=_time(entry.get("started_at")) or at,
            seconds=float(entry["seconds"]),
            waited=float(entry.get("waited") or 0.0),
            rows_in=int(entry.get("rows_in") or 0),
            rows_out=int(entry.get("rows_out") or 0),
            quarantined=int(entry.get("quarantined") or 0),
            bytes_in=int(entry.get("bytes_in") or 0),
            offsets=int(entry.get("offsets") or 0),
            cap=entry.get("cap"),
            lag=int(entry.get("lag") or 0),
            gc_seconds=float(entry.get("gc_seconds") or 0.0),
            slot_rows=tuple(entry.get("slot_rows") or ()),
            slot_rows_out=tuple(entry.get("slot_rows_out") or ()),
            slot_seconds=tuple(entry.get("slot_seconds") or ()),
            codes=entry.get("codes") or {},
            phases=entry.get("phases") or {},
        )
    except (KeyError, TypeError, ValueError):
        return None


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text is not None else None

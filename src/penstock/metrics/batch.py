"""The figures of a batch: Penstock's own, since Spark's reader never runs and counts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from penstock.model import TopicPartition


@dataclass(frozen=True, slots=True)
class BatchMetrics:
    """One finished batch. `phases` are seconds: on the driver, and summed over tasks where named `task_*`."""

    pipeline: str
    batch_id: int
    finished_at: datetime
    seconds: float
    rows_in: int
    rows_out: int
    quarantined: int
    bytes_in: int
    slots: int
    lag: int
    skipped: bool = False
    gaps: int = 0
    codes: Mapping[str, int] = field(default_factory=dict)
    """How many records were quarantined, by their codes."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What the transforms counted: late rows, and the rows that broke each rule."""
    phases: Mapping[str, float] = field(default_factory=dict)
    started_at: datetime | None = None
    waited: float = 0.0
    """Seconds between the batch before and this one."""
    offsets: int = 0
    """How many offsets the batch covers; with gaps in the log there are fewer records."""
    cap: int | None = None
    """The most offsets that it could take, if there was a cap."""
    gc_seconds: float = 0.0
    """Garbage collection in the JVM of the driver during the batch."""
    pressure: float = 0.0
    """The share of memory in use: on the driver's machine, or on the fullest of the tasks' machines."""
    slot_rows: tuple[int, ...] = ()
    """Rows in of the slots, most first."""
    slot_rows_out: tuple[int, ...] = ()
    """Rows out of the slots, most first; after a shuffle these are not the slots that read."""
    slot_seconds: tuple[float, ...] = ()
    """Seconds of the slots, slowest first."""
    lags: Mapping[TopicPartition, int] = field(default_factory=dict, repr=False)
    """The offsets that wait after the batch, in each partition."""
    ends: Mapping[TopicPartition, int] = field(default_factory=dict, repr=False)
    """The next offset of each partition of the batch."""

    @property
    def began_at(self) -> datetime:
        """When it began; when it finished if that is not known."""
        return self.started_at or self.finished_at

    @property
    def cycle(self) -> float:
        """Seconds from the end of the batch before to the end of this one."""
        return self.seconds + self.waited

    @property
    def rows_per_second(self) -> float:
        """Rows read a second of batch time."""
        return self.rows_in / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """For `--log-format json` and the history: all but the partitions, of which there may be thousands."""
        body = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("lags", "ends")}
        body["finished_at"] = self.finished_at.isoformat()
        body["started_at"] = self.started_at.isoformat() if self.started_at is not None else None
        for name in ("seconds", "waited", "gc_seconds", "pressure"):
            body[name] = round(body[name], 3)
        body["slot_rows"], body["slot_rows_out"] = list(self.slot_rows), list(self.slot_rows_out)
        body["slot_seconds"] = [round(seconds, 3) for seconds in self.slot_seconds]
        body["phases"] = {name: round(value, 3) for name, value in self.phases.items()}
        return {"event": "batch", **body, "codes": dict(self.codes), "counts": dict(self.counts)}

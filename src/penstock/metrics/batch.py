"""What a batch did, as numbers: Penstock's own, since Spark's reader never runs and counts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any


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

    @property
    def rows_per_second(self) -> float:
        """Rows read a second of batch time."""
        return self.rows_in / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """For `--log-format json`."""
        body = asdict(self)
        body["finished_at"] = self.finished_at.isoformat()
        body["seconds"] = round(self.seconds, 3)
        body["phases"] = {name: round(value, 3) for name, value in self.phases.items()}
        return {"event": "batch", **body}

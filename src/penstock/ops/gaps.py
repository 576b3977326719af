"""What `on_data_loss: record` wrote down: the ranges that were gone from the topic before they could be read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from penstock.assembly.reaching import storage_of
from penstock.config import PipelineConfig
from penstock.quarantine.records import query_table


@dataclass(frozen=True)
class RecordedGap:
    """The offsets `[start, end)` that could no longer be read; `end` may be unknown."""

    topic: str
    partition: int
    start: int
    end: int | None
    reason: str
    batch_id: int
    recorded_at: datetime

    @property
    def offsets(self) -> int | None:
        """How many offsets are missing; None if the end is unknown."""
        return None if self.end is None else self.end - self.start


@dataclass(frozen=True)
class RecordedGaps:
    """The gaps of one pipeline, oldest first."""

    pipeline: str
    on_data_loss: str
    table: str | None
    """The table of gaps; None if the file has no quarantine table."""
    recorded: bool
    """Whether that table exists."""
    gaps: tuple[RecordedGap, ...] = ()

    @property
    def offsets(self) -> int:
        """How many offsets are missing, as far as that is known."""
        return sum(gap.offsets or 0 for gap in self.gaps)

    @property
    def open_ended(self) -> int:
        """How many gaps have no known end."""
        return sum(gap.end is None for gap in self.gaps)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        gaps = [{**asdict(gap), "offsets": gap.offsets} for gap in self.gaps]
        return {
            "pipeline": self.pipeline,
            "on_data_loss": self.on_data_loss,
            "table": self.table,
            "gaps": gaps,
            "total": {"gaps": len(gaps), "offsets": self.offsets, "open_ended": self.open_ended},
        }


def find_gaps(config: PipelineConfig, since: datetime | None = None) -> RecordedGaps:
    """The gaps that were recorded at or after a time. They are returned even if the file now says `fail`."""
    mode = config.source.on_data_loss
    quarantine = config.quarantine.table if config.quarantine is not None else None
    if quarantine is None:
        return RecordedGaps(config.name, mode, None, recorded=False)
    path = f"{quarantine}_gaps"
    # A quarantine, and with it the table of gaps, may be shared by pipelines. A name has no quotes in it.
    asked = f"SELECT * FROM held WHERE pipeline = '{config.name}'"
    rows = query_table(path, storage_of(config), asked, "reading the table of gaps")
    if rows is None:
        return RecordedGaps(config.name, mode, path, recorded=False)
    gaps = (
        RecordedGap(
            row["topic"],
            row["partition"],
            row["from_offset"],
            row["to_offset"],
            row["reason"],
            row["batch_id"],
            row["recorded_at"],
        )
        for row in rows.to_pylist()
        if since is None or row["recorded_at"] >= since
    )
    ordered = sorted(gaps, key=lambda gap: (gap.recorded_at, gap.topic, gap.partition, gap.start))
    return RecordedGaps(config.name, mode, path, recorded=True, gaps=tuple(ordered))

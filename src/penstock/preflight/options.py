"""The options of a run that are not in its file, with their defaults, and its summary. Every command loads this."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.metrics import BatchMetrics


@dataclass(frozen=True)
class RunOptions:
    """What the command line may add to the file."""

    available_now: bool = False
    resume_from_table: bool = False
    accept_duplicates: bool = False
    catch_up: bool = False
    """Before the first batch, let restored targets catch up to the position of the checkpoint."""
    give_up_after: float = 300.0
    stalled_after: float = 3600.0
    """Seconds without any progress until a batch is abandoned with exit code 75; 0 for never."""
    log: Path | None = None
    sharing: int = 1
    """The number of pipelines in the same application, including this one."""


@dataclass
class RunSummary:
    """What a run did."""

    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    quarantined: int = 0
    seconds: float = 0.0
    last: BatchMetrics | None = field(default=None, repr=False)

    def add(self, batch: BatchMetrics) -> None:
        """Count a batch."""
        self.batches += 1
        self.rows_in += batch.rows_in
        self.rows_out += batch.rows_out
        self.quarantined += batch.quarantined
        self.last = batch

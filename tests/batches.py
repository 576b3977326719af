"""Finished batches for tests of what reads about them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from penstock.metrics import BatchMetrics


def finished(number: int, **figures: Any) -> BatchMetrics:
    """A batch of a hundred rows that took a second and ended now; other figures as given."""
    usual: dict[str, Any] = {
        "finished_at": datetime.now(UTC),
        "seconds": 1.0,
        "rows_in": 100,
        "rows_out": 100,
        "quarantined": 0,
        "bytes_in": 20_000,
        "slots": 0,
        "lag": 0,
        "offsets": 100,
    }
    return BatchMetrics(pipeline="orders", batch_id=number, **{**usual, **figures})

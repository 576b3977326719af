"""What a run tells whoever watches it. The command line draws these; a script may collect them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.metrics import BatchMetrics


@dataclass(frozen=True)
class Notice:
    """Something worth knowing that stops nothing."""

    text: str


@dataclass(frozen=True)
class Started:
    """The query runs."""

    pipeline: str
    lane: str
    reason: str
    partitions: int
    query_id: str | None


@dataclass(frozen=True)
class BatchDone:
    """Every sink has committed the batch."""

    metrics: BatchMetrics


@dataclass(frozen=True)
class Retrying:
    """A fault that may pass: what it was, and when it is tried again."""

    error: PenstockError
    attempt: int
    delay: float


@dataclass(frozen=True)
class Stopping:
    """A stop was asked for; the batch in hand is finished first."""


Event = Notice | Started | BatchDone | Retrying | Stopping
Listener = Callable[[Event], None]

"""The events that a run reports to its listener. The command line draws these; a script may collect them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.metrics import BatchMetrics
from penstock.metrics.history import FlowChanged as FlowChanged
from penstock.metrics.history import Notice as Notice
from penstock.metrics.history import StateKept as StateKept


@dataclass(frozen=True)
class Started:
    """The query runs."""

    pipeline: str
    lane: str
    reason: str
    partitions: int
    query_id: str | None
    cores: int = 1
    """How many tasks run in parallel."""


@dataclass(frozen=True)
class BatchPhase:
    """The phase that the current batch has entered: `offsets`, `stage`, `commit:<sink>`."""

    batch_id: int
    phase: str


@dataclass(frozen=True)
class Stalled:
    """A batch has started and shows no progress, or shows progress again."""

    text: str | None
    """The reason; none once there is progress again."""


@dataclass(frozen=True)
class BatchDone:
    """Every sink has committed the batch."""

    metrics: BatchMetrics


@dataclass(frozen=True)
class AlertChanged:
    """A rule of `alerts` has started or stopped firing."""

    rule: str
    firing: bool
    text: str


@dataclass(frozen=True)
class Retrying:
    """A transient error, and when the run retries."""

    error: PenstockError
    attempt: int
    delay: float


@dataclass(frozen=True)
class Stopping:
    """A stop was requested; the current batch is finished first."""


Event = (
    Notice | Started | BatchPhase | Stalled | BatchDone | StateKept | FlowChanged | AlertChanged | Retrying | Stopping
)
Listener = Callable[[Event], None]


def notify_once(listener: Listener) -> Callable[[str], None]:
    """A function that passes each notice on to the listener once."""
    told: set[str] = set()

    def tell(text: str) -> None:
        if text not in told:
            told.add(text)
            listener(Notice(text))

    return tell

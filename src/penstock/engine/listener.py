"""The events of a run. The command line draws them; a script may collect them."""

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
    """How many tasks run at once."""


@dataclass(frozen=True)
class BatchPhase:
    """What the batch in hand has come to: `offsets`, `stage`, `commit:<sink>`."""

    batch_id: int
    phase: str


@dataclass(frozen=True)
class Stalled:
    """A batch has begun and shows no progress, or does so again."""

    text: str | None
    """What was found; none once there is progress."""


@dataclass(frozen=True)
class BatchDone:
    """Every sink has committed the batch."""

    metrics: BatchMetrics


@dataclass(frozen=True)
class AlertChanged:
    """A rule of `alerts` begins to hold, or holds no longer."""

    rule: str
    firing: bool
    text: str


@dataclass(frozen=True)
class Retrying:
    """A fault that may pass: what it was, and when it is tried again."""

    error: PenstockError
    attempt: int
    delay: float


@dataclass(frozen=True)
class Stopping:
    """A stop was asked for; the batch in hand is finished first."""


Event = (
    Notice | Started | BatchPhase | Stalled | BatchDone | StateKept | FlowChanged | AlertChanged | Retrying | Stopping
)
Listener = Callable[[Event], None]


def telling_once(listener: Listener) -> Callable[[str], None]:
    """Tells each notice the first time only."""
    told: set[str] = set()

    def tell(text: str) -> None:
        if text not in told:
            told.add(text)
            listener(Notice(text))

    return tell

"""Flow control in a run: learns from each batch, and sets the cap of the next one. A fixed cap is not changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.config import PipelineConfig
from penstock.flow import REMEMBERED, Decision, Observed, decide
from penstock.metrics import BatchMetrics
from penstock.metrics.history import Entry, FlowChanged, History


class FlowControl:
    """The cap of one run. What earlier runs have learned is in their history, and holds from the first batch on."""

    def __init__(self, config: PipelineConfig, history: History, cores: Callable[[], int], sharing: int = 1) -> None:
        self._flow, self._cores, self._sharing = config.flow, cores, sharing
        self._seen: list[Observed] = []
        self.decision: Decision | None = None
        self.fixed = config.source.max_offsets
        if config.adaptive:
            self._seen = observed_in(history.read(BatchMetrics))[-REMEMBERED:]
            self.decision = decide(self._flow, self._seen, cores(), sharing)

    @property
    def cap(self) -> int | None:
        """The most offsets that the next batch takes."""
        return self.decision.cap if self.decision is not None else self.fixed

    def begun(self) -> FlowChanged | None:
        """What the first batch may take, and why."""
        return _changed(None, None, self.decision) if self.decision is not None else None

    def learn(self, batch: BatchMetrics) -> FlowChanged | None:
        """Learn from a batch; returns a change for the next ones, if any."""
        if self.decision is None:
            return None
        before = self.decision.cap
        self._seen = [*self._seen, observed(batch)][-REMEMBERED:]
        self.decision = decide(self._flow, self._seen, self._cores(), self._sharing)
        return _changed(batch.batch_id, before, self.decision) if self.decision.cap != before else None


def observed_in(entries: Iterable[Entry]) -> list[Observed]:
    """The batches of a history, as flow control sees them."""
    return [observed(entry.fact) for entry in entries if isinstance(entry.fact, BatchMetrics)]


def observed(batch: BatchMetrics) -> Observed:
    """A finished batch, as flow control sees it."""
    return Observed(
        batch_id=batch.batch_id,
        offsets=batch.offsets,
        rows=batch.rows_in,
        seconds=batch.seconds,
        bytes_in=batch.bytes_in,
        backlog=batch.lag,
        cap=batch.cap or 0,
        pressure=batch.pressure,
        skipped=batch.skipped,
    )


def _changed(batch_id: int | None, before: int | None, decision: Decision) -> FlowChanged:
    return FlowChanged(batch_id, decision.cap, before, decision.reason, decision.text)

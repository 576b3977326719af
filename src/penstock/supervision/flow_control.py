"""Flow control in a run: learns from each batch, and sets what the next one may take. A fixed cap is left as it is."""

from __future__ import annotations

from collections.abc import Callable

from penstock.config import PipelineConfig
from penstock.engine.listener import FlowChanged
from penstock.flow import REMEMBERED, Decision, Observed, decide, observed_in
from penstock.metrics import BatchMetrics
from penstock.metrics.history import History


class FlowControl:
    """The cap of one run. What earlier runs have learned is in their history, and holds from the first batch on."""

    def __init__(self, config: PipelineConfig, history: History, cores: Callable[[], int], sharing: int = 1) -> None:
        self._flow, self._cores, self._sharing = config.flow, cores, sharing
        self._seen: list[Observed] = []
        self.decision: Decision | None = None
        self.fixed = config.source.max_offsets
        if config.adaptive:
            self._seen = observed_in(history.read(events=("batch",)))[-REMEMBERED:]
            self.decision = decide(self._flow, self._seen, cores(), sharing)

    @property
    def cap(self) -> int | None:
        """The most offsets that the next batch takes."""
        return self.decision.cap if self.decision is not None else self.fixed

    def begun(self) -> FlowChanged | None:
        """What the first batch may take, and why."""
        return _changed(None, None, self.decision) if self.decision is not None else None

    def learn(self, batch: BatchMetrics) -> FlowChanged | None:
        """Learn from a batch; a change for the next ones, where there is one."""
        if self.decision is None:
            return None
        before = self.decision.cap
        self._seen = [*self._seen, *observed_in([batch.as_json()])][-REMEMBERED:]
        self.decision = decide(self._flow, self._seen, self._cores(), self._sharing)
        return _changed(batch.batch_id, before, self.decision) if self.decision.cap != before else None


def _changed(batch_id: int | None, before: int | None, decision: Decision) -> FlowChanged:
    return FlowChanged(batch_id, decision.cap, before, decision.reason, decision.text)

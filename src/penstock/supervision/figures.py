"""The figures of a run for Prometheus and OpenTelemetry, as far as the file asks for them."""

from __future__ import annotations

from collections.abc import Callable

from penstock.config import MetricsConfig
from penstock.engine.listener import BatchDone, BatchPhase, Event, FlowChanged, Retrying, Started, StateKept
from penstock.metrics.otel import OtelPush
from penstock.metrics.prometheus import Exposition
from penstock.supervision.lag_monitor import LagSample


class Figures:
    """Exposes what it hears, until it is closed."""

    def __init__(self, pipeline: str, config: MetricsConfig, tell: Callable[[str], None]) -> None:
        self._exposition = Exposition(pipeline)
        self._push: OtelPush | None = None
        if config.port is not None:
            port = self._exposition.serve(config.host, config.port)
            tell(f"metrics at http://{config.host}:{port}/metrics")
        if config.otel is not None:
            self._push = OtelPush(
                self._exposition,
                config.otel.endpoint,
                config.otel.every,
                lambda failed: tell(f"metrics are not pushed: {failed}" if failed else "metrics are pushed again"),
            )

    def hear(self, event: Event) -> None:
        """Take in what happened."""
        match event:
            case Started() | BatchPhase():
                self._exposition.started()
            case BatchDone(metrics):
                self._exposition.batch(metrics)
            case StateKept():
                self._exposition.state(event.rows, event.size_bytes)
            case FlowChanged():
                self._exposition.flow(event.cap, event.reason)
            case Retrying(error):
                self._exposition.retried(error.code)

    def see(self, seen: LagSample) -> None:
        """Take in where the logs are."""
        self._exposition.lag(seen.lags, seen.behind)

    def group(self, ok: bool) -> None:
        """Take in whether the consumer group is told."""
        self._exposition.group(ok)

    def close(self) -> None:
        """Push what there is, and answer no longer."""
        if self._push is not None:
            self._push.close()
        self._exposition.close()

"""The same figures by OpenTelemetry: what Prometheus would scrape is pushed to a collector over HTTP, periodically.

Nothing is counted twice: each push reads the registry of the `Exposition`. An unavailable collector is reported once,
and costs the pipeline nothing; the next push has the totals anyway.

The figures are translated here, in forty lines, because OpenTelemetry's own instruments cannot do it: observable ones
are sums or gauges, never histograms, so the time of a batch would have to be recorded a second time. Its periodic
reader logs each failed push, and does not report when pushing works again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from penstock.background import Repeating
from penstock.errors import MissingError
from penstock.metrics.prometheus import Exposition

_LAST_PUSH_SECONDS = 5.0


class OtelPush:
    """Pushes the figures periodically from a daemon thread, and once more when it is closed. Pushing never raises.

    `tell` is called when pushing begins to fail, and with None when it works again.
    """

    def __init__(
        self,
        exposition: Exposition,
        endpoint: str | None,
        every: timedelta,
        tell: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._exporter, self._resource = _open(endpoint, exposition.pipeline)
        self._exposition = exposition
        self._every = every.total_seconds()
        self._tell = tell
        self._failing = self._closing = False
        self._pushing = Repeating("otel", self._push, self._every, once_more=True)

    def close(self) -> None:
        """Push once more, for at most some seconds, and stop."""
        self._closing = True
        self._pushing.close(_LAST_PUSH_SECONDS)
        self._exporter.shutdown()

    def _push(self) -> float:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        if self._failing and self._closing:
            return self._every
        try:
            data = _metrics_data(self._exposition, self._resource)
            failing = self._exporter.export(data) is not MetricExportResult.SUCCESS
        except Exception:  # the pipeline goes on, whatever the collector or the library does
            failing = True
        if failing != self._failing:
            self._failing = failing
            with suppress(Exception):  # nor may a listener prevent the next push
                self._tell("the OpenTelemetry collector does not take them" if failing else None)
        return self._every


def _open(endpoint: str | None, pipeline: str) -> tuple[Any, Any]:
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.resources import Resource
    except ImportError as error:
        raise MissingError(
            "OTEL_MISSING",
            "loading OpenTelemetry: metrics.otel needs an extra that is not installed",
            context={"missing": error.name},
            hint='pip install "penstock[otel]", or remove metrics.otel',
        ) from None
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": f"penstock.{pipeline}"}
    return OTLPMetricExporter(endpoint=endpoint, timeout=_LAST_PUSH_SECONDS), Resource.create(named)


def _metrics_data(exposition: Exposition, resource: Any) -> Any:
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = list(_translated(exposition.registry.collect(), int(exposition.began * 1e9), time.time_ns()))
    scope = ScopeMetrics(InstrumentationScope("penstock"), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _translated(families: Iterable[Metric], began: int, now: int) -> Iterator[Any]:
    """The families of a Prometheus registry as OpenTelemetry's metrics, under the same names without `_total`."""
    from opentelemetry.sdk.metrics import export as otel

    summed = otel.AggregationTemporality.CUMULATIVE
    for family in families:
        data: Any
        if family.type == "histogram":
            data = otel.Histogram(list(_histograms(family.samples, began, now)), summed)
        else:
            points = [otel.NumberDataPoint(sample.labels, began, now, float(sample.value)) for sample in family.samples]
            data = otel.Sum(points, summed, True) if family.type == "counter" else otel.Gauge(points)
        if data.data_points:
            yield otel.Metric(family.name, family.documentation, "", data)


def _histograms(samples: Iterable[Sample], began: int, now: int) -> Iterator[Any]:
    """One point for each set of labels. Prometheus' buckets include those below, OpenTelemetry's do not."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    by_labels: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in samples:
        labels = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        name = sample.labels.get("le", sample.name.rpartition("_")[2])
        by_labels.setdefault(labels, {})[name] = sample.value
    for labels, figures in by_labels.items():
        count, total = int(figures.pop("count")), figures.pop("sum")
        bounds = sorted(float(bound) for bound in figures)
        upto = [int(figures[bound]) for bound in sorted(figures, key=float)]
        counts = [above - below for below, above in zip([0, *upto], upto, strict=False)]
        unknown: Any = None  # the smallest and the largest value
        yield HistogramDataPoint(dict(labels), began, now, count, total, counts, bounds[:-1], min=unknown, max=unknown)

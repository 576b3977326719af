"""The figures of a running pipeline, for Prometheus: one registry, and a small HTTP server in a thread of its own.

In: what the run reports. Out: the text that Prometheus scrapes. Lag has one series per partition, created at each
scrape: so reporting the lag of a thousand partitions costs nothing, and a deleted partition leaves no series.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_asgi_app
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.errors import MissingError
from penstock.metrics.batch import BatchMetrics
from penstock.metrics.http_server import HttpServer, bind
from penstock.model import TopicPartition

_BUCKETS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
_PARTITION = ("pipeline", "topic", "partition")


class Registry(CollectorRegistry):
    """Prometheus' own, without the `_created` series."""

    def collect(self) -> Iterable[Metric]:
        """Every figure as it is now."""
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class _Lags(Collector):
    """Lag by partition, as last reported."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self.reported: tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, float]] = ({}, {})

    def collect(self) -> Iterator[Metric]:
        lags, ages = self.reported
        lag = GaugeMetricFamily("penstock_lag_offsets", "Offsets that wait to be read.", labels=_PARTITION)
        behind = GaugeMetricFamily(
            "penstock_behind_seconds", "Age of the first record that waits to be read.", labels=_PARTITION
        )
        for at, offsets in lags.items():
            labels = (self._pipeline, at.topic, str(at.partition))
            lag.add_metric(labels, offsets)
            if not offsets or at in ages:
                behind.add_metric(labels, ages[at] if offsets else 0.0)
        yield lag
        yield behind


class Exposition:
    """The figures of one pipeline. Thread-safe; nothing here blocks."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self.began = time.time()
        self.registry = Registry()
        self._served: HttpServer | None = None
        self._lags = _Lags(pipeline)
        self.registry.register(self._lags)
        self._rows_in = self._counter("rows_in", "Records read.")
        self._rows_out = self._counter("rows_out", "Rows written, over all sinks.")
        self._bytes_in = self._counter("bytes_in", "Bytes of the records read.")
        self._skipped = self._counter("batches_skipped", "Batches that every sink held already.")
        self._gaps = self._counter("gaps", "Ranges that were gone before they could be read.")
        self._quarantined = self._counter("quarantined", "Records sent to the quarantine, by their code.", "code")
        self._commits = self._counter("sink_commits", "Commits, by sink.", "sink")
        self._restarts = self._counter("restarts", "Times that the query was started again, by the fault.", "code")
        self._decisions = self._counter("flow_decisions", "Decisions of flow control, by their reason.", "reason")
        self._phases = self._counter(
            "batch_phase_seconds",
            "Time of the batches by phase: on the driver they add up to the batch; task_* are sums over all tasks.",
            "phase",
        )
        self._seconds = Histogram(
            "penstock_batch_seconds", "Time of a batch.", ("pipeline",), registry=self.registry, buckets=_BUCKETS
        ).labels(pipeline)
        self._up = self._gauge("up", "1 while the query runs, 0 while it waits to be started again.")
        self._up.set(0)
        self._committed = Gauge(
            "penstock_last_commit_timestamp_seconds",
            "When the newest batch was committed by every sink.",
            ("pipeline",),
            registry=self.registry,
        )
        self._cap = self._optional("flow_cap_offsets", "The most offsets that the next batch takes.")
        self._memory = self._optional("memory_used_ratio", "Share of the memory in use at the end of the last batch.")
        self._state_rows = self._optional("state_rows", "Rows that the steps with state remember.")
        self._state_bytes = self._optional("state_bytes", "Memory of what the steps with state remember.")
        self._group = self._optional(
            "group_up", "1 while offsets are committed to the consumer group, 0 while that fails."
        )

    def _counter(self, name: str, text: str, *labels: str) -> Any:
        made = Counter(f"penstock_{name}", text, ("pipeline", *labels), registry=self.registry)
        return made if labels else made.labels(self.pipeline)

    def _optional(self, name: str, text: str) -> Gauge:
        """A gauge that has no series before it is first set."""
        return Gauge(f"penstock_{name}", text, ("pipeline",), registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return self._optional(name, text).labels(self.pipeline)

    def started(self) -> None:
        """The query runs."""
        self._up.set(1)

    def retried(self, code: str) -> None:
        """The query ended with a transient fault, and will be restarted."""
        self._up.set(0)
        self._restarts.labels(self.pipeline, code).inc()

    def batch(self, done: BatchMetrics) -> None:
        """Every sink has committed a batch, now or earlier."""
        self._up.set(1)
        self._rows_in.inc(done.rows_in)
        self._rows_out.inc(done.rows_out)
        self._bytes_in.inc(done.bytes_in)
        self._gaps.inc(done.gaps)
        self._seconds.observe(done.seconds)
        self._committed.labels(self.pipeline).set(done.finished_at.timestamp())
        if done.skipped:
            self._skipped.inc()
        if done.cap is not None:
            self._cap.labels(self.pipeline).set(done.cap)
        if done.pressure:
            self._memory.labels(self.pipeline).set(done.pressure)
        for code, count in done.codes.items():
            self._quarantined.labels(self.pipeline, code).inc(count)
        for phase, seconds in split_phases(done).items():
            self._phases.labels(self.pipeline, phase).inc(max(seconds, 0.0))
            if phase.startswith("commit:") and not done.skipped:
                self._commits.labels(self.pipeline, phase.removeprefix("commit:")).inc()

    def lag(self, lags: Mapping[TopicPartition, int], behind: Mapping[TopicPartition, float]) -> None:
        """The offsets that wait in each partition, and their age in seconds."""
        self._lags.reported = (dict(lags), dict(behind))

    def state(self, rows: int, size_bytes: int) -> None:
        """The state kept by stateful steps."""
        self._state_rows.labels(self.pipeline).set(rows)
        self._state_bytes.labels(self.pipeline).set(size_bytes)

    def flow(self, cap: int, reason: str) -> None:
        """Flow control changed the cap."""
        self._cap.labels(self.pipeline).set(cap)
        self._decisions.labels(self.pipeline, reason).inc()

    def group(self, ok: bool) -> None:
        """Whether the offsets could be committed to the consumer group."""
        self._group.labels(self.pipeline).set(ok)

    def serve(self, host: str, port: int) -> int:
        """Serve Prometheus at this address until closed; 0 takes a free port. Returns the port."""
        try:
            listener = bind(host, port)
        except (OSError, OverflowError) as error:
            raise _unusable(host, port, error) from None
        self._served = HttpServer(listener, lambda: _readable(make_asgi_app(self.registry)), "penstock-metrics")
        return self._served.port

    def close(self) -> None:
        """Stop serving."""
        if self._served is not None:
            self._served.close()
            self._served = None


def _readable(app: Any) -> Any:
    """The application, for GET and HEAD only, without headers that it cannot decode."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            headers = [(b"allow", b"GET, HEAD"), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 405, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        headers = [(name, value) for name, value in scope["headers"] if value.isascii()]
        await app({**scope, "headers": headers}, receive, send)

    return answer


def split_phases(done: BatchMetrics) -> dict[str, float]:
    """The phases of a batch; those on the driver add up to it: commits by sink, and the rest as `other`."""
    by_sink = any(name.startswith("commit:") for name in done.phases)
    phases = {name: seconds for name, seconds in done.phases.items() if name != "commit" or not by_sink}
    named = sum(seconds for name, seconds in phases.items() if not name.startswith("task_"))
    return {**phases, "other": max(done.seconds - named, 0.0)}


def _unusable(host: str, port: int, error: OSError | OverflowError) -> MissingError:
    number = error.errno if isinstance(error, OSError) else None
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    hint = "correct metrics.host: an address of this machine, such as 127.0.0.1 or 0.0.0.0"
    if number == errno.EADDRINUSE:
        hint = "another process listens there, perhaps another pipeline: take another metrics.port, or 0 for a free one"
    elif number == errno.EACCES:
        hint = "take a metrics.port above 1023"
    return MissingError(
        "METRICS_PORT_UNUSABLE",
        f"opening the metrics endpoint at {host}:{port}: {reason}",
        context={"metrics.host": host, "metrics.port": port},
        hint=hint,
    )

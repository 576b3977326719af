"""The same figures by OpenTelemetry, against a real receiver that decodes what it is sent."""

from __future__ import annotations

import sys
from datetime import timedelta

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from tests.receiver import Receiver, receiving
from tests.services.running import wait_for
from tests.unit.metrics.test_prometheus import batch, everything

from penstock.errors import MissingError
from penstock.metrics.otel import OtelPush
from penstock.metrics.prometheus import Exposition
from penstock.model import TopicPartition

OFTEN, SELDOM = timedelta(milliseconds=50), timedelta(hours=1)


def address(receiver: Receiver) -> str:
    return f"http://127.0.0.1:{receiver.port}/v1/metrics"


def pushed(receiver: Receiver) -> dict[str, ExportMetricsServiceRequest]:
    """The metrics of the newest push by name, and its resource."""
    path, headers, body = receiver.taken[-1]
    assert (path, headers["content-type"]) == ("/v1/metrics", "application/x-protobuf")
    request = ExportMetricsServiceRequest.FromString(body)
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics} | {"resource": resource.resource}


def test_push_sends_every_figure_with_its_labels() -> None:
    exposition = Exposition("orders")
    everything(exposition)
    with receiving() as receiver:
        push = OtelPush(exposition, address(receiver), SELDOM)
        push.close()
        found = pushed(receiver)
    exposed = {family.name for family in exposition.registry.collect() if family.samples}
    assert set(found) == exposed | {"resource"}
    service = {pair.key: pair.value.string_value for pair in found["resource"].attributes}
    assert service["service.name"] == "penstock.orders"
    rows = found["penstock_rows_in"].sum
    assert (rows.is_monotonic, rows.aggregation_temporality, rows.data_points[0].as_double) == (True, 2, 100)
    assert 0 < rows.data_points[0].start_time_unix_nano < rows.data_points[0].time_unix_nano
    codes = {
        pair.value.string_value: point.as_double
        for point in found["penstock_quarantined"].sum.data_points
        for pair in point.attributes
        if pair.key == "code"
    }
    assert codes == {"JSON_BROKEN": 7, "NULL": 3}
    lag = found["penstock_lag_offsets"].gauge.data_points
    labels = {pair.key: pair.value.string_value for pair in lag[0].attributes}
    assert (labels, lag[0].as_double) == ({"pipeline": "orders", "topic": "a", "partition": "0"}, 5)


def test_push_of_the_batch_times_counts_each_in_one_bucket() -> None:
    exposition = Exposition("orders")
    for seconds in (0.05, 0.1, 3.2, 1000.0):
        exposition.batch(batch(seconds=seconds))
    with receiving() as receiver:
        OtelPush(exposition, address(receiver), SELDOM).close()
        (point,) = pushed(receiver)["penstock_batch_seconds"].histogram.data_points
    assert list(point.explicit_bounds) == [0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600]
    assert list(point.bucket_counts) == [2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]
    assert (point.count, point.sum, point.HasField("max")) == (4, 1003.35, False)


def test_push_again_and_again_has_the_newest_figures() -> None:
    exposition = Exposition("orders")
    with receiving() as receiver:
        push = OtelPush(exposition, address(receiver), OFTEN)
        exposition.lag({TopicPartition("a", 0): 7}, {})
        wait_for(lambda: receiver.taken and "penstock_lag_offsets" in pushed(receiver), "the lag", 10)
        exposition.lag({TopicPartition("a", 1): 8}, {})

        def moved() -> bool:
            points = pushed(receiver)["penstock_lag_offsets"].gauge.data_points
            return [point.as_double for point in points] == [8]

        wait_for(moved, "the other partition alone", 10)
        push.close()


def test_push_to_a_collector_that_is_away_is_told_once_and_once_when_it_is_back() -> None:
    told: list[str | None] = []
    with receiving() as receiver:
        where, port = address(receiver), receiver.port
    push = OtelPush(Exposition("orders"), where, OFTEN, told.append)
    wait_for(lambda: told, "the complaint", 30)
    with receiving(port):
        wait_for(lambda: len(told) == 2, "that it works again", 30)
        push.close()
    assert told == ["the OpenTelemetry collector does not take them", None]


def test_push_without_the_extra_is_missing_with_the_line_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(MissingError) as raised:
        OtelPush(Exposition("orders"), None, SELDOM)
    assert raised.value.code == "OTEL_MISSING"
    assert 'pip install "penstock[otel]"' in str(raised.value.hint)

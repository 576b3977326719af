"""What Prometheus reads from a running pipeline."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families
from tests.debian import program

from penstock.errors import MissingError
from penstock.metrics import BatchMetrics
from penstock.metrics.prometheus import Exposition, split_phases
from penstock.model import TopicPartition

NOW = datetime(2026, 1, 31, 8, tzinfo=UTC)
PHASES = {
    "offsets": 0.1,
    "stage": 2.0,
    "commit": 1.0,
    "commit:orders": 0.6,
    "commit:quarantine": 0.3,
    "task_read": 3.0,
}


def batch(number: int = 1, **more: Any) -> BatchMetrics:
    facts: dict[str, Any] = {
        "pipeline": "orders",
        "batch_id": number,
        "finished_at": NOW,
        "seconds": 3.2,
        "rows_in": 100,
        "rows_out": 90,
        "quarantined": 10,
        "bytes_in": 5000,
        "slots": 2,
        "lag": 7,
        "gaps": 1,
        "codes": {"JSON_BROKEN": 7, "NULL": 3},
        "phases": PHASES,
        "cap": 500,
        "pressure": 0.25,
    }
    return BatchMetrics(**{**facts, **more})


@pytest.fixture
def exposition() -> Iterator[Exposition]:
    made = Exposition("orders")
    yield made
    made.close()


def text(exposition: Exposition) -> str:
    port = exposition.serve("127.0.0.1", 0)
    return requests.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text


def figures(exposition: Exposition) -> dict[tuple[str, ...], float]:
    """By name and label values, the pipeline left out."""
    found = {}
    for family in text_string_to_metric_families(text(exposition)):
        for sample in family.samples:
            assert sample.labels["pipeline"] == "orders"
            labels = (value for name, value in sorted(sample.labels.items()) if name != "pipeline")
            found[sample.name, *labels] = sample.value
    return found


def everything(exposition: Exposition) -> None:
    exposition.started()
    exposition.batch(batch(1))
    exposition.batch(batch(2, skipped=True, rows_in=0, rows_out=0, codes={}, gaps=0))
    exposition.retried("KAFKA_UNREACHABLE")
    exposition.started()
    exposition.flow(1000, "behind")
    exposition.state(42, 4096)
    exposition.group(True)
    exposition.lag({TopicPartition("a", 0): 5, TopicPartition("a", 1): 0}, {TopicPartition("a", 0): 12.5})


def test_endpoint_after_two_batches_gives_their_figures(exposition: Exposition) -> None:
    everything(exposition)
    found = figures(exposition)
    assert {name: value for name, value in found.items() if name[0] != "penstock_batch_seconds_bucket"} == {
        ("penstock_up",): 1,
        ("penstock_rows_in_total",): 100,
        ("penstock_rows_out_total",): 90,
        ("penstock_bytes_in_total",): 10000,
        ("penstock_batches_skipped_total",): 1,
        ("penstock_gaps_total",): 1,
        ("penstock_quarantined_total", "JSON_BROKEN"): 7,
        ("penstock_quarantined_total", "NULL"): 3,
        ("penstock_sink_commits_total", "orders"): 1,
        ("penstock_sink_commits_total", "quarantine"): 1,
        ("penstock_restarts_total", "KAFKA_UNREACHABLE"): 1,
        ("penstock_flow_decisions_total", "behind"): 1,
        ("penstock_flow_cap_offsets",): 1000,
        ("penstock_memory_used_ratio",): 0.25,
        ("penstock_state_rows",): 42,
        ("penstock_state_bytes",): 4096,
        ("penstock_group_up",): 1,
        ("penstock_last_commit_timestamp_seconds",): NOW.timestamp(),
        ("penstock_lag_offsets", "0", "a"): 5,
        ("penstock_lag_offsets", "1", "a"): 0,
        ("penstock_behind_seconds", "0", "a"): 12.5,
        ("penstock_behind_seconds", "1", "a"): 0,
        ("penstock_batch_seconds_count",): 2,
        ("penstock_batch_seconds_sum",): 6.4,
        ("penstock_batch_phase_seconds_total", "offsets"): 0.2,
        ("penstock_batch_phase_seconds_total", "stage"): 4.0,
        ("penstock_batch_phase_seconds_total", "commit:orders"): 1.2,
        ("penstock_batch_phase_seconds_total", "commit:quarantine"): 0.6,
        ("penstock_batch_phase_seconds_total", "task_read"): 6.0,
        ("penstock_batch_phase_seconds_total", "other"): pytest.approx(0.4),
    }
    assert found["penstock_batch_seconds_bucket", "5.0"] == 2
    assert found["penstock_batch_seconds_bucket", "2.0"] == 0


def test_endpoint_answer_passes_the_linter_of_prometheus(exposition: Exposition) -> None:
    everything(exposition)
    words = [str(program("promtool", package="prometheus")), "check", "metrics"]
    done = subprocess.run(words, input=text(exposition), capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_lag_of_partitions_that_went_away_leaves_no_series(exposition: Exposition) -> None:
    exposition.lag({TopicPartition("a", n): n for n in range(3)}, {})
    exposition.lag({TopicPartition("b", 0): 9}, {TopicPartition("b", 0): 1.0})
    found = {name: value for name, value in figures(exposition).items() if "lag" in name[0] or "behind" in name[0]}
    assert found == {("penstock_lag_offsets", "0", "b"): 9, ("penstock_behind_seconds", "0", "b"): 1.0}


def test_lag_of_an_age_that_is_not_known_gives_no_age(exposition: Exposition) -> None:
    exposition.lag({TopicPartition("a", 0): 9}, {})
    assert ("penstock_behind_seconds", "0", "a") not in figures(exposition)


def test_lag_of_a_thousand_partitions_is_cheap_to_tell(exposition: Exposition) -> None:
    lags = {TopicPartition("a", n): n for n in range(1000)}
    ages = dict.fromkeys(lags, 1.5)
    calls = Counter[str]()
    sys.setprofile(lambda frame, event, arg: calls.update([event]))
    try:
        exposition.lag(lags, ages)
        exposition.batch(batch(0))
    finally:
        sys.setprofile(None)
    assert calls["call"] + calls["c_call"] < 10 * len(lags), "nothing is formatted until somebody asks"
    assert sum(name[0] == "penstock_lag_offsets" for name in figures(exposition)) == 1000


def test_up_while_it_waits_to_be_started_again_is_zero(exposition: Exposition) -> None:
    exposition.started()
    exposition.retried("KAFKA_UNREACHABLE")
    assert figures(exposition)["penstock_up",] == 0
    exposition.close()
    exposition.batch(batch())
    assert figures(exposition)["penstock_up",] == 1


def test_serve_port_that_is_taken_is_missing_with_the_way_out(exposition: Exposition) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MissingError) as raised:
            exposition.serve("127.0.0.1", port)
    assert raised.value.code == "METRICS_PORT_UNUSABLE"
    assert raised.value.context["metrics.port"] == str(port)
    assert "another metrics.port" in str(raised.value.hint)
    # It is free now, and what failed has left nothing behind.
    assert exposition.serve("127.0.0.1", port) == port


def test_serve_host_of_another_machine_is_missing(exposition: Exposition) -> None:
    with pytest.raises(MissingError) as raised:
        exposition.serve("192.0.2.1", 0)
    assert raised.value.code == "METRICS_PORT_UNUSABLE"
    assert "metrics.host" in str(raised.value.hint)


def test_close_frees_the_port_and_leaves_no_thread(exposition: Exposition) -> None:
    before = set(threading.enumerate())
    port = exposition.serve("127.0.0.1", 0)
    exposition.close()
    exposition.close()
    assert set(threading.enumerate()) == before
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://127.0.0.1:{port}/metrics", timeout=5)


def test_phases_on_the_driver_add_up_to_the_batch() -> None:
    phases = split_phases(batch())
    assert sum(seconds for name, seconds in phases.items() if not name.startswith("task_")) == pytest.approx(3.2)
    assert "commit" not in phases
    assert split_phases(batch(phases={"commit": 1.0, "stage": 5.0}))["other"] == 0.0

"""Pipelines that remember rows from batch to batch, on a real broker and real Spark, into real tables."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from penstock.config import load
from penstock.errors import MissingError
from penstock.metrics.history import StateKept, history_of
from penstock.preflight.options import RunOptions, RunSummary
from penstock.supervision.run import run

pytestmark = pytest.mark.services

START = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = "id BIGINT NOT NULL, who STRING, amount BIGINT, at TIMESTAMP"
WATERMARK = {"watermark": {"column": "at", "delay": "10 minutes"}}


def event(number: int, minutes: float, who: str = "a", amount: int = 1) -> dict[str, Any]:
    return {"id": number, "who": who, "amount": amount, "at": (START + timedelta(minutes=minutes)).isoformat()}


def rows(path: Path) -> list[dict[str, Any]]:
    return DeltaTable(path).to_pyarrow_table().to_pylist()


@pytest.fixture
def drain(spark: Any) -> Callable[..., RunSummary]:
    def go(file: Path) -> RunSummary:
        return run(load(file), RunOptions(available_now=True), session=spark)

    return go


def windows(path: Path) -> list[tuple[str, str, int, int]]:
    return sorted((r["window_start"].strftime("%H:%M"), r["who"], r["orders"], r["total"]) for r in rows(path))


def test_window_gives_each_window_once_and_keeps_late_rows(
    topics: Any, pipeline_file: Callable[..., Path], drain: Callable[..., RunSummary], tmp_path: Path
) -> None:
    topic = topics.create(2)
    window = {"size": "5 minutes", "by": ["who"], "aggregates": {"orders": "count(*)", "total": "sum(amount)"}}
    file = pipeline_file(
        topic,
        decode={"format": "json", "schema": COLUMNS},
        transforms=[
            {"watermark": {"column": "at", "delay": "10 minutes", "late": "quarantine"}},
            {"where": "amount > 0"},
            {"window": window},
        ],
    )
    topics.send(
        topic, [event(1, 0), event(2, 1, amount=5), event(3, 2, "b"), event(4, 6), event(5, 1, amount=0), b"no"]
    )
    summary = drain(file)
    assert (summary.rows_in, summary.rows_out, summary.quarantined) == (6, 0, 1)
    topics.send(topic, [event(6, 30)])
    drain(file)
    assert windows(tmp_path / "lake/out") == [("00:00", "a", 2, 6), ("00:00", "b", 1, 1), ("00:05", "a", 1, 1)]
    # Late: the watermark stands at 20 minutes. 16 and 17 are of a window that has ended, 21 is not.
    topics.send(topic, [event(7, 3), event(8, 16), event(9, 17), event(10, 21), event(11, 60)])
    summary = drain(file)
    assert summary.quarantined == 3
    found = {(r["code"], r["stage"]) for r in rows(tmp_path / "lake/quarantine")}
    assert found == {("LATE", "transform"), ("MALFORMED_JSON", "decode")}
    assert windows(tmp_path / "lake/out")[3:] == [("00:20", "a", 1, 1), ("00:30", "a", 1, 1)]
    noted = [entry.fact for entry in history_of(load(file).checkpoint).read() if isinstance(entry.fact, StateKept)]
    assert noted[0].watermark is None  # before the first event there is none
    assert noted[-1].watermark == "2026-01-01T00:50:00.000Z"


@pytest.mark.long
def test_window_emits_changes_into_a_merged_table(
    topics: Any, pipeline_file: Callable[..., Path], drain: Callable[..., RunSummary], tmp_path: Path
) -> None:
    topic = topics.create(1)
    window = {"size": "5 minutes", "by": ["who"], "emit": "changes", "aggregates": {"orders": "count(*)"}}
    sink = {"name": "out", "type": "delta", "path": "lake/out", "mode": "merge", "keys": ["window_start", "who"]}
    file = pipeline_file(
        topic, decode={"format": "json", "schema": COLUMNS}, transforms=[WATERMARK, {"window": window}], sinks=[sink]
    )
    for number, seen in ((1, 1), (2, 2), (3, 3)):
        topics.send(topic, [event(number, 1)])
        drain(file)
        assert [(r["who"], r["orders"]) for r in rows(tmp_path / "lake/out")] == [("a", seen)]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        pytest.param(
            {"size": "10 minutes", "slide": "5 minutes"},
            {("23:55", 2), ("00:00", 3), ("00:05", 1)},
            id="sliding",
            marks=pytest.mark.long,
        ),
        pytest.param({"gap": "3 minutes"}, {("00:00", 2), ("00:06", 1)}, id="session", marks=pytest.mark.long),
    ],
)
def test_windows_that_slide_and_sessions_are_those_of_spark(
    topics: Any, pipeline_file: Callable[..., Path], drain: Callable[..., RunSummary], tmp_path: Path, spans: Any,
    expected: set[Any],
) -> None:  # fmt: skip
    topic = topics.create(1)
    window = {**spans, "by": ["who"], "aggregates": {"orders": "count(*)"}}
    file = pipeline_file(
        topic, decode={"format": "json", "schema": COLUMNS}, transforms=[WATERMARK, {"window": window}]
    )
    topics.send(topic, [event(1, 0), event(2, 1), event(3, 6)])
    drain(file)
    topics.send(topic, [event(4, 60)])
    drain(file)
    assert {(r["window_start"].strftime("%H:%M"), r["orders"]) for r in rows(tmp_path / "lake/out")} == expected


@pytest.mark.long
def test_dedupe_within_a_time_forgets_keys_only_then(
    topics: Any, pipeline_file: Callable[..., Path], drain: Callable[..., RunSummary], tmp_path: Path
) -> None:
    topic = topics.create(1)
    file = pipeline_file(
        topic,
        decode={"format": "json", "schema": COLUMNS},
        transforms=[
            {"watermark": {"column": "at", "delay": "1 minute"}},
            {"dedupe": {"keys": ["id"], "within": "1 hour"}},
        ],
    )
    topics.send(topic, [event(1, 0), event(2, 0), event(1, 1)])
    drain(file)
    # The watermark alone would have forgotten them here: only `within` keeps them.
    topics.send(topic, [event(3, 30), event(1, 30)])
    drain(file)
    topics.send(topic, [event(4, 59), event(2, 59)])
    drain(file)
    assert sorted(r["id"] for r in rows(tmp_path / "lake/out")) == [1, 2, 3, 4]
    topics.send(topic, [event(5, 200)])
    drain(file)
    topics.send(topic, [event(1, 201)])
    drain(file)
    assert sorted(r["id"] for r in rows(tmp_path / "lake/out")) == [1, 1, 2, 3, 4, 5]


PAID = "order_id BIGINT NOT NULL, paid BIGINT, paid_at TIMESTAMP"


def payment(number: int, minutes: float) -> dict[str, Any]:
    return {"order_id": number, "paid": number * 10, "paid_at": (START + timedelta(minutes=minutes)).isoformat()}


@pytest.fixture
def join_file(topics: Any, pipeline_file: Callable[..., Path]) -> Callable[..., tuple[Path, str, str]]:
    def write(**join: Any) -> tuple[Path, str, str]:
        orders, payments = topics.create(2, prefix="orders"), topics.create(1, prefix="payments")
        source = {"type": "kafka", "brokers": topics.brokers, "start": "earliest"}
        sides = {
            "orders": {
                **source,
                "topics": [orders],
                "decode": {"format": "json", "schema": COLUMNS},
                "transforms": [{"where": "amount > 0"}, WATERMARK],
            },
            "payments": {
                **source,
                "topics": [payments],
                "decode": {"format": "json", "schema": PAID},
                "transforms": [{"watermark": {"column": "paid_at", "delay": "10 minutes", "late": "quarantine"}}],
            },
        }
        settings = {"left": "orders", "right": "payments", "on": {"id": "order_id"}, "within": "1 hour", **join}
        file = pipeline_file(
            orders, sources=sides, transforms=[{"join": settings}, {"derive": {"open": "amount - coalesce(paid, 0)"}}]
        )
        body = file.read_text().split("\n")
        at = body.index("source:")
        end = next(i for i in range(at + 1, len(body)) if body[i] and not body[i].startswith((" ", "-")))
        body[at:end] = []
        at = body.index("decode:")
        end = next(i for i in range(at + 1, len(body)) if body[i] and not body[i].startswith((" ", "-")))
        body[at:end] = []
        file.write_text("\n".join(body))
        return file, orders, payments

    return write


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        pytest.param("inner", [(1, 10)], marks=pytest.mark.long),
        pytest.param("left", [(1, 10), (2, None)], marks=pytest.mark.long),
        pytest.param("full", [(1, 10), (2, None), (None, 70)], marks=pytest.mark.long),
    ],
)
def test_join_of_two_sources_gives_matches_and_what_found_none(
    topics: Any, join_file: Callable[..., Any], drain: Callable[..., RunSummary], tmp_path: Path, kind: str,
    expected: list[Any],
) -> None:  # fmt: skip
    file, orders, payments = join_file(type=kind)
    topics.send(orders, [event(1, 0), event(2, 1), event(9, 1, amount=0)])
    topics.send(payments, [payment(7, 2), b"bad"])
    summary = drain(file)
    assert (summary.rows_in, summary.quarantined) == (5, 1)
    topics.send(payments, [payment(1, 30)])
    drain(file)
    # Both watermarks pass the hour: what found no match comes out, once.
    topics.send(orders, [event(100, 300)])
    topics.send(payments, [payment(200, 300)])
    drain(file)
    topics.send(orders, [event(101, 301)])
    topics.send(payments, [payment(201, 301)])
    drain(file)
    found = [(r["id"], r["paid"]) for r in rows(tmp_path / "lake/out")]
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_change_of_a_step_with_state_is_refused_with_both_sides(
    topics: Any, pipeline_file: Callable[..., Path], drain: Callable[..., RunSummary]
) -> None:
    topic = topics.create(1)

    def file(**window: Any) -> Path:
        settings = {"size": "5 minutes", "aggregates": {"orders": "count(*)"}, **window}
        steps = [WATERMARK, {"window": settings}]
        return pipeline_file(topic, decode={"format": "json", "schema": COLUMNS}, transforms=steps)

    topics.send(topic, [event(1, 0)])
    drain(file())
    with pytest.raises(MissingError) as refused:
        drain(file(size="6 minutes"))
    assert refused.value.code == "STATE_CHANGED"
    assert "300000 milliseconds" in str(refused.value.context["in the checkpoint"])
    assert "360000 milliseconds" in str(refused.value.context["in the file"])
    with pytest.raises(MissingError) as refused:
        drain(file(aggregates={"orders": "sum(amount)"}))
    assert refused.value.code == "STATE_CHANGED"
    drain(file())

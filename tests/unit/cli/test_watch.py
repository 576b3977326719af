"""What a run prints: lines in a pipe, JSON for machines, a view on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from penstock.cli import run_views
from penstock.cli.run_views import JsonView, LineView, LiveView, choose_view
from penstock.engine.listener import AlertChanged, BatchDone, Event, FlowChanged, Notice, Retrying, Started, Stopping
from penstock.errors import TransientError
from penstock.metrics import BatchMetrics

AWAY = TransientError(
    "BROKER_UNREACHABLE", "no answer from the brokers", context={"brokers": "a:1", "cause": "timed out"}
)


def batch(**changed: Any) -> BatchDone:
    numbers: dict[str, Any] = {
        "pipeline": "orders",
        "batch_id": 7,
        "finished_at": datetime(2026, 1, 1, tzinfo=UTC),
        "seconds": 0.5,
        "rows_in": 1200,
        "rows_out": 1190,
        "quarantined": 3,
        "codes": {"TRUNCATED": 1, "MALFORMED_AVRO": 2},
        "bytes_in": 9,
        "slots": 2,
        "lag": 40,
    }
    return BatchDone(BatchMetrics(**{**numbers, **changed}))


EVENTS: list[Event] = [
    Started("orders", "direct", "no transforms", 1, "q"),
    Notice("[bold] is text here"),
    batch(),
    Retrying(AWAY, 2, 4.0),
    Stopping(),
]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[StringIO]:
    """Both streams, as one wide page."""
    page = StringIO()
    for name in ("out", "err"):
        monkeypatch.setattr(run_views, name, Console(file=page, width=200, highlight=False, soft_wrap=True))
    yield page


def test_line_view_tells_one_line_an_event(screen: StringIO) -> None:
    with LineView() as view:
        for event in EVENTS:
            view(event)
    lines = [line.split(" ", 1) for line in screen.getvalue().splitlines()]
    assert all(datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ") for stamp, _ in lines)
    assert [text for _, text in lines] == [
        "orders started: direct lane, 1 partition",
        "note: [bold] is text here",
        "batch 7: 1,200 in, 1,190 out, 3 quarantined (MALFORMED_AVRO 2, TRUNCATED 1), 0.50 s, 2,400 rows/s, lag 40",
        "BROKER_UNREACHABLE no answer from the brokers (brokers: a:1; cause: timed out); retry 2 in 4 s",
        "stopping: finishing the current batch",
    ]


def test_line_view_batch_seen_before_and_gaps_are_told(screen: StringIO) -> None:
    view = LineView()
    view(batch(skipped=True))
    view(batch(gaps=1))
    seen, gaps = screen.getvalue().splitlines()
    assert seen.endswith("batch 7: already committed by every sink, nothing to do")
    assert gaps.endswith("lag 40, 1 gap recorded")


def test_json_view_prints_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonView()
    for event in EVENTS:
        view(event)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [t["event"] for t in told] == ["started", "notice", "batch", "retrying", "stopping"]
    assert (told[2]["rows_in"], told[2]["lag"], told[3]["code"]) == (1200, 40, "BROKER_UNREACHABLE")
    assert all(datetime.fromisoformat(t["at"]).tzinfo for t in told)


def test_live_view_shows_the_numbers_and_keeps_notices_above(monkeypatch: pytest.MonkeyPatch) -> None:
    page = StringIO()
    terminal = Console(file=page, width=120, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(run_views, "out", terminal)
    with LiveView() as view:
        for event in EVENTS:
            view(event)
    text = page.getvalue()
    last = text[text.rindex("orders") :]
    assert "direct lane, 1 partition: stopped" in last
    for fact in ("2,400 a second", "2,380 a second", "7, 0.50 s"):
        assert fact in last
    assert "Ctrl-C" not in last
    assert text.index("note: [bold] is text here") < text.rindex("orders")


def test_choose_view_follows_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_views, "out", Console(file=StringIO(), force_terminal=True))
    assert isinstance(choose_view("auto"), LiveView)
    assert type(choose_view("text")) is LineView
    assert isinstance(choose_view("json"), JsonView)
    monkeypatch.setattr(run_views, "out", Console(file=StringIO(), force_terminal=False))
    assert type(choose_view("auto")) is LineView


def test_json_view_has_a_line_for_a_change_of_the_flow_and_of_an_alert(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonView()
    view(FlowChanged(3, 2_000, 1_000, "backlog", "larger batches"), "orders")
    view(AlertChanged("late", True, "5 minutes behind"), "orders")
    flow, alert = map(json.loads, capsys.readouterr().out.splitlines())
    assert (flow["event"], flow["pipeline"], flow["batch_id"], flow["cap"]) == ("flow", "orders", 3, 2_000)
    assert (alert["event"], alert["rule"], alert["firing"]) == ("alert", "late", True)

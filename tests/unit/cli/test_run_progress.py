"""How far a replay or a redrive is, in a pipe and on a terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from io import StringIO

import pytest
from rich.console import Console

from penstock.cli import run_views
from penstock.cli.run_views import RunProgress
from penstock.engine.listener import BatchDone, Event, Notice, Retrying, Started, Stopping
from penstock.errors import TransientError
from penstock.metrics import BatchMetrics


def events() -> list[Event]:
    done = BatchMetrics(
        pipeline="orders", batch_id=1, finished_at=datetime(2026, 1, 1, tzinfo=UTC), seconds=0.5, rows_in=1200,
        rows_out=1190, quarantined=3, codes={}, bytes_in=9, slots=2, lag=0,
    )  # fmt: skip
    return [
        Started("orders", "direct", "no transforms", 1, "q"),
        BatchDone(done),
        Notice("[bold] is text here"),
        Retrying(TransientError("AWAY", "no answer"), 2, 4.0),
        Stopping(),
    ]


def progress(*, quiet: bool = False) -> RunProgress:
    return RunProgress(
        "replaying",
        2400,
        amount=lambda metrics: metrics.rows_in,
        outcome=lambda metrics: f"{metrics.quarantined:,} failed again",
        done=1200,
        commits_after=1,
        quiet=quiet,
    )


def test_progress_in_a_pipe_is_a_line_a_batch_and_notes_go_to_the_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as bar:
        for event in events():
            bar(event)
    printed = capsys.readouterr()
    assert printed.out == "batch 1: 1,200 in, 3 failed again, 0.50 s\n"
    assert printed.err.splitlines() == ["note: [bold] is text here", "AWAY no answer; retry 2 in 4 s"]


def test_progress_that_is_quiet_prints_no_batch(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(quiet=True) as bar:
        bar(events()[1])
    assert capsys.readouterr().out == ""


def test_progress_on_a_terminal_goes_on_where_the_run_was_and_tells_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    page = StringIO()
    monkeypatch.setattr(run_views, "out", Console(file=page, width=200, force_terminal=True))
    with progress() as bar:
        for event in events()[:2]:
            bar(event)
    assert "2400/2400" in page.getvalue()
    assert "committing" in page.getvalue()
    assert "batch 1" not in page.getvalue()

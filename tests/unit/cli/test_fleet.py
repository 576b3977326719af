from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.cli.run_views import FleetTable, JsonView, LineView, choose_view
from penstock.engine.listener import BatchDone, Notice, Retrying, Started, Stopping
from penstock.errors import MissingError
from penstock.metrics import BatchMetrics
from penstock.preflight.options import RunSummary
from penstock.supervision.fleet_events import Ended, FileChanged, FileRefused, FleetEvent, Waiting

ERROR = MissingError("TOPIC_MISSING", "no such topic: orders", context={"brokers": "b:1"}, hint="create the topic")


def batch(rows: int = 5) -> BatchDone:
    return BatchDone(
        BatchMetrics("orders", 7, datetime(2026, 1, 1, tzinfo=UTC), 0.5, rows, rows, 0, 100, 1, 3, False, 0)
    )


EVENTS: list[tuple[str, FleetEvent]] = [
    ("orders", Started("orders", "direct", "no transforms", 2, None)),
    ("orders", batch()),
    ("orders", Notice("a note")),
    ("orders", Retrying(ERROR, 1, 2.0)),
    ("orders", Waiting(ERROR, 1, 10.0, again=False)),
    ("orders", Waiting(ERROR, 2, 20.0, again=True)),
    ("orders", Waiting(ERROR, 2, None, again=False)),
    ("orders", FileChanged(Path("orders.yaml"), "changed")),
    ("orders", FileRefused(Path("orders.yaml"), ERROR, running=True)),
    ("orders", Stopping()),
    ("orders", Ended(RunSummary(3, 10, 9, 1, 4.2))),
]


def test_lines_of_a_fleet_bear_the_name_and_tell_a_failure_once(capsys: pytest.CaptureFixture[str]) -> None:
    view = LineView()
    for name, event in EVENTS:
        view(event, name)
    printed = capsys.readouterr()
    # Each without its time.
    out = [line[21:] for line in printed.out.splitlines()]
    err = printed.err.splitlines()
    assert out == [
        "orders started: direct lane, 2 partitions",
        "orders: batch 7: 5 in, 5 out, 0 quarantined, 0.50 s, 10 rows/s, lag 3",
        "orders: orders.yaml was changed: restarting with it",
        "orders: ended: 3 batches, 10 rows in, 9 out, 1 quarantined, 4.2 s",
    ]
    assert [line[21:] for line in err if line.startswith("20")] == [
        "orders: note: a note",
        "orders: TOPIC_MISSING no such topic: orders (brokers: b:1); retry 1 in 2 s",
        "orders: failed; the others continue, try 2 in 10 s",
        "orders: failed; the others continue, it is not retried",
        "orders: orders.yaml is not valid now, the pipeline keeps running as before",
        "orders: stopping: finishing the current batch",
    ]
    assert err.count("  TOPIC_MISSING no such topic: orders") == 3


def test_json_of_a_fleet_names_the_pipeline_in_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonView()
    for name, event in EVENTS:
        view(event, name)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == len(EVENTS) and {line["pipeline"] for line in lines} == {"orders"}
    assert [line["delay"] for line in lines if line["event"] == "waiting"] == [10.0, 20.0, None]


def test_table_of_a_fleet_shows_state_and_trouble() -> None:
    from io import StringIO

    from rich.console import Console

    view = FleetTable()
    view._live.console = Console(file=StringIO(), width=200)
    for name, event in EVENTS[:5]:
        view(event, name)
    view(Started("other", "direct", "", 1, None), "other")
    drawn = StringIO()
    Console(file=drawn, width=200).print(view._draw())
    text = drawn.getvalue()
    assert "orders" in text and "waiting" in text and "TOPIC_MISSING, try 2 in 10 s" in text
    assert "2 pipelines, 1 running" in text


def test_view_of_a_fleet_in_a_pipe_is_lines() -> None:
    assert type(choose_view("auto", several=True)) is LineView
    assert isinstance(choose_view("json", several=True), JsonView)


@pytest.mark.parametrize("option", ["--resume-from-table", "--accept-duplicates"])
def test_run_of_several_refuses_what_is_for_one(tmp_path: Path, option: str) -> None:
    done = CliRunner().invoke(app, ["run", str(tmp_path), option])
    assert done.exit_code == 2 and "are for one pipeline" in " ".join(done.output.replace("│", " ").split())


def test_run_of_several_names_what_is_not_there(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", str(tmp_path), str(tmp_path / "no.yaml")])
    assert isinstance(done.exception, MissingError) and done.exception.code == "FILE_MISSING"


def test_run_of_a_folder_without_pipelines_says_so(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", str(tmp_path)])
    assert isinstance(done.exception, MissingError) and done.exception.code == "NO_PIPELINES"

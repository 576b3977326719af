"""`penstock run` of several files: a fleet on the screen, its signals, and what is said at its end.

The view is a table of its pipelines, lines with their names in a pipe, JSON for machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape

from penstock.cli.arguments import files_in
from penstock.cli.render import err, out, show_error, table
from penstock.cli.signals import StopOnSignal
from penstock.cli.watch import JsonView, LineView, alert_line, print_event, stamp, totals
from penstock.config.files import pipeline_files
from penstock.engine.listener import AlertChanged, BatchDone, Notice, Retrying, Started, Stopping
from penstock.engine.patience import StopRequest
from penstock.metrics import BatchMetrics
from penstock.preflight.options import RunOptions
from penstock.spark.cache import log_file
from penstock.supervision.fleet import run_fleet
from penstock.supervision.fleet_events import (
    Ended,
    FileChanged,
    FileRefused,
    FleetEvent,
    FleetOptions,
    FleetSummary,
    Waiting,
)
from penstock.wording import counted

if TYPE_CHECKING:
    from penstock.dashboard import Dashboard

_REMOVED = "[yellow]stopping[/], its file is gone"


class FleetView(Protocol):
    """Shows what it hears; entered before the first event."""

    def __enter__(self) -> FleetView: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...

    def __call__(self, name: str, event: FleetEvent) -> None:
        """Take in what happened to a pipeline."""
        ...


class FleetLines:
    """A line an event, with the name of the pipeline."""

    def __enter__(self) -> FleetLines:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __call__(self, name: str, event: FleetEvent) -> None:
        """Print what happened."""
        match event:
            case Waiting() | Ended() | FileChanged() | FileRefused():
                if (text := told(event)) is not None:
                    lines = text.splitlines()
                    (out if isinstance(event, Ended | FileChanged) else err).print(
                        "\n".join([f"{stamp()} {escape(name)}: {lines[0]}", *lines[1:]])
                    )
            case Started():
                LineView()(event)
            case _:
                LineView(f"{escape(name)}: " if name else "")(event)


class FleetJson(FleetLines):
    """One JSON object a line, each with `pipeline`."""

    def __call__(self, name: str, event: FleetEvent) -> None:
        """Print the event as JSON."""
        body: Mapping[str, Any]
        match event:
            case Waiting(error, attempt, delay):
                body = {"event": "waiting", "code": error.code, "summary": error.summary, "context": error.context,
                        "attempt": attempt, "delay": delay}  # fmt: skip
            case Ended(summary):
                body = {"event": "ended", "batches": summary.batches, "rows_in": summary.rows_in,
                        "rows_out": summary.rows_out, "quarantined": summary.quarantined}  # fmt: skip
            case FileChanged(file, change):
                body = {"event": "file", "file": str(file), "change": change}
            case FileRefused(file, error, running):
                body = {"event": "file", "file": str(file), "change": "refused", "text": str(error),
                        "running": running}  # fmt: skip
            case _:
                JsonView(name or None)(event)
                return
        print_event(name, body)


@dataclass
class _Row:
    state: str = "starting"
    trouble: str = ""
    last: BatchMetrics | None = None
    batches: int = 0
    quarantined: int = 0


class FleetTable:
    """A row for each pipeline, redrawn all the time; what is worth a line scrolls above."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._began = time.monotonic()
        self._live = Live(console=out, refresh_per_second=4, get_renderable=self._draw)

    def __enter__(self) -> FleetTable:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def __call__(self, name: str, event: FleetEvent) -> None:
        """Take in what happened."""
        row = self._rows.setdefault(name, _Row()) if name else _Row()
        match event:
            case Started():
                row.state, row.trouble = "[green]running[/]", ""
            case BatchDone(metrics):
                row.last, row.state, row.trouble = metrics, "[green]running[/]", ""
                row.batches += 1
                row.quarantined += metrics.quarantined
            case Retrying(error, _, delay):
                row.state, row.trouble = "[yellow]trying again[/]", f"{error.code}, in {delay:g} s"
            case Stopping() if row.state != _REMOVED:
                row.state = "[yellow]stopping[/]"
            case Waiting(error, attempt, delay):
                row.state = "[red]failed[/]" if delay is None else "[red]waiting[/]"
                row.trouble = error.code if delay is None else f"{error.code}, try {attempt + 1} in {delay:g} s"
            case Ended() if row.state == _REMOVED:
                self._rows.pop(name, None)
            case Ended():
                row.state, row.trouble = "stopped", ""
            case FileChanged(change="removed"):
                row.state = _REMOVED
            case FileChanged(file):
                # As long as it held no pipeline, it went by its file.
                self._rows.pop(str(file), None)
        for line in _above(name, event):
            self._live.console.print(line)

    def _draw(self) -> Group:
        if not self._rows:
            return Group(f"starting Spark ... {time.monotonic() - self._began:.0f} s")
        drawn = table(
            "pipeline", "state", "batch", "rows/s", "lag", "quarantined", "last commit", "trouble",
            numbers=("batch", "rows/s", "lag", "quarantined"),
        )  # fmt: skip
        for name, row in sorted(dict(self._rows).items()):
            last = row.last
            drawn.add_row(
                escape(name),
                row.state,
                "-" if last is None else f"{last.batch_id}",
                "-" if last is None else f"{last.rows_per_second:,.0f}",
                "-" if last is None else f"{last.lag:,}",
                f"{row.quarantined:,}",
                "-" if last is None else _ago(last.finished_at),
                escape(row.trouble),
            )
        running = sum("green" in row.state for row in list(self._rows.values()))
        return Group(drawn, f"[dim]{counted(len(self._rows), 'pipeline')}, {running} running;  Ctrl-C stops cleanly[/]")


def choose_fleet_view(log_format: str) -> FleetView:
    """The view that suits where the output goes."""
    if log_format == "json":
        return FleetJson()
    return FleetTable() if out.is_terminal and log_format == "auto" else FleetLines()


def told(event: Waiting | Ended | FileChanged | FileRefused) -> str | None:
    """An event of the fleet for people; none where it was told before."""
    match event:
        case Waiting(error, attempt, delay, again):
            then = f"try {attempt + 1} in {delay:g} s" if delay is not None else "it is not tried again"
            return None if again else f"[red]stopped alone[/], {then}\n{escape(_indented(str(error)))}"
        case Ended(done):
            return f"ended: {totals(done)}, {done.seconds:.1f} s"
        case FileChanged(file, change):
            then = {"added": "starting it", "changed": "going on with it", "removed": "stopping it"}[change]
            return f"{escape(str(file))} was {change}: {then}"
        case FileRefused(file, error, running):
            then = "the pipeline goes on as it was" if running else "it is not started"
            return f"[red]{escape(str(file))} is not taken up as it is now[/], {then}\n{escape(_indented(str(error)))}"


def _above(name: str, event: FleetEvent) -> list[str]:
    """What of an event is worth a line above the table."""
    match event:
        case Waiting() | FileChanged() | FileRefused():
            text = told(event)
            return [f"{stamp()} {escape(name)}: {text}"] if text is not None else []
        case Notice(text):
            return [f"{stamp()} {escape(name) + ': ' if name else ''}[yellow]note:[/] {escape(text)}"]
        case AlertChanged():
            return [f"{stamp()} {escape(name)}: {alert_line(event)}"]
    return []


def _ago(when: datetime) -> str:
    seconds = (datetime.now(UTC) - when).total_seconds()
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{when.astimezone():%H:%M:%S}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def run_several(
    paths: Sequence[Path],
    options: RunOptions,
    *,
    watch: bool,
    log_format: str,
    dashboard: Callable[[Sequence[Path], Callable[[str], None]], AbstractContextManager[Dashboard]] | None,
) -> None:
    """Run the pipelines of some files and folders; exit with the code of the worst."""
    files = files_in(paths, None if watch else ", or wait for them: --watch")
    stop = StopRequest()
    signals = StopOnSignal(stop)
    log = log_file(f"fleet-{files[0].stem if files else paths[0].absolute().name}")
    asked = FleetOptions(replace(options, log=log), watch=watch)
    view = choose_fleet_view(log_format)

    shown: Dashboard | None = None

    def listen(name: str, event: FleetEvent) -> None:
        view(name, event)
        if isinstance(event, FileChanged) and shown is not None:
            shown.follow(pipeline_files(paths))

    served = dashboard(files, lambda text: listen("", Notice(text))) if dashboard is not None else nullcontext()
    with signals.before_first_batch(), served as opened, view:
        shown = opened
        done = run_fleet(paths, asked, signals.listening(listen), stop)
    if log_format != "json":
        _show(done)
    if done.exit_code:
        raise typer.Exit(done.exit_code)


def _show(done: FleetSummary) -> None:
    out.print(f"{counted(len(done.outcomes), 'pipeline')}: {totals(done.carried)}")
    for name, error in done.errors.items():
        err.print(f"[red]{escape(name)} did not end well:[/]")
        show_error(error)

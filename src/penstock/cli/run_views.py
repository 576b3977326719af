"""What a run shows of itself: a live view on a terminal, one line per event in a pipe, JSON for programs.

A view is entered before the first event, and called with each event and, where several pipelines run, the name of the
pipeline. `RunProgress` is for runs with a known end, a replay or a redrive.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from penstock.cli.render import err, out, show_note, table
from penstock.engine.listener import (
    AlertChanged,
    BatchDone,
    BatchPhase,
    Event,
    FlowChanged,
    Notice,
    Retrying,
    Stalled,
    Started,
    StateKept,
    Stopping,
)
from penstock.errors import PenstockError
from penstock.metrics import BatchMetrics
from penstock.preflight.options import RunSummary
from penstock.supervision.fleet_events import Ended, FileChanged, FileRefused, FleetEvent, Waiting
from penstock.wording import counted, size


class LineView:
    """One line per event, with the name of the pipeline if there are several."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, event: Event | FleetEvent, pipeline: str = "") -> None:
        """Print what happened."""
        line = f"{stamp()} {escape(pipeline)}: " if pipeline else f"{stamp()} "
        match event:
            case Started():
                out.print(f"{stamp()} {escape(event.pipeline)} started: {_lane_of(event)}")
            case BatchDone(metrics):
                out.print(line + _batch_line(metrics))
            case StateKept():
                watermark = f", watermark {event.watermark}" if event.watermark is not None else ""
                out.print(f"{line}state after batch {event.batch_id}: {_state_size(event)}{watermark}")
            case FlowChanged(text=text):
                out.print(f"{line}flow: {escape(text)}")
            case AlertChanged():
                err.print(line + _alert_line(event))
            case Notice(text):
                err.print(f"{line}[yellow]note:[/] {escape(text)}")
            case Retrying():
                err.print(f"{line}{_retry_line(event)}")
            case Stopping():
                err.print(f"{line}stopping: finishing the current batch")
            case Ended() | FileChanged():
                out.print(line + fleet_text(event))
            case FileRefused() | Waiting(again=False):
                err.print(line + fleet_text(event))


class JsonView(LineView):
    """One JSON object per line, with `pipeline` if there are several."""

    def __call__(self, event: Event | FleetEvent, pipeline: str = "") -> None:
        """Print the event as JSON."""
        body: Mapping[str, Any]
        match event:
            case BatchPhase() | Stalled():
                # A stalled batch is reported by a notice as well.
                return
            case FlowChanged():
                body = {"event": "flow", **asdict(event)}
            case AlertChanged():
                body = {"event": "alert", **asdict(event)}
            case BatchDone(metrics):
                body = metrics.as_json()
            case Started():
                body = {"event": "started", "pipeline": event.pipeline, "lane": event.lane, "reason": event.reason,
                        "partitions": event.partitions, "query_id": event.query_id}  # fmt: skip
            case StateKept():
                body = {"event": "state", "batch_id": event.batch_id, "rows": event.rows, "bytes": event.size_bytes,
                        "watermark": event.watermark}  # fmt: skip
            case Notice(text):
                body = {"event": "notice", "text": text}
            case Retrying(error, attempt, delay):
                body = {"event": "retrying", **_fault(error), "attempt": attempt, "delay": delay}
            case Stopping():
                body = {"event": "stopping"}
            case Waiting(error, attempt, delay):
                body = {"event": "waiting", **_fault(error), "attempt": attempt, "delay": delay}
            case Ended(done):
                body = {"event": "ended", "batches": done.batches, "rows_in": done.rows_in,
                        "rows_out": done.rows_out, "quarantined": done.quarantined}  # fmt: skip
            case FileChanged(file, change):
                body = {"event": "file", "file": str(file), "change": change}
            case FileRefused(file, error, running):
                body = {"event": "file", "file": str(file), "change": "refused", "text": str(error),
                        "running": running}  # fmt: skip
        name = {"pipeline": pipeline} if pipeline else {}
        # In one piece: several threads may write here.
        print(json.dumps({"at": datetime.now(UTC).isoformat(), **name, **body}) + "\n", end="", flush=True)


class LiveView:
    """The numbers that matter, redrawn all the time; notices scroll above them."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._title = ""
        self._state = "starting Spark"
        self._over = False
        self._done = RunSummary()
        self._kept: StateKept | None = None
        self._cap: FlowChanged | None = None
        self._codes: Counter[str] = Counter()
        self._live = Live(console=out, refresh_per_second=4, get_renderable=self._draw)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._state, self._over = "[red]ended[/]" if kind else "stopped", True
        self._live.__exit__(None, None, None)

    def __call__(self, event: Event) -> None:
        """Update the figures."""
        match event:
            case Started():
                self._title = f"[bold]{escape(event.pipeline)}[/]  {_lane_of(event)}: "
                self._state = "[green]running[/], waiting for records"
            case BatchDone(metrics):
                self._done.add(metrics)
                self._codes.update(metrics.codes)
                self._state = "[green]running[/]"
            case StateKept():
                self._kept = event
            case FlowChanged():
                self._cap = event
            case AlertChanged():
                self._live.console.print(f"{stamp()} {_alert_line(event)}")
            case Notice(text):
                show_note(text, self._live.console)
            case Retrying(error):
                self._live.console.print(f"{stamp()} {_retry_line(event)}")
                self._state = f"[yellow]waiting[/] to retry: {error.code}"
            case Stopping():
                self._state = "[yellow]stopping[/]: finishing the current batch"

    def _draw(self) -> Group:
        if not self._title:
            return Group(f"{self._state} ... {time.monotonic() - self._began:.0f} s")
        grid = Table.grid(padding=(0, 2))
        done, last = self._done, self._done.last
        if last is not None:
            ago = (datetime.now(UTC) - last.finished_at).total_seconds()
            out_rate = last.rows_out / last.seconds if last.seconds > 0 else 0.0
            grid.add_row(
                "  rows in", f"{last.rows_per_second:,.0f} a second", "batch", f"{last.batch_id}, {last.seconds:.2f} s"
            )
            grid.add_row("  rows out", f"{out_rate:,.0f} a second", "lag", f"{last.lag:,}")
            grid.add_row(
                "  quarantined", f"{done.quarantined:,}{_codes(self._codes)}",
                "last commit", f"{last.finished_at.astimezone():%H:%M:%S}, {ago:.0f} s ago",
            )  # fmt: skip
        if self._kept is not None:
            grid.add_row("  state", _state_size(self._kept), "watermark", self._kept.watermark or "none")
        if self._cap is not None:
            grid.add_row("  flow", f"{self._cap.cap:,} offsets a batch", self._cap.reason, self._cap.text)
        if self._over:
            return Group(f"{self._title}{self._state}", grid)
        total = f"  {counted(done.batches, 'batch', 'batches')}, {done.rows_in:,} rows in, {done.rows_out:,} out"
        return Group(f"{self._title}{self._state}", grid, f"[dim]{total};  Ctrl-C stops cleanly[/]")


_REMOVED = "[yellow]stopping[/], its file was removed"


@dataclass
class _Row:
    state: str = "starting"
    trouble: str = ""
    done: RunSummary = field(default_factory=RunSummary)


class FleetTable:
    """One row per pipeline, redrawn continuously; notices, alerts and failures scroll above it."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._began = time.monotonic()
        self._live = Live(console=out, refresh_per_second=4, get_renderable=self._draw)

    def __enter__(self) -> FleetTable:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def __call__(self, event: FleetEvent, name: str) -> None:
        """Update the row of the pipeline."""
        row = self._rows.setdefault(name, _Row()) if name else _Row()
        match event:
            case Started():
                row.state, row.trouble = "[green]running[/]", ""
            case BatchDone(metrics):
                row.state, row.trouble = "[green]running[/]", ""
                row.done.add(metrics)
            case Retrying(error, _, delay):
                row.state, row.trouble = "[yellow]retrying[/]", f"{error.code}, in {delay:g} s"
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
                # Until it had a pipeline it was shown by its file name.
                self._rows.pop(str(file), None)
        at = f"{stamp()} {escape(name)}: " if name else f"{stamp()} "
        match event:
            case Waiting(again=False) | FileChanged() | FileRefused():
                self._live.console.print(at + fleet_text(event))
            case Notice(text):
                self._live.console.print(f"{at}[yellow]note:[/] {escape(text)}")
            case AlertChanged():
                self._live.console.print(at + _alert_line(event))

    def _draw(self) -> Group:
        if not self._rows:
            return Group(f"starting Spark ... {time.monotonic() - self._began:.0f} s")
        drawn = table(
            "pipeline", "state", "batch", "rows/s", "lag", "quarantined", "last commit", "trouble",
            numbers=("batch", "rows/s", "lag", "quarantined"),
        )  # fmt: skip
        for name, row in sorted(dict(self._rows).items()):
            last = row.done.last
            drawn.add_row(
                escape(name),
                row.state,
                "-" if last is None else f"{last.batch_id}",
                "-" if last is None else f"{last.rows_per_second:,.0f}",
                "-" if last is None else f"{last.lag:,}",
                f"{row.done.quarantined:,}",
                "-" if last is None else _ago(last.finished_at),
                escape(row.trouble),
            )
        running = sum("green" in row.state for row in list(self._rows.values()))
        return Group(drawn, f"[dim]{counted(len(self._rows), 'pipeline')}, {running} running;  Ctrl-C stops cleanly[/]")


class RunProgress:
    """A bar on a terminal, a line for each batch in a pipe.

    `amount` returns a batch's share of the total, `outcome` describes its rows.
    """

    def __init__(
        self,
        doing: str,
        total: int,
        *,
        amount: Callable[[BatchMetrics], int],
        outcome: Callable[[BatchMetrics], str],
        done: int = 0,
        commits_after: int | None = None,
        quiet: bool = False,
    ) -> None:
        self._doing, self._amount, self._outcome = doing, amount, outcome
        self._commits_after = commits_after
        """The batch after which all are committed at once."""
        self._quiet = quiet
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=out,
            disable=quiet or not out.is_terminal,
        )
        self._task = self._bar.add_task("starting Spark", total=total, completed=done, rate="")

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.__exit__(None, None, None)

    def __call__(self, event: Event) -> None:
        """Advance the bar, or print a line."""
        match event:
            case Started():
                self._bar.update(self._task, description=self._doing)
            case BatchDone(metrics):
                last = metrics.batch_id == self._commits_after
                self._bar.update(
                    self._task,
                    advance=self._amount(metrics),
                    rate=f"{metrics.rows_per_second:,.0f} rows/s",
                    description="committing" if last else self._doing,
                )
                if not self._quiet and not out.is_terminal:
                    counts = f"{metrics.rows_in:,} in, {self._outcome(metrics)}"
                    out.print(f"batch {metrics.batch_id}: {counts}, {metrics.seconds:.2f} s")
            case Notice(text):
                show_note(text)
            case Retrying():
                err.print(_retry_line(event))
            case Stopping():
                self._bar.update(self._task, description="stopping")


def choose_view(log_format: str, *, several: bool = False) -> Any:
    """The view that suits the output."""
    if log_format == "json":
        return JsonView()
    if not out.is_terminal or log_format != "auto":
        return LineView()
    return FleetTable() if several else LiveView()


def totals(done: RunSummary) -> str:
    """The totals of a run, for people."""
    return (
        f"{counted(done.batches, 'batch', 'batches')}, {counted(done.rows_in, 'row')} in, {done.rows_out:,} out, "
        f"{done.quarantined:,} quarantined"
    )


def stamp() -> str:
    """The time of a line."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def fleet_text(event: Waiting | Ended | FileChanged | FileRefused) -> str:
    """An event of one pipeline among several, for people."""
    match event:
        case Waiting(error, attempt, delay):
            then = f"try {attempt + 1} in {delay:g} s" if delay is not None else "it is not retried"
            return f"[red]failed; the others continue[/], {then}\n{_indented(error)}"
        case Ended(done):
            return f"ended: {totals(done)}, {done.seconds:.1f} s"
        case FileChanged(file, change):
            then = {"added": "starting it", "changed": "restarting with it", "removed": "stopping it"}[change]
            return f"{escape(str(file))} was {change}: {then}"
        case FileRefused(file, error, running):
            then = "the pipeline keeps running as before" if running else "it is not started"
            return f"[red]{escape(str(file))} is not valid now[/], {then}\n{_indented(error)}"


def _batch_line(m: BatchMetrics) -> str:
    if m.skipped:
        return f"batch {m.batch_id}: already committed by every sink, nothing to do"
    line = (
        f"batch {m.batch_id}: {m.rows_in:,} in, {m.rows_out:,} out, {m.quarantined:,} quarantined{_codes(m.codes)}, "
        f"{m.seconds:.2f} s, {m.rows_per_second:,.0f} rows/s, lag {m.lag:,}"
    )
    line += "".join(f", {escape(name)} {count:,}" for name, count in sorted(m.counts.items()) if count)
    return line + (f", [red]{counted(m.gaps, 'gap')} recorded[/]" if m.gaps else "")


def _lane_of(event: Started) -> str:
    return f"{event.lane} lane, {counted(event.partitions, 'partition')}"


def _state_size(event: StateKept) -> str:
    return f"{counted(event.rows, 'row')}, {size(event.size_bytes)}"


def _alert_line(alert: AlertChanged) -> str:
    return f"{'[red]alert[/]' if alert.firing else '[green]resolved[/]'} {escape(alert.rule)}: {escape(alert.text)}"


def _retry_line(event: Retrying) -> str:
    error = event.error
    return f"[yellow]{escape(f'{error.code} {error.line}; retry {event.attempt} in {event.delay:g} s')}[/]"


def _fault(error: PenstockError) -> dict[str, Any]:
    return {"code": error.code, "summary": error.summary, "context": error.context}


def _indented(error: PenstockError) -> str:
    return escape("\n".join(f"  {line}" for line in str(error).splitlines()))


def _codes(codes: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{code} {count:,}' for code, count in sorted(codes.items()))})" if codes else ""


def _ago(when: datetime) -> str:
    seconds = (datetime.now(UTC) - when).total_seconds()
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{when.astimezone():%H:%M:%S}"

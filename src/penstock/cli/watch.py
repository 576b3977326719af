"""A run on the screen: a live view on a terminal, one line a batch in a pipe, JSON for machines."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from penstock.cli.render import err, out, retry_line, show_note
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
from penstock.metrics import BatchMetrics
from penstock.preflight.options import RunSummary
from penstock.wording import counted, size


class LineView:
    """One line a batch, with a label where there are several pipelines."""

    def __init__(self, label: str = "") -> None:
        self._label = label

    def __enter__(self) -> LineView:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __call__(self, event: Event) -> None:
        """Print what happened."""
        line = f"{stamp()} {self._label}"
        match event:
            case Started():
                parts = counted(event.partitions, "partition")
                out.print(f"{line}{escape(event.pipeline)} started: {event.lane} lane, {parts}")
            case BatchDone(metrics):
                out.print(line + _batch_line(metrics))
            case StateKept():
                mark = f", watermark {event.watermark}" if event.watermark is not None else ""
                kept = f"{counted(event.rows, 'row')}, {size(event.size_bytes)}"
                out.print(f"{line}state after batch {event.batch_id}: {kept}{mark}")
            case FlowChanged(text=text):
                out.print(f"{line}flow: {escape(text)}")
            case AlertChanged():
                err.print(line + alert_line(event))
            case Notice(text):
                err.print(f"{line}[yellow]note:[/] {escape(text)}")
            case Retrying(error, attempt, delay):
                err.print(f"{line}[yellow]{retry_line(error, attempt, delay)}[/]")
            case Stopping():
                err.print(f"{line}stopping: finishing the batch in hand")


class JsonView(LineView):
    """One JSON object a line, with the name of the pipeline where there are several."""

    def __init__(self, pipeline: str | None = None) -> None:
        super().__init__()
        self._pipeline = pipeline

    def __call__(self, event: Event) -> None:
        """Print the event as JSON."""
        match event:
            case BatchPhase() | Stalled():
                # What is stalled is told by a notice as well.
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
                body = {"event": "retrying", "code": error.code, "summary": error.summary,
                        "context": error.context, "attempt": attempt, "delay": delay}  # fmt: skip
            case Stopping():
                body = {"event": "stopping"}
        print_event(self._pipeline, body)


def print_event(pipeline: str | None, body: Mapping[str, Any]) -> None:
    """An event as a line of JSON, in one piece: several threads may write here."""
    of = {"pipeline": pipeline} if pipeline is not None else {}
    print(json.dumps({"at": datetime.now(UTC).isoformat(), **of, **body}) + "\n", end="", flush=True)


class LiveView:
    """The numbers that matter, redrawn all the time; notices scroll above them."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._title = ""
        self._state = "starting Spark"
        self._over = False
        self._last: BatchMetrics | None = None
        self._kept: StateKept | None = None
        self._cap: FlowChanged | None = None
        self._batches = self._rows_in = self._rows_out = self._quarantined = 0
        self._codes: Counter[str] = Counter()
        self._live = Live(console=out, refresh_per_second=4, get_renderable=self._draw)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._state, self._over = "[red]ended[/]" if kind else "stopped", True
        self._live.__exit__(None, None, None)

    def __call__(self, event: Event) -> None:
        """Take in what happened."""
        match event:
            case Started():
                parts = counted(event.partitions, "partition")
                self._title = f"[bold]{escape(event.pipeline)}[/]  {event.lane} lane, {parts}: "
                self._state = "[green]running[/], waiting for records"
            case BatchDone(metrics):
                self._last = metrics
                self._batches += 1
                self._rows_in += metrics.rows_in
                self._rows_out += metrics.rows_out
                self._quarantined += metrics.quarantined
                self._codes.update(metrics.codes)
                self._state = "[green]running[/]"
            case StateKept():
                self._kept = event
            case FlowChanged():
                self._cap = event
            case AlertChanged():
                self._live.console.print(f"{stamp()} {alert_line(event)}")
            case Notice(text):
                show_note(text, self._live.console)
            case Retrying(error, attempt, delay):
                self._live.console.print(f"{stamp()} [yellow]{retry_line(error, attempt, delay)}[/]")
                self._state = f"[yellow]waiting[/] to try again: {error.code}"
            case Stopping():
                self._state = "[yellow]stopping[/]: finishing the batch in hand"

    def _draw(self) -> Group:
        if not self._title:
            return Group(f"{self._state} ... {time.monotonic() - self._began:.0f} s")
        grid = Table.grid(padding=(0, 2))
        last = self._last
        if last is not None:
            ago = (datetime.now(UTC) - last.finished_at).total_seconds()
            out_rate = last.rows_out / last.seconds if last.seconds > 0 else 0.0
            grid.add_row(
                "  rows in", f"{last.rows_per_second:,.0f} a second", "batch", f"{last.batch_id}, {last.seconds:.2f} s"
            )
            grid.add_row("  rows out", f"{out_rate:,.0f} a second", "lag", f"{last.lag:,}")
            grid.add_row(
                "  quarantined", f"{self._quarantined:,}{_codes(self._codes)}",
                "last commit", f"{last.finished_at.astimezone():%H:%M:%S}, {ago:.0f} s ago",
            )  # fmt: skip
        if self._kept is not None:
            kept = self._kept
            grid.add_row(
                "  state",
                f"{counted(kept.rows, 'row')}, {size(kept.size_bytes)}",
                "watermark",
                kept.watermark or "none",
            )
        if self._cap is not None:
            grid.add_row("  flow", f"{self._cap.cap:,} offsets a batch", self._cap.reason, self._cap.text)
        if self._over:
            return Group(f"{self._title}{self._state}", grid)
        total = f"  {counted(self._batches, 'batch', 'batches')}, {self._rows_in:,} rows in, {self._rows_out:,} out"
        return Group(f"{self._title}{self._state}", grid, f"[dim]{total};  Ctrl-C stops cleanly[/]")


def choose_view(log_format: str) -> Any:
    """The view that suits where the output goes."""
    if log_format == "json":
        return JsonView()
    return LiveView() if out.is_terminal and log_format == "auto" else LineView()


def totals(done: RunSummary) -> str:
    """What a run carried, for people."""
    return (
        f"{counted(done.batches, 'batch', 'batches')}, {counted(done.rows_in, 'row')} in, {done.rows_out:,} out, "
        f"{done.quarantined:,} quarantined"
    )


def stamp() -> str:
    """The time of a line."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _batch_line(m: BatchMetrics) -> str:
    if m.skipped:
        return f"batch {m.batch_id}: already committed by every sink, nothing to do"
    line = (
        f"batch {m.batch_id}: {m.rows_in:,} in, {m.rows_out:,} out, {m.quarantined:,} quarantined{_codes(m.codes)}, "
        f"{m.seconds:.2f} s, {m.rows_per_second:,.0f} rows/s, lag {m.lag:,}"
    )
    line += "".join(f", {escape(name)} {count:,}" for name, count in sorted(m.counts.items()) if count)
    return line + (f", [red]{counted(m.gaps, 'gap')} recorded[/]" if m.gaps else "")


def alert_line(alert: AlertChanged) -> str:
    """An alert for people."""
    return f"{'[red]alert[/]' if alert.firing else '[green]resolved[/]'} {escape(alert.rule)}: {escape(alert.text)}"


def _codes(codes: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{code} {count:,}' for code, count in sorted(codes.items()))})" if codes else ""

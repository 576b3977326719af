"""A run on the screen: a live view on a terminal, one line a batch in a pipe, JSON for machines."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from rich.live import Live
from rich.markup import escape
from rich.table import Table

from penstock.cli.render import err, out
from penstock.errors import PenstockError
from penstock.metrics import BatchMetrics
from penstock.runtime.listener import BatchDone, Event, Notice, Retrying, Started, Stopping


class LineView:
    """One line a batch."""

    def __enter__(self) -> LineView:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __call__(self, event: Event) -> None:
        """Print what happened."""
        match event:
            case Started():
                out.print(
                    f"{_now()} {escape(event.pipeline)} started: {event.lane} lane, {event.partitions} partitions"
                )
            case BatchDone(metrics):
                out.print(f"{_now()} {_batch_line(metrics)}")
            case Notice(text):
                err.print(f"{_now()} [yellow]note:[/] {escape(text)}")
            case Retrying(error, attempt, delay):
                err.print(f"{_now()} [yellow]{escape(_retry_line(error, attempt, delay))}[/]")
            case Stopping():
                err.print(f"{_now()} stopping: finishing the batch in hand")


class JsonView(LineView):
    """One JSON object a line."""

    def __call__(self, event: Event) -> None:
        """Print the event as JSON."""
        match event:
            case BatchDone(metrics):
                body = metrics.as_json()
            case Started():
                body = {"event": "started", "pipeline": event.pipeline, "lane": event.lane, "reason": event.reason,
                        "partitions": event.partitions, "query_id": event.query_id}  # fmt: skip
            case Notice(text):
                body = {"event": "notice", "text": text}
            case Retrying(error, attempt, delay):
                body = {"event": "retrying", "code": error.code, "summary": error.summary,
                        "context": error.context, "attempt": attempt, "delay": delay}  # fmt: skip
            case Stopping():
                body = {"event": "stopping"}
        print(json.dumps({"at": datetime.now(UTC).isoformat(), **body}), flush=True)


class LiveView:
    """The numbers that matter, redrawn after each batch; notices scroll above them."""

    def __init__(self) -> None:
        self._live = Live(console=out, refresh_per_second=4, transient=False)
        self._title = "starting Spark ..."
        self._state = ""
        self._last: BatchMetrics | None = None
        self._batches = self._rows_in = self._rows_out = self._quarantined = 0

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        self._live.update(self._draw())
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.update(self._draw())
        self._live.__exit__(None, None, None)

    def __call__(self, event: Event) -> None:
        """Take in what happened and redraw."""
        match event:
            case Started():
                self._title = f"{event.pipeline}  {event.lane} lane, {event.partitions} partitions"
                self._state = "[green]running[/], waiting for records"
            case BatchDone(metrics):
                self._last = metrics
                self._batches += 1
                self._rows_in += metrics.rows_in
                self._rows_out += metrics.rows_out
                self._quarantined += metrics.quarantined
                self._state = "[green]running[/]"
            case Notice(text):
                self._live.console.print(f"[yellow]note:[/] {escape(text)}")
            case Retrying(error, attempt, delay):
                self._live.console.print(f"[yellow]{escape(_retry_line(error, attempt, delay))}[/]")
                self._state = f"[yellow]waiting[/]: {escape(error.summary)}"
            case Stopping():
                self._state = "[yellow]stopping[/]: finishing the batch in hand"
        self._live.update(self._draw())

    def _draw(self) -> Table:
        grid = Table.grid(padding=(0, 3))
        grid.add_row(f"[bold]{escape(self._title)}[/]", self._state)
        last = self._last
        if last is not None:
            grid.add_row(
                f"in {last.rows_per_second:,.0f} rows/s",
                f"out {last.rows_out / max(last.seconds, 1e-9):,.0f} rows/s",
            )
            grid.add_row(f"batch {last.batch_id}: {last.seconds:.2f} s", f"lag {last.lag:,}")
            grid.add_row(f"last commit {last.finished_at:%H:%M:%S}", f"quarantined {self._quarantined:,}")
        grid.add_row(
            f"{self._batches:,} batches, {self._rows_in:,} rows in, {self._rows_out:,} out",
            "[dim]Ctrl-C stops cleanly[/]",
        )
        return grid


def choose_view(log_format: str) -> Any:
    """The view that suits where the output goes."""
    if log_format == "json":
        return JsonView()
    return LiveView() if out.is_terminal and log_format == "auto" else LineView()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _batch_line(m: BatchMetrics) -> str:
    if m.skipped:
        return f"batch {m.batch_id}: already committed by every sink, nothing to do"
    line = (
        f"batch {m.batch_id}: {m.rows_in:,} in, {m.rows_out:,} out, {m.quarantined:,} quarantined, "
        f"{m.seconds:.2f} s, {m.rows_per_second:,.0f} rows/s, lag {m.lag:,}"
    )
    return line + (f", [red]{m.gaps} gaps recorded[/]" if m.gaps else "")


def _retry_line(error: PenstockError, attempt: int, delay: float) -> str:
    facts = "; ".join(f"{name}: {value}" for name, value in error.context.items())
    return f"{error.code} {error.summary} ({facts}); try {attempt} again in {delay:g} s"

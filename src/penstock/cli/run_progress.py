"""How far a run with a known end is, a replay or a redrive: a bar on a terminal, a line for each batch in a pipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.cli.render import err, out, retry_line, show_note
from penstock.engine.listener import BatchDone, Event, Notice, Retrying, Started, Stopping
from penstock.metrics import BatchMetrics


class RunProgress:
    """`carried` says how much of the total a batch was, `told` what became of its rows."""

    def __init__(
        self,
        doing: str,
        total: int,
        *,
        carried: Callable[[BatchMetrics], int],
        told: Callable[[BatchMetrics], str],
        done: int = 0,
        commits_after: int | None = None,
        quiet: bool = False,
    ) -> None:
        self._doing, self._carried, self._told = doing, carried, told
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
        """Take in what happened."""
        match event:
            case Started():
                self._bar.update(self._task, description=self._doing)
            case BatchDone(metrics):
                last = metrics.batch_id == self._commits_after
                self._bar.update(
                    self._task,
                    advance=self._carried(metrics),
                    rate=f"{metrics.rows_per_second:,.0f} rows/s",
                    description="committing" if last else self._doing,
                )
                if not self._quiet and not out.is_terminal:
                    counts = f"{metrics.rows_in:,} in, {self._told(metrics)}"
                    out.print(f"batch {metrics.batch_id}: {counts}, {metrics.seconds:.2f} s")
            case Notice(text):
                show_note(text)
            case Retrying(error, attempt, delay):
                err.print(f"[yellow]{retry_line(error, attempt, delay)}[/]")
            case Stopping():
                self._bar.update(self._task, description="stopping")

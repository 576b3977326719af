"""`penstock run`: one pipeline, until it is drained, stopped or cannot go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli.arguments import File
from penstock.cli.render import err, out
from penstock.ops.wording import counted

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.runtime.listener import Listener


def run(
    file: File,
    available_now: Annotated[bool, typer.Option("--available-now", help="Drain what is there, then stop.")] = False,
    resume_from_table: Annotated[
        bool,
        typer.Option("--resume-from-table", help="Fresh checkpoint: start from the offsets stored in the table."),
    ] = False,
    accept_duplicates: Annotated[
        bool,
        typer.Option("--accept-duplicates", help="Fresh checkpoint: read again what the table already has."),
    ] = False,
    log_format: Annotated[
        Literal["auto", "text", "json"],
        typer.Option(help="auto: a live view on a terminal, lines in a pipe."),
    ] = "auto",
    give_up_after: Annotated[
        float, typer.Option(help="Seconds of failing retries before giving up with exit code 75.")
    ] = 300.0,
    with_dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Serve the dashboard beside the run; its address is printed.")
    ] = False,
) -> None:
    """Run a pipeline. SIGTERM and Ctrl-C finish the batch in hand and exit 0."""
    from penstock.cli.signals import StopOnSignal
    from penstock.cli.watch import choose_view
    from penstock.config import load
    from penstock.runtime.listener import Event, Started
    from penstock.runtime.options import RunOptions
    from penstock.runtime.patience import StopRequest
    from penstock.runtime.run import run as run_pipeline
    from penstock.spark.cache import cache_home

    config = load(file)
    stop = StopRequest()
    signals = StopOnSignal(stop)
    options = RunOptions(
        available_now=available_now,
        resume_from_table=resume_from_table,
        accept_duplicates=accept_duplicates,
        give_up_after=give_up_after,
        log=cache_home() / "logs" / f"{config.name}.log",
    )
    view = choose_view(log_format)

    def listen(event: Event) -> None:
        signals.running = signals.running or isinstance(event, Started)
        view(event)

    try:
        with _dashboard(file, listen) if with_dashboard else nullcontext(), view:
            done = run_pipeline(config, options, listen, stop)
    except KeyboardInterrupt:
        if signals.running:
            raise
        err.print("stopped before the first batch")
        return
    if log_format != "json":
        out.print(
            f"{counted(done.batches, 'batch', 'batches')}, {counted(done.rows_in, 'row')} in, {done.rows_out:,} out, "
            f"{done.quarantined:,} quarantined, {done.seconds:.1f} s"
        )


@contextmanager
def _dashboard(file: Path, listener: Listener) -> Iterator[None]:
    import webbrowser

    from penstock.cli.dashboard import has_display
    from penstock.dashboard.serving import Dashboard
    from penstock.runtime.listener import Notice

    with Dashboard([file]) as dashboard:
        listener(Notice(f"dashboard at {dashboard.url}"))
        if has_display():
            webbrowser.open(dashboard.url)
        yield

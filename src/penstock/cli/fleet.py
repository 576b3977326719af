"""`penstock run` of several files: a fleet, its view, its signals, and what is said at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from penstock.cli.fleet_view import choose_fleet_view
from penstock.cli.render import err, out, show_error
from penstock.cli.signals import StopOnSignal
from penstock.config.files import pipeline_files
from penstock.engine.listener import Notice, Started
from penstock.engine.patience import StopRequest
from penstock.errors import MissingError
from penstock.ops.wording import counted
from penstock.preflight.options import RunOptions
from penstock.spark.cache import cache_home
from penstock.supervision.fleet import run_fleet
from penstock.supervision.fleet_events import FileChanged, FleetEvent, FleetOptions, FleetSummary

if TYPE_CHECKING:
    from penstock.dashboard import Dashboard

    Serve = Callable[[Sequence[Path], Callable[[str], None]], AbstractContextManager[Dashboard]]


def run_several(
    paths: Sequence[Path], options: RunOptions, *, watch: bool, log_format: str, dashboard: Serve | None
) -> None:
    """Run the pipelines of some files and folders; exit with the code of the worst."""
    files = _files(paths, watch=watch)
    stop = StopRequest()
    signals = StopOnSignal(stop)
    log = cache_home() / "logs" / f"fleet-{files[0].stem if files else paths[0].absolute().name}.log"
    asked = FleetOptions(replace(options, log=log), watch=watch)
    view = choose_fleet_view(log_format)

    shown: Dashboard | None = None

    def listen(name: str, event: FleetEvent) -> None:
        signals.running = signals.running or isinstance(event, Started)
        view(name, event)
        if isinstance(event, FileChanged) and shown is not None:
            shown.follow(pipeline_files(paths))

    served = dashboard(files, lambda text: listen("", Notice(text))) if dashboard is not None else nullcontext()
    try:
        with served as shown, view:
            done = run_fleet(paths, asked, listen, stop)
    except KeyboardInterrupt:
        if signals.running:
            raise
        err.print("stopped before the first batch")
        return
    if log_format != "json":
        _show(done)
    if done.exit_code:
        raise typer.Exit(done.exit_code)


def _files(paths: Sequence[Path], *, watch: bool) -> list[Path]:
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise MissingError("FILE_MISSING", f"there is no {', '.join(missing)}", hint="name pipeline files or folders")
    found = pipeline_files(paths)
    if not found and not watch:
        raise MissingError(
            "NO_PIPELINES",
            f"there is no *.yaml in {', '.join(map(str, paths))}",
            hint="name the pipeline files, or wait for them: --watch",
        )
    return found


def _show(done: FleetSummary) -> None:
    carried = done.carried
    out.print(
        f"{counted(len(done.outcomes), 'pipeline')}: {counted(carried.batches, 'batch', 'batches')}, "
        f"{counted(carried.rows_in, 'row')} in, {carried.rows_out:,} out, {carried.quarantined:,} quarantined"
    )
    for name, error in done.errors.items():
        err.print(f"[red]{escape(name)} did not end well:[/]")
        show_error(error)

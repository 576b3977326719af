"""`penstock run`: a pipeline, or several in one Spark application, until drained, stopped or not able to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.arguments import (
    GIVE_UP_AFTER,
    STALLED_AFTER,
    AcceptDuplicates,
    AvailableNow,
    CatchUp,
    GiveUpAfter,
    LogFormat,
    ResumeFromTable,
    StalledAfter,
)
from penstock.cli.render import out

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.config import PipelineConfig
    from penstock.dashboard import Dashboard
    from penstock.preflight.options import RunOptions


def run(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="The pipeline file. Several, or a folder for its *.yaml, run in one Spark application.",
            show_default=False,
        ),
    ],
    available_now: AvailableNow = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Take up files that are added, changed and removed while it runs.")
    ] = False,
    resume_from_table: ResumeFromTable = False,
    accept_duplicates: AcceptDuplicates = False,
    catch_up: CatchUp = False,
    log_format: LogFormat = "auto",
    give_up_after: GiveUpAfter = GIVE_UP_AFTER,
    stalled_after: StalledAfter = STALLED_AFTER,
    with_dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Serve the dashboard beside the run; its address is printed.")
    ] = False,
) -> None:
    """Run a pipeline, or several. SIGTERM and Ctrl-C finish the batch in hand of each and exit 0.

    Of several, one that cannot go on stops alone and is tried again, after 10 seconds at first and 5 minutes at most.
    The exit code is then that of the worst, 0 where all ended well.
    """
    from penstock.preflight.options import RunOptions

    options = RunOptions(
        available_now=available_now,
        resume_from_table=resume_from_table,
        accept_duplicates=accept_duplicates,
        catch_up=catch_up,
        give_up_after=give_up_after,
        stalled_after=stalled_after,
    )
    if len(files) == 1 and not files[0].is_dir() and not watch:
        from penstock.config import load

        run_one(load(files[0]), files[0], options, log_format, with_dashboard)
        return
    if resume_from_table or accept_duplicates or catch_up:
        raise typer.BadParameter(
            "--resume-from-table, --accept-duplicates and --catch-up are for one pipeline: name its file alone"
        )
    from penstock.cli.fleet import run_several

    run_several(files, options, watch=watch, log_format=log_format, dashboard=_dashboard if with_dashboard else None)


def run_one(
    config: PipelineConfig, file: Path, options: RunOptions, log_format: str, with_dashboard: bool = False
) -> None:
    """Run one pipeline as a command: signals, a view, a summary."""
    from dataclasses import replace

    from penstock.cli.signals import StopOnSignal
    from penstock.cli.watch import choose_view, totals
    from penstock.engine.listener import Notice
    from penstock.engine.patience import StopRequest
    from penstock.spark.cache import log_file
    from penstock.supervision.run import run as run_pipeline

    stop = StopRequest()
    signals = StopOnSignal(stop)
    options = replace(options, log=log_file(config.name))
    view = choose_view(log_format)
    served = _dashboard([file], lambda text: view(Notice(text))) if with_dashboard else nullcontext()
    with signals.before_first_batch(), served, view:
        done = run_pipeline(config, options, signals.listening(view), stop)
    if log_format != "json":
        out.print(f"{totals(done)}, {done.seconds:.1f} s")


@contextmanager
def _dashboard(files: Sequence[Path], tell: Callable[[str], None]) -> Iterator[Dashboard]:
    from penstock.cli.dashboard import has_display, opened_in_browser
    from penstock.dashboard.serving import Dashboard

    with Dashboard(files) as dashboard:
        tell(f"dashboard at {dashboard.url}")
        with opened_in_browser(dashboard.url, has_display()):
            yield dashboard

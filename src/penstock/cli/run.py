"""`penstock run` and `penstock submit`: pipelines in one Spark application, here or on a cluster.

A run ends when its topics are drained, when it is stopped, or by an error.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from penstock.cli.arguments import (
    AcceptDuplicates,
    AvailableNow,
    CatchUp,
    File,
    GiveUpAfter,
    LogFormat,
    Master,
    ResumeFromTable,
    StalledAfter,
    files_in,
)
from penstock.cli.render import err, out, progress_bar, show_error
from penstock.preflight.options import RunOptions
from penstock.wording import counted

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.config import PipelineConfig
    from penstock.dashboard import Dashboard
    from penstock.supervision.fleet_events import FleetEvent

_PACKING = "packing the Python packages, once"


def run(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="The pipeline file. Several, or a folder with *.yaml files, run in one Spark application.",
            show_default=False,
        ),
    ],
    available_now: AvailableNow = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow files that are added, changed and removed while running.")
    ] = False,
    resume_from_table: ResumeFromTable = False,
    accept_duplicates: AcceptDuplicates = False,
    catch_up: CatchUp = False,
    log_format: LogFormat = "auto",
    give_up_after: GiveUpAfter = RunOptions.give_up_after,
    stalled_after: StalledAfter = RunOptions.stalled_after,
    with_dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Also serve the dashboard; its URL is printed.")
    ] = False,
) -> None:
    """Run a pipeline, or several. SIGTERM and Ctrl-C finish the current batch of each and exit 0.

    If one of several fails, the others continue, and it is retried after 10 seconds at first, up to 5 minutes later.
    The exit code is then that of the worst failure, or 0.
    """
    options = RunOptions(available_now, resume_from_table, accept_duplicates, catch_up, give_up_after, stalled_after)
    if len(files) == 1 and not files[0].is_dir() and not watch:
        from penstock.config import load

        _run_one(load(files[0]), files[0], options, log_format, with_dashboard)
        return
    if resume_from_table or accept_duplicates or catch_up:
        raise typer.BadParameter(
            "--resume-from-table, --accept-duplicates and --catch-up are for one pipeline: give only its file"
        )
    _run_several(files, options, log_format, watch=watch, with_dashboard=with_dashboard)


def submit(
    file: File,
    master: Master = None,
    deploy_mode: Annotated[
        Literal["client", "cluster"],
        typer.Option(help="client: the driver runs here; cluster: on the cluster, and this command waits for it."),
    ] = "client",
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting, overriding the file; may be repeated."),
    ] = None,
    available_now: AvailableNow = False,
    resume_from_table: ResumeFromTable = False,
    accept_duplicates: AcceptDuplicates = False,
    catch_up: CatchUp = False,
    log_format: LogFormat = "auto",
    give_up_after: GiveUpAfter = RunOptions.give_up_after,
    stalled_after: StalledAfter = RunOptions.stalled_after,
    render: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Do not submit: write the submission files into this folder."),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(help="Kubernetes: the image; --render writes a Dockerfile.", show_default=False),
    ] = None,
    namespace: Annotated[str, typer.Option(help="Kubernetes: the namespace.")] = "default",
    service_account: Annotated[
        str, typer.Option(help="Kubernetes: the service account that may start executors.")
    ] = "spark",
) -> None:
    """Run a pipeline on a cluster.

    In client mode the driver is this command: Ctrl-C and SIGTERM finish the current batch, and the exit code is the
    run's.
    """
    from penstock.config import load
    from penstock.ops.submit.submit import apply_submission, cluster_of, plan_submission, write_submission
    from penstock.ops.submit.terms import Submission

    config = load(file).with_spark(_spark_settings(conf or ())).on_master(master)
    options = RunOptions(available_now, resume_from_table, accept_duplicates, catch_up, give_up_after, stalled_after)
    cluster_of(config, deploy_mode)
    if render is None and deploy_mode == "client":
        _run_one(config, file, options, log_format)
        return
    submission = Submission(
        file=file,
        deploy_mode=deploy_mode,
        options=_as_flags(options),
        image=image,
        namespace=namespace,
        service_account=service_account,
    )
    planned = plan_submission(config, submission)
    if render is None:
        with tempfile.TemporaryDirectory(prefix="penstock-submit-") as folder:
            with progress_bar(_PACKING) as progress:
                write_submission(planned, Path(folder), progress)
            raise typer.Exit(apply_submission(planned, Path(folder)))
    with progress_bar(_PACKING) as progress:
        written = write_submission(planned, render, progress)
    for path in written:
        out.print(f"wrote {path}")
    for line in planned.next_steps:
        out.print(line)


def _run_one(
    config: PipelineConfig, file: Path, options: RunOptions, log_format: str, with_dashboard: bool = False
) -> None:
    """Run one pipeline as a command: signals, a view, a summary."""
    from penstock.cli.run_views import choose_view, totals
    from penstock.cli.signals import StopOnSignal
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


def _run_several(
    paths: Sequence[Path], options: RunOptions, log_format: str, *, watch: bool, with_dashboard: bool
) -> None:
    """Run the pipelines of some files and folders; exit with the code of the worst."""
    from penstock.cli.run_views import choose_view, totals
    from penstock.cli.signals import StopOnSignal
    from penstock.config.files import pipeline_files
    from penstock.engine.listener import Notice
    from penstock.engine.patience import StopRequest
    from penstock.spark.cache import log_file
    from penstock.supervision.fleet import run_fleet
    from penstock.supervision.fleet_events import FileChanged, FleetOptions

    files = files_in(paths, None if watch else ", or wait for them: --watch")
    stop = StopRequest()
    signals = StopOnSignal(stop)
    log = log_file(f"fleet-{files[0].stem if files else paths[0].absolute().name}")
    view = choose_view(log_format, several=True)
    opened: Dashboard | None = None

    def listen(name: str, event: FleetEvent) -> None:
        view(event, name)
        if isinstance(event, FileChanged) and opened is not None:
            opened.follow(pipeline_files(paths))

    served = _dashboard(files, lambda text: view(Notice(text), "")) if with_dashboard else nullcontext()
    with signals.before_first_batch(), served as dashboard, view:
        opened = dashboard
        fleet = FleetOptions(replace(options, log=log), watch=watch)
        done = run_fleet(paths, fleet, signals.listening(listen), stop)
    if log_format != "json":
        out.print(f"{counted(len(done.outcomes), 'pipeline')}: {totals(done.carried)}")
        for name, error in done.errors.items():
            err.print(f"[red]{escape(name)} failed:[/]")
            show_error(error)
    if done.exit_code:
        raise typer.Exit(done.exit_code)


@contextmanager
def _dashboard(files: Sequence[Path], tell: Callable[[str], None]) -> Iterator[Dashboard]:
    from penstock.cli.dashboard import has_display, opened_in_browser
    from penstock.dashboard.serving import Dashboard

    with Dashboard(files) as dashboard:
        tell(f"dashboard at {dashboard.url}")
        with opened_in_browser(dashboard.url, has_display()):
            yield dashboard


def _as_flags(options: RunOptions) -> tuple[str, ...]:
    """The options of the `penstock run` that the cluster starts."""
    switches = {
        "--available-now": options.available_now,
        "--resume-from-table": options.resume_from_table,
        "--accept-duplicates": options.accept_duplicates,
        "--catch-up": options.catch_up,
    }
    flags = tuple(name for name, wanted in switches.items() if wanted)
    if options.give_up_after != RunOptions.give_up_after:
        flags += ("--give-up-after", f"{options.give_up_after:g}")
    if options.stalled_after != RunOptions.stalled_after:
        flags += ("--stalled-after", f"{options.stalled_after:g}")
    return flags


def _spark_settings(given: Sequence[str]) -> dict[str, str]:
    from penstock.config.fields import is_secret

    found = {}
    for one in given:
        name, has_value, value = one.partition("=")
        if not has_value or not name.startswith("spark."):
            raise typer.BadParameter(f"{name} is not spark.NAME=VALUE", param_hint="--conf")
        if is_secret(name):
            raise typer.BadParameter(
                f"{name} is a secret, and visible on the command line to every user of this machine: set it in the "
                "pipeline file as ${env:NAME} or ${file:path}",
                param_hint="--conf",
            )
        found[name] = value
    return found

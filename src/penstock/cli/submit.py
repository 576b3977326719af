"""`penstock submit`: a pipeline on a cluster. The same run as `penstock run`, with its tasks on other machines."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli.arguments import (
    GIVE_UP_AFTER,
    STALLED_AFTER,
    AcceptDuplicates,
    AvailableNow,
    CatchUp,
    File,
    GiveUpAfter,
    LogFormat,
    Master,
    ResumeFromTable,
    StalledAfter,
)
from penstock.cli.render import out, progress_bar
from penstock.cli.run import run_one

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.preflight.options import RunOptions

_PACKING = "packing the Python packages, once"


def submit(
    file: File,
    master: Master = None,
    deploy_mode: Annotated[
        Literal["client", "cluster"],
        typer.Option(help="client: the driver runs here; cluster: on the cluster, and this command waits for it."),
    ] = "client",
    conf: Annotated[
        list[str] | None,
        typer.Option(
            "--conf", metavar="NAME=VALUE", help="A setting of Spark, before that of the file; may be repeated."
        ),
    ] = None,
    available_now: AvailableNow = False,
    resume_from_table: ResumeFromTable = False,
    accept_duplicates: AcceptDuplicates = False,
    catch_up: CatchUp = False,
    log_format: LogFormat = "auto",
    give_up_after: GiveUpAfter = GIVE_UP_AFTER,
    stalled_after: StalledAfter = STALLED_AFTER,
    render: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Submit nothing: write what a submission is made of into this folder."),
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="Kubernetes: the image; `Dockerfile` of --render makes one.", show_default=False)
    ] = None,
    namespace: Annotated[str, typer.Option(help="Kubernetes: the namespace.")] = "default",
    service_account: Annotated[
        str, typer.Option(help="Kubernetes: the account that may start the executors.")
    ] = "spark",
) -> None:
    """Run a pipeline on a cluster.

    In client mode the driver is this command: Ctrl-C and SIGTERM finish the batch in hand, and the exit code is the
    run's.
    """
    from penstock.config import load
    from penstock.ops.submit.submit import apply_submission, cluster_of, plan_submission, write_submission
    from penstock.ops.submit.terms import Submission
    from penstock.preflight.options import RunOptions

    config = load(file).with_spark(_settings(conf or ())).on_master(master)
    options = RunOptions(available_now, resume_from_table, accept_duplicates, catch_up, give_up_after, stalled_after)
    cluster_of(config, deploy_mode)
    if render is None and deploy_mode == "client":
        run_one(config, file, options, log_format)
        return
    asked = Submission(
        file=file,
        deploy_mode=deploy_mode,
        options=_given(options),
        image=image,
        namespace=namespace,
        service_account=service_account,
    )
    planned = plan_submission(config, asked)
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


def _given(options: RunOptions) -> tuple[str, ...]:
    """The options of the `penstock run` that the cluster starts."""
    flags = {
        "--available-now": options.available_now,
        "--resume-from-table": options.resume_from_table,
        "--accept-duplicates": options.accept_duplicates,
        "--catch-up": options.catch_up,
    }
    asked = tuple(name for name, wanted in flags.items() if wanted)
    if options.give_up_after != GIVE_UP_AFTER:
        asked += ("--give-up-after", f"{options.give_up_after:g}")
    if options.stalled_after != STALLED_AFTER:
        asked += ("--stalled-after", f"{options.stalled_after:g}")
    return asked


def _settings(given: Sequence[str]) -> dict[str, str]:
    from penstock.config.fields import is_secret

    found = {}
    for one in given:
        name, has_value, value = one.partition("=")
        if not has_value or not name.startswith("spark."):
            raise typer.BadParameter(f"{name} is not spark.NAME=VALUE", param_hint="--conf")
        if is_secret(name):
            raise typer.BadParameter(
                f"{name} is a secret, and everybody on the machine can read a command line: write it into the pipeline "
                "file as ${env:NAME} or ${file:path}",
                param_hint="--conf",
            )
        found[name] = value
    return found

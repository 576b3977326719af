"""`penstock`: commands, exit codes, and errors as help. What a command needs is imported when it runs."""

from __future__ import annotations

import logging
import os
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import typer.main

from penstock.cli.arguments import File, Json, Master
from penstock.cli.checkpoint_copies import app as checkpoint_app
from penstock.cli.compact import compact
from penstock.cli.dashboard import dashboard
from penstock.cli.dev import app as dev_app
from penstock.cli.diagnose import diagnose
from penstock.cli.gaps import gaps
from penstock.cli.lag import lag
from penstock.cli.metrics import app as metrics_app
from penstock.cli.quarantine import app as quarantine_app
from penstock.cli.render import err, out, print_json, show_error
from penstock.cli.replay import replay
from penstock.cli.run import run
from penstock.cli.schema import app as schema_app
from penstock.cli.signals import interrupt_on_sigterm
from penstock.cli.simulate import simulate
from penstock.cli.status import status
from penstock.cli.stop import stop
from penstock.cli.submit import submit
from penstock.errors import MissingError, as_penstock_error

app = typer.Typer(
    help="Events from Kafka into a lakehouse through Spark: none lost, none twice.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(dev_app, name="dev")
app.add_typer(checkpoint_app, name="checkpoint")
app.add_typer(schema_app, name="schema")
app.add_typer(quarantine_app, name="quarantine")
app.add_typer(metrics_app, name="metrics")

_state = {"debug": False}


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    _state["debug"] = debug
    # Else Python prints what libraries log to nobody, stacks of an interrupted call among them.
    logging.getLogger().addHandler(logging.StreamHandler() if debug else logging.NullHandler())


@app.command()
def validate(file: File, as_json: Json = False) -> None:
    """Check a pipeline file alone: no network, no JVM."""
    from penstock.assembly.user_code import refuse_missing_code
    from penstock.config import InvalidDefinition, load

    try:
        config = load(file)
        refuse_missing_code(config)
    except InvalidDefinition as error:
        if not as_json:
            raise
        print_json({"valid": False, "problems": [asdict(p) for p in error.problems]})
        raise typer.Exit(error.exit_code) from None
    if as_json:
        print_json({"valid": True, "name": config.name, "problems": []})
    else:
        out.print(f"[green]{file}: pipeline {config.name} is well defined[/]")


@app.command()
def plan(
    file: File,
    as_json: Json = False,
    resume_from_table: Annotated[bool, typer.Option(help="Plan a run with this option.")] = False,
    accept_duplicates: Annotated[bool, typer.Option(help="Plan a run with this option.")] = False,
    catch_up: Annotated[bool, typer.Option("--catch-up", help="Plan a run with this option.")] = False,
    master: Master = None,
    deploy_mode: Annotated[
        Literal["client", "cluster"], typer.Option(help="Plan a submission with this option.")
    ] = "client",
    acls: Annotated[
        bool, typer.Option("--acls", help="Only print the rights that the pipeline needs on its brokers; no network.")
    ] = False,
) -> None:
    """Check a pipeline against brokers, tables and checkpoint; say what a run would do, and in which lane."""
    from penstock.cli.plan import show_plan, show_rights
    from penstock.config import load
    from penstock.ops.acls import plan_rights
    from penstock.ops.plan import plan_run

    config = load(file).on_master(master)
    if acls:
        needed = plan_rights(config)
        print_json(needed.as_json()) if as_json else show_rights(needed)
        return
    planned = plan_run(
        config,
        resume=resume_from_table,
        accept_duplicates=accept_duplicates,
        catch_up=catch_up,
        deploy_mode=deploy_mode,
    )
    if as_json:
        print_json(planned.as_json())
    else:
        show_plan(planned)
    if planned.problems:
        raise typer.Exit(MissingError.exit_code)


@app.command()
def test(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="The pipeline files.", show_default=False)],
    case: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this case; may be repeated.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Run again whenever a file beside it is saved.")] = False,
    update: Annotated[bool, typer.Option("--update", help="Write what is seen into the cases that fail.")] = False,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML, for CI.")] = None,
    as_json: Json = False,
) -> None:
    """Run the pipeline's own cases, in FILE.test.yaml beside it: no broker, no network; exit 4 where one fails."""
    from penstock.cli import test as cases

    chosen = [cases.pipeline_of(file) for file in files]
    if watch:
        cases.watch(chosen, case or (), update, junit)
    else:
        cases.test(chosen, case or (), update, junit, as_json)


@app.command()
def preview(
    file: File,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many messages.")] = 20,
    start: Annotated[
        Literal["latest", "earliest"], typer.Option("--from", help="The newest messages, or the oldest.")
    ] = "latest",
    as_json: Json = False,
) -> None:
    """Carry real messages through the pipeline onto the screen; nothing is written anywhere."""
    from penstock.cli.preview import preview_json, show_preview
    from penstock.config import load
    from penstock.ops.preview import preview as run_preview

    found = run_preview(load(file), limit, start)
    if as_json:
        print_json(preview_json(found))
    else:
        show_preview(found)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("pipeline.yaml"),
    name: Annotated[str | None, typer.Option(help="The pipeline's name; else that of the file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite.")] = False,
) -> None:
    """Write a new pipeline file, commented, with completion for editors."""
    from penstock.config.template import new_files
    from penstock.config.yaml_source import read_plain

    chosen = name or file.stem
    # A name such as 2024 or yes is something else than text to YAML.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", chosen) or read_plain(chosen) != chosen:
        raise MissingError(
            "NAME_UNUSABLE",
            f'"{chosen}" cannot be the name of a pipeline: letters, digits, - _ and . are allowed',
            hint="give another one: --name NAME",
        )
    pipeline, *others = new_files(chosen).items()
    if file.exists() and not force:
        raise MissingError("FILE_EXISTS", f"{file} is there already", hint="name another file, or give --force")
    for path, text in ((file, pipeline[1]), *((file.parent / other, text) for other, text in others)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        out.print(f"wrote {path}")
    out.print(f"next: penstock validate {file}")


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--dir", help="Where the pipeline, its tables and the broker live.")] = Path(
        "penstock-demo"
    ),
    events: Annotated[int, typer.Option(min=150_000, help="How many orders to send.")] = 200_000,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the broker up afterwards.")] = False,
    with_dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Afterwards go on: more orders, and the dashboard, until Ctrl-C.")
    ] = False,
) -> None:
    """The whole thing on this machine: a real broker, events with faults in them, the pipeline, the summary."""
    from penstock.cli.demo import demo as run_demo

    run_demo(folder, events, keep, with_dashboard)


for _command in (run, submit, status, stop, gaps, compact, replay, lag, diagnose, simulate, dashboard):
    app.command()(_command)


def _without_types_of_flags(command: Any, parent: typer.Context | None = None) -> Any:
    """The command, whose help names a flag alone: typer puts `<bool>` behind it."""
    context = typer.Context(command, parent=parent, **command.context_settings)
    for option in command.get_params(context):
        if getattr(option, "is_bool_flag", False):
            option.metavar = ""
    for below in getattr(command, "commands", {}).values():
        _without_types_of_flags(below, context)
    return command


def main() -> None:
    """The entry point: one place where errors become text and exit codes."""
    interrupt_on_sigterm()
    try:
        _without_types_of_flags(typer.main.get_command(app))()
    except Exception as error:
        if _state["debug"]:
            err.print_exception()
        told = as_penstock_error(error)
        show_error(told)
        if told.code == "BATCH_STALLED":
            # A normal exit would wait for the thread that hangs in the batch.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(told.exit_code)
        sys.exit(told.exit_code)

"""`penstock`: its commands, and the one place where errors become text and exit codes.

What a command needs is imported when it runs.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated, Any

import typer
import typer.main

from penstock.cli.cases import preview, test
from penstock.cli.checkpoint import app as checkpoint_app
from penstock.cli.compact import compact
from penstock.cli.dashboard import dashboard
from penstock.cli.definition import init, validate
from penstock.cli.definition import schemas as schema_app
from penstock.cli.dev import app as dev_app
from penstock.cli.dev import demo
from penstock.cli.metrics import app as metrics_app
from penstock.cli.plan import plan
from penstock.cli.quarantine import app as quarantine_app
from penstock.cli.render import err, show_error
from penstock.cli.replay import replay
from penstock.cli.run import run, submit
from penstock.cli.signals import interrupt_on_sigterm
from penstock.cli.simulate import simulate
from penstock.cli.status import diagnose, gaps, lag, status
from penstock.cli.stop import stop
from penstock.errors import as_penstock_error

app = typer.Typer(
    help="Events from Kafka into a lakehouse through Spark, exactly once.",
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
    # Without a handler Python prints warnings of libraries, with stacks of interrupted calls among them.
    logging.getLogger().addHandler(logging.StreamHandler() if debug else logging.NullHandler())


for _command in (
    validate, plan, test, preview, init, demo, run, submit, status, stop, gaps, compact, replay, lag, diagnose,
    simulate, dashboard,
):  # fmt: skip
    app.command()(_command)


def _without_types_of_flags(command: Any, parent: typer.Context | None = None) -> Any:
    """The command, with `--flag` in its help instead of typer's `--flag <bool>`."""
    context = typer.Context(command, parent=parent, **command.context_settings)
    for option in command.get_params(context):
        if getattr(option, "is_bool_flag", False):
            option.metavar = ""
    for subcommand in getattr(command, "commands", {}).values():
        _without_types_of_flags(subcommand, context)
    return command


def main() -> None:
    """The entry point."""
    interrupt_on_sigterm()
    try:
        _without_types_of_flags(typer.main.get_command(app))()
    except Exception as error:
        if _state["debug"]:
            err.print_exception()
        shown = as_penstock_error(error)
        show_error(shown)
        if shown.code == "BATCH_STALLED":
            # A normal exit would wait for the thread that hangs in the batch.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(shown.exit_code)
        sys.exit(shown.exit_code)

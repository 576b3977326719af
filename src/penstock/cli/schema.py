"""`penstock schema`: that of the pipeline file, and those of a registry held against the pipeline and its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from penstock.cli.arguments import File, Json
from penstock.cli.render import out, print_json
from penstock.errors import MissingError

app = typer.Typer()

_COLOURS = {"fits": "green", "changes": "yellow", "breaks": "red", "unknown": "dim"}


@app.callback(invoke_without_command=True)
def schema(context: typer.Context) -> None:
    """Print the JSON Schema of the pipeline file, for editors; or check the schemas of a registry."""
    if context.invoked_subcommand is None:
        from penstock.config.template import json_schema_text

        typer.echo(json_schema_text())


@app.command()
def check(
    file: File,
    candidate: Annotated[
        Path | None,
        typer.Option(help="A schema that is not registered yet, instead of the newest one.", show_default=False),
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="The subject of the candidate, where there are several.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what the registry's newest schemas would change or break, before anyone deploys; exit 3 on a break."""
    from penstock.config import load
    from penstock.ops.schema import plan_schema_check

    found = plan_schema_check(load(file), candidate, subject)
    if as_json:
        print_json(found.as_json())
    else:
        out.print(f"[bold]{escape(found.pipeline)}[/]  {escape(', '.join(found.schemas))}")
        for finding in found.findings:
            colour = _COLOURS[finding.level]
            out.print(f"  [{colour}]{finding.level:8}[/] {escape(finding.about)}: {escape(finding.text)}")
        out.print("[red]this would break[/]" if found.breaks else "[green]nothing would break[/]")
    if found.breaks:
        raise typer.Exit(MissingError.exit_code)

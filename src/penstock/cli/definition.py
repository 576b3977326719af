"""`penstock init`, `validate` and `schema`: the pipeline file, and whether a registry's schemas fit it."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from penstock.cli.arguments import File, Json
from penstock.cli.render import answer, out, print_json
from penstock.errors import MissingError

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.ops.schema import SchemaCheck

schemas = typer.Typer()

_COLOURS = {"fits": "green", "changes": "yellow", "breaks": "red", "unknown": "dim"}


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("pipeline.yaml"),
    name: Annotated[str | None, typer.Option(help="The pipeline's name; defaults to that of the file.")] = None,
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
            hint="choose another one: --name NAME",
        )
    pipeline, *others = new_files(chosen).items()
    if file.exists() and not force:
        raise MissingError("FILE_EXISTS", f"{file} already exists", hint="choose another file, or use --force")
    for path, text in ((file, pipeline[1]), *((file.parent / other, text) for other, text in others)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        out.print(f"wrote {path}")
    out.print(f"next: penstock validate {file}")


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
        out.print(f"[green]{file}: pipeline {config.name} is valid[/]")


@schemas.callback(invoke_without_command=True)
def schema(context: typer.Context) -> None:
    """Print the JSON Schema of the pipeline file, for editors; or check the schemas of a registry."""
    if context.invoked_subcommand is None:
        from penstock.config.template import json_schema_text

        typer.echo(json_schema_text())


@schemas.command()
def check(
    file: File,
    candidate: Annotated[
        Path | None,
        typer.Option(help="A schema that is not registered yet, instead of the newest one.", show_default=False),
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="The subject of the candidate, if there are several.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what the newest registry schemas would change or break; exit 3 on a break."""
    from penstock.config import load
    from penstock.ops.schema import plan_schema_check

    found = plan_schema_check(load(file), candidate, subject)
    answer(found, _show_check, as_json)
    if found.breaks:
        raise typer.Exit(MissingError.exit_code)


def _show_check(found: SchemaCheck) -> None:
    out.print(f"[bold]{escape(found.pipeline)}[/]  {escape(', '.join(found.schemas))}")
    for finding in found.findings:
        colour = _COLOURS[finding.level]
        out.print(f"  [{colour}]{finding.level:8}[/] {escape(finding.about)}: {escape(finding.text)}")
    out.print("[red]this would break[/]" if found.breaks else "[green]nothing would break[/]")

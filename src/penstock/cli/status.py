"""`penstock status`: pipelines at a glance, a line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from penstock.cli.arguments import Files, Json, ago
from penstock.cli.render import Screen, err, number, out, print_json, show_error, table
from penstock.errors import DefinitionError

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.ops.status import PipelineStatus

_WIDEST = 1000
_COLOURS = {"running": "green", "failed": "red", "killed": "red", "silent": "red", "wrong file": "red"}


def status(files: Files, as_json: Json = False) -> None:
    """Say of each pipeline whether it runs and where, its last batch, its lag, what went to quarantine today (UTC),
    its last backup, and what is wrong. Exit 0 whatever the pipelines do; 2 where a file is wrong.
    """
    from penstock.config.files import pipeline_files
    from penstock.ops.status import find_status

    found = find_status(pipeline_files(files))
    if as_json:
        print_json([one.as_json() for one in found])
    elif found:
        show_status(found)
    else:
        err.print("there is no *.yaml in it")
    if not found or any(one.error is not None for one in found):
        raise typer.Exit(DefinitionError.exit_code)


def show_status(found: Sequence[PipelineStatus]) -> None:
    """Print a line a pipeline, and under them what each warning and each wrong file is about."""
    rows = table(
        "pipeline", "state", "last batch", "lag", "quarantined today", "last backup", "warnings",
        numbers=("lag", "quarantined today"),
    )  # fmt: skip
    for one in found:
        colour = _COLOURS.get(one.state)
        state = f"[{colour}]{one.state}[/]" if colour else one.state
        rows.add_row(
            escape(one.pipeline or one.file),
            state + escape(_where(one)),
            "-" if one.batch_id is None else f"{one.batch_id}, {ago(one.batch_at)}",
            number(one.lag),
            _quarantined(one),
            ago(one.backup_at),
            escape(_codes(one)),
        )
    # In a pipe a line is a pipeline, however long.
    (out if out.is_terminal else Screen(highlight=False, width=_WIDEST)).print(rows)
    for one in found:
        for warning in one.warnings:
            out.print(f"[yellow]{escape(one.pipeline or one.file)}[/]: {escape(warning.code)} {escape(warning.text)}")
        if one.error is not None:
            show_error(one.error)


def _where(one: PipelineStatus) -> str:
    run = one.run
    if run is None or one.error is not None:
        return ""
    if run.note is None:
        return f": {run.holder} has the checkpoint" if run.holder else ""
    if run.running:
        doing = "" if run.note.facts.doing == "running" else f", {run.note.facts.doing.partition(':')[0]}"
        return f": {run.note.who}, since {ago(run.note.started_at).removesuffix(' ago')}{doing}"
    return f" {ago(run.note.ended_at or run.note.at)}"


def _quarantined(one: PipelineStatus) -> str:
    count = one.quarantined
    return "-" if count is None else f"{'' if count.exact else 'at most '}{count.records:,}"


def _codes(one: PipelineStatus) -> str:
    if one.error is not None:
        return one.error.code
    return ", ".join(warning.code for warning in one.warnings) or "none"

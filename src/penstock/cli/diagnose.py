"""`penstock diagnose`: why a pipeline is slow or stuck, the likeliest cause first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from penstock.cli.arguments import File, Json
from penstock.cli.render import err, out, print_json
from penstock.wording import counted

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.ops.diagnosis import Diagnosis


def diagnose(file: File, as_json: Json = False) -> None:
    """Say why a pipeline is slow or stuck: the likely causes, each with its evidence and the one thing to change.

    It looks at the run's own history, the checkpoint, the brokers, the tables and the registry, and changes nothing.
    Exit 0 whatever it finds.
    """
    from penstock.config import load
    from penstock.ops.diagnosis import diagnose as find_causes

    config = load(file)
    with err.status("looking at the history, the checkpoint, the brokers and the tables"):
        found = find_causes(config)
    if as_json:
        print_json(found.as_json())
    else:
        show_diagnosis(found)


def show_diagnosis(found: Diagnosis) -> None:
    """Print the causes, or what was looked at where there are none; then what could not be."""
    if found.causes:
        likely = counted(len(found.causes), "likely cause")
        out.print(f"[bold]{escape(found.pipeline)}[/]: {likely}{', the likeliest first' if found.causes[1:] else ''}")
        if found.idle is not None:
            out.print(f"[yellow]{escape(found.idle)}[/]")
    else:
        how = f"[yellow]{escape(found.idle)}[/]" if found.idle is not None else "[green]nothing is slow or stuck[/]"
        out.print(f"[bold]{escape(found.pipeline)}[/]: {how}")
    for number, cause in enumerate(found.causes, 1):
        out.print(f"\n[bold]{number}. {escape(cause.summary)}[/]  [dim]{cause.code}[/]")
        for line in cause.evidence:
            out.print(f"   {escape(line)}")
        out.print(f"   [green]change:[/] {escape(cause.change)}")
    if found.causes:
        out.print("")
    for line in found.looked:
        out.print(f"[dim]{escape(line)}[/]")
    for note in found.notes:
        out.print(f"[yellow]{escape(note)}[/]")

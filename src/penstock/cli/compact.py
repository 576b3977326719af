"""`penstock compact`: join small files of a pipeline's tables and remove old ones; before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from penstock.cli.arguments import DryRun, File, Json, duration
from penstock.cli.render import answer, err, out, print_json, table
from penstock.wording import counted, size

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.model.upkeep import TableFigures
    from penstock.ops.compact import CompactPlan
    from penstock.supervision.upkeep import Tended

_NUMBERS = ("files", "small", "size", "versions", "removed")


def compact(
    file: File,
    sink: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this sink; or quarantine, gaps, redrives.", show_default=False),
    ] = None,
    within: Annotated[str, typer.Option(metavar="TIME", help="Stop after this time, keeping finished work.")] = "1 day",
    keep: Annotated[
        str, typer.Option(metavar="TIME", help="How long to keep old versions and their files for readers.")
    ] = "7 days",
    dry_run: DryRun = False,
    no_clean: Annotated[bool, typer.Option("--no-clean", help="Compact files; remove none.")] = False,
    as_json: Json = False,
) -> None:
    """Join small files of the tables and remove files that no version needs, also while the pipeline runs.

    The stream has priority: a compaction that conflicts with its commit yields; if it never got a turn, the exit code
    is 75.
    """
    from penstock.config import load
    from penstock.ops.compact import apply_compact, plan_compact, raise_what_is_left
    from penstock.spark.cache import log_file

    bounds = duration(within, "--within"), duration(keep, "--keep")
    planned = plan_compact(load(file), sink, *bounds, clean=not no_clean)
    if dry_run:
        answer(planned, _show_plan, as_json)
        return
    with err.status("reading the tables") as status:
        done = apply_compact(
            planned,
            log_file(f"{planned.pipeline}.compact"),
            lambda name: status.update(f"compacting {escape(name)}"),
        )
    if as_json:
        print_json({**planned.as_json(), "tables": [_as_json(one) for one in done]})
    else:
        _show(planned, done)
    raise_what_is_left(done)


def _show_plan(planned: CompactPlan) -> None:
    rows = table("table", "files", "small", "size", "versions", "removable", "", numbers=(*_NUMBERS, "removable"))
    for one in planned.tables:
        if one.figures is None:
            rows.add_row(escape(one.table.name), "-", "-", "-", "-", "-", "does not exist yet")
            continue
        cleaning = one.cleaning
        found = "-" if cleaning is None else f"{cleaning.files:,}"
        if cleaning is not None and cleaning.versions:
            found += f", {counted(cleaning.versions, 'snapshot')}"
        notes = ["through Spark"] if one.needs_spark else []
        notes += [cleaning.note] if cleaning is not None and cleaning.note else []
        rows.add_row(escape(one.table.name), *_cells(one.figures), found, escape("; ".join(notes)))
    out.print(rows)
    _show_others(planned)
    out.print("[dim]nothing was changed[/]")


def _show(planned: CompactPlan, done: Sequence[Tended]) -> None:
    rows = table("table", "", *_NUMBERS, "seconds", "", numbers=(*_NUMBERS, "seconds"))
    for one in done:
        if one.before is not None:
            rows.add_row(escape(one.table.name), "before", *_cells(one.before))
        notes = [note for note in (one.compacted.left, one.cleaned.note) if note]
        if one.compacted.gave_way:
            notes.append(f"yielded to the stream {counted(one.compacted.gave_way, 'time')}")
        if one.error is not None:
            notes = [one.error.code]
        after = _cells(one.after) if one.after is not None else ("-",) * 4
        rows.add_row("", "after", *after, f"{one.cleaned.files:,}", f"{one.seconds:.1f}", escape("; ".join(notes)))
    out.print(rows) if done else out.print("no table exists yet")
    _show_others(planned)


def _show_others(planned: CompactPlan) -> None:
    for name, why in planned.others:
        out.print(f"{escape(name)}: nothing to do: {escape(why)}")


def _cells(figures: TableFigures) -> tuple[str, str, str, str]:
    return f"{figures.files:,}", f"{figures.small_files:,}", size(figures.size_bytes), f"{figures.versions:,}"


def _as_json(one: Tended) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "name": one.table.name,
        "target": one.table.target,
        "before": asdict(one.before) if one.before else None,
        "after": asdict(one.after) if one.after else None,
        "compacted": asdict(one.compacted),
        "cleaned": asdict(one.cleaned),
        "seconds": round(one.seconds, 2),
        "error": one.error.code if one.error else None,
    }

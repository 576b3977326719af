"""`penstock checkpoint backup / restore / fork / adopt`: copies of a checkpoint, and new ones from what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from penstock.cli.arguments import DryRun, File, Json, ago
from penstock.cli.checkpoint import app as app
from penstock.cli.render import out, print_json, progress_bar, show_note, table
from penstock.wording import counted, size

if TYPE_CHECKING:
    from penstock.checkpoint.backup import Backup
    from penstock.model import TopicPartition
    from penstock.ops.checkpoint.adopt import AdoptPlan
    from penstock.ops.checkpoint.fork import ForkPlan
    from penstock.ops.checkpoint.restore import RestorePlan

_SHOWN = 12


@app.command()
def backup(
    file: File,
    to: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where the copies go; else as in the file.", show_default=False)
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Remove all but the newest N of this checkpoint.", show_default=False),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Show the backups that there are.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Copy the checkpoint, while the stream runs or not; `--list` shows the copies."""
    from penstock.assembly.reaching import storage_of
    from penstock.config import load
    from penstock.ops.checkpoint.backup import apply_backup, backups_there, plan_backup

    config, place = load(file), _absolute(to) if to is not None else None
    if listing:
        found = backups_there(config, place)
        if as_json:
            print_json([one.facts() for one in found])
        else:
            _show_backups(found)
        return
    plan = plan_backup(config, place, keep)
    if dry_run:
        if as_json:
            print_json({**vars(plan), "dry_run": True})
        elif plan.batch is None:
            out.print("no batch is committed yet: there is nothing to copy")
        else:
            out.print(f"would copy {counted(plan.files, 'file')} up to batch {plan.batch} to {escape(plan.place)}")
            _show_removed("would remove", plan.removes)
        return
    with progress_bar("copying", in_bytes=True, quiet=as_json) as tell:
        made = apply_backup(plan, tell, storage_of(config))
    if as_json:
        print_json({**made.facts(), "removed": list(plan.removes)})
    else:
        told = f"{counted(len(made.files), 'file')}, {size(made.size_bytes)}"
        out.print(f"[green]copied[/] up to batch {made.batch}: {escape(made.path)} ({told})")
        _show_removed("removed", plan.removes)


@app.command()
def restore(
    file: File,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="BACKUP", help="A path, or a name of `backup --list`; else the newest.",
                     show_default=False),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Put the checkpoint back from a backup, and make it agree with what the sinks hold: none lost, none twice."""
    from penstock.config import load
    from penstock.ops.checkpoint.restore import apply_restore, plan_restore

    config = load(file)
    with progress_bar("checking", in_bytes=True, quiet=as_json) as tell:
        plan = plan_restore(config, _absolute(source) if source is not None and "/" in source else source, tell)
    if not dry_run:
        with progress_bar("restoring", in_bytes=True, quiet=as_json) as tell:
            plan = apply_restore(plan, tell)
    if as_json:
        print_json({**plan.as_json(), "dry_run": dry_run})
    else:
        _show_restore(plan, file, dry_run)


@app.command()
def fork(
    file: File,
    to: Annotated[str, typer.Option(metavar="PATH", help="The new checkpoint; empty or not there.")],
    at: Annotated[
        int | None,
        typer.Option(min=0, metavar="BATCH", help="Begin behind this batch; else the last.", show_default=False),
    ] = None,
    offsets: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="earliest, latest, a time, or orders:0=1500,orders:1=20", show_default=False),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make a new checkpoint that begins where you say; the old one stays as it is."""
    from penstock.assembly.reaching import storage_of
    from penstock.config import load
    from penstock.ops.checkpoint.fork import apply_fork, plan_fork

    if at is not None and offsets is not None:
        raise typer.BadParameter("give --at or --offsets, not both")
    config = load(file)
    plan = plan_fork(config, _absolute(to), at, offsets)
    if not dry_run:
        apply_fork(plan, storage_of(config))
    if as_json:
        print_json({**plan.as_json(), "dry_run": dry_run})
    else:
        _show_fork(plan, file, dry_run)


@app.command()
def adopt(
    file: File,
    source: Annotated[str, typer.Option("--from", metavar="PATH", help="The checkpoint of the other job.")],
    open_batch: Annotated[
        Literal["again", "skip"] | None,
        typer.Option(help="Where its last batch is not over: begin before it, or behind it.", show_default=False),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Go on where another Structured Streaming job on Kafka stopped; its checkpoint stays as it is."""
    from penstock.config import load
    from penstock.ops.checkpoint.adopt import apply_adopt, plan_adopt

    plan = plan_adopt(load(file), _absolute(source), open_batch)
    if not dry_run:
        apply_adopt(plan, open_batch)
    if as_json:
        print_json({**plan.as_json(), "dry_run": dry_run})
    else:
        _show_adopt(plan, file, dry_run)


def _show_backups(found: Sequence[Backup]) -> None:
    if not found:
        out.print("no backups yet: penstock checkpoint backup FILE makes one")
        return
    rows = table("backup", "batch", "made", "files", "size", numbers=("batch", "files", "size"))
    for one in found:
        batch = str(one.batch) if one.batch is not None else "-"
        rows.add_row(escape(one.name), batch, ago(one.created_at), f"{len(one.files):,}", size(one.size_bytes))
    out.print(rows)
    out.print(f"[dim]in {escape(found[0].path.removesuffix(found[0].name).rstrip('/'))}[/]")


def _show_removed(what: str, paths: Sequence[str]) -> None:
    for path in paths:
        out.print(f"{what} {escape(path)}")


def _show_restore(plan: RestorePlan, file: Path, dry_run: bool) -> None:
    backup = plan.backup
    batch = f"batch {backup.batch}, " if backup.batch is not None else ""
    out.print(f"{'would restore' if dry_run else '[green]restored[/]'} {escape(plan.checkpoint)}")
    out.print(f"  from    {escape(backup.path)} ({batch}made {ago(backup.created_at)})")
    out.print(f"  was     {escape(plan.present)}")
    if plan.saved is not None:
        out.print(f"  saved   {escape(plan.saved)}")
    out.print(f"  sinks   {escape(plan.reconciled.next_batch)}")
    for note in plan.reconciled.notes:
        show_note(note, out)
    if not dry_run:
        out.print(f"next: penstock run {escape(str(file))}")


def _show_fork(plan: ForkPlan, file: Path, dry_run: bool) -> None:
    out.print(f"{'would make' if dry_run else '[green]made[/]'} checkpoint {escape(plan.to)}, {escape(plan.origin)}")
    _show_starts(plan.starts)
    for line in plan.sinks:
        out.print(f"  {escape(line)}")
    if not dry_run:
        out.print(f"next: write `checkpoint: {escape(plan.to)}` in {escape(str(file))}, then see what a run would do:")
        out.print(f"  penstock plan {escape(str(file))}")


def _show_adopt(plan: AdoptPlan, file: Path, dry_run: bool) -> None:
    after = f"after its batch {plan.after}" if plan.after is not None else "before its first batch"
    checkpoint = escape(plan.config.checkpoint)
    out.print(
        f"{'would make' if dry_run else '[green]made[/]'} checkpoint {checkpoint}, {after} of {escape(plan.source)}"
    )
    _show_starts(plan.starts)
    for note in plan.notes:
        show_note(note, out)
    if not dry_run:
        out.print(f"next: penstock plan {escape(str(file))}, then penstock run {escape(str(file))}")


def _show_starts(starts: Sequence[Mapping[TopicPartition, int]]) -> None:
    every = sorted((at, offset) for one in starts for at, offset in one.items())
    for at, offset in every[:_SHOWN]:
        out.print(f"  {escape(str(at))} from {offset:,}")
    if len(every) > _SHOWN:
        out.print(f"  and {counted(len(every) - _SHOWN, 'partition')} more: --json shows all")


def _absolute(path: str) -> str:
    from penstock.config.fields import resolve_location

    return resolve_location(path, Path.cwd())

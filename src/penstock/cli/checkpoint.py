"""`penstock checkpoint`: inspect, verify and repair a checkpoint; copies of it, and new ones made from others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer
from rich.markup import escape

from penstock.cli.arguments import DryRun, File, Json, ago
from penstock.cli.render import answer, more, number, out, print_json, progress_bar, show_note, table
from penstock.errors import MissingError
from penstock.wording import counted, size

if TYPE_CHECKING:
    from penstock.checkpoint.backup import Backup
    from penstock.checkpoint.findings import Finding
    from penstock.model import TopicPartition
    from penstock.ops.checkpoint.adopt import AdoptPlan
    from penstock.ops.checkpoint.fork import ForkPlan
    from penstock.ops.checkpoint.repair import RepairPlan, Verification
    from penstock.ops.checkpoint.restore import RestorePlan
    from penstock.ops.checkpoint.show import BatchView, CheckpointView

app = typer.Typer(help="Inspect, verify, back up and repair a checkpoint.", no_args_is_help=True)

_SHOWN = 12

Plan = TypeVar("Plan", bound="RestorePlan | ForkPlan | AdoptPlan")


@app.command()
def show(
    file: File,
    batch: Annotated[
        int | None, typer.Option("--batch", min=0, metavar="N", help="One batch: its ranges.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show batches, offsets and lag, state, and the token of each sink; no JVM."""
    from penstock.config import load
    from penstock.ops.checkpoint.show import show_batch, show_checkpoint
    from penstock.ops.snapshot import take_snapshot

    if batch is not None:
        answer(show_batch(load(file), batch), _show_batch, as_json)
    else:
        answer(show_checkpoint(take_snapshot(load(file))), lambda found: _show_view(found, file), as_json)


@app.command()
def verify(file: File, as_json: Json = False) -> None:
    """Check a checkpoint against itself, the brokers and the sinks; exit 3 on anything that blocks a run."""
    from penstock.config import load
    from penstock.ops.checkpoint.repair import verify_checkpoint
    from penstock.ops.snapshot import take_snapshot

    found = verify_checkpoint(take_snapshot(load(file)))
    answer(found, lambda found: _show_verified(found, file), as_json)
    if found.blocks:
        raise typer.Exit(MissingError.exit_code)


@app.command()
def repair(
    file: File,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be changed, or why not.")] = False,
    as_json: Json = False,
) -> None:
    """Repair a damaged checkpoint if that is provably safe; a copy is made first. Exit 3 if not."""
    from penstock.config import load
    from penstock.ops.checkpoint.repair import apply_repair, plan_repair
    from penstock.ops.snapshot import take_snapshot

    plan = plan_repair(take_snapshot(load(file), brokers=None))
    if not dry_run and plan.changes:
        with progress_bar("copying the current files", in_bytes=True) as progress:
            plan = apply_repair(plan, progress)
    answer(plan, lambda plan: _show_repair(plan, file), as_json)
    if plan.refused or plan.left:
        raise typer.Exit(MissingError.exit_code)


@app.command()
def backup(
    file: File,
    to: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The target folder; defaults to that of the file.", show_default=False),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Remove all but the newest N backups of this checkpoint.", show_default=False
        ),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the backups.")] = False,
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
    with progress_bar("copying", in_bytes=True, quiet=as_json) as progress:
        made = apply_backup(plan, progress, storage_of(config))
    if as_json:
        print_json({**made.facts(), "removed": list(plan.removes)})
    else:
        copied = f"{counted(len(made.files), 'file')}, {size(made.size_bytes)}"
        out.print(f"[green]copied[/] up to batch {made.batch}: {escape(made.path)} ({copied})")
        _show_removed("removed", plan.removes)


@app.command()
def restore(
    file: File,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="BACKUP", help="A path, or a name from `backup --list`; defaults to the newest.",
                     show_default=False),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Restore the checkpoint from a backup, and make it agree with the sinks: nothing lost, nothing duplicated."""
    from penstock.config import load
    from penstock.ops.checkpoint.restore import apply_restore, plan_restore

    config = load(file)
    with progress_bar("checking", in_bytes=True, quiet=as_json) as progress:
        plan = plan_restore(config, _absolute(source) if source is not None and "/" in source else source, progress)
    if not dry_run:
        with progress_bar("restoring", in_bytes=True, quiet=as_json) as progress:
            plan = apply_restore(plan, progress)
    _answer_plan(plan, _show_restore, file, dry_run, as_json)


@app.command()
def fork(
    file: File,
    to: Annotated[str, typer.Option(metavar="PATH", help="The new checkpoint; must be empty or not exist.")],
    at: Annotated[
        int | None,
        typer.Option(min=0, metavar="BATCH", help="Start after this batch; defaults to the last.", show_default=False),
    ] = None,
    offsets: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="earliest, latest, a time, or orders:0=1500,orders:1=20", show_default=False),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make a new checkpoint that starts at chosen offsets; the old one is not changed."""
    from penstock.assembly.reaching import storage_of
    from penstock.config import load
    from penstock.ops.checkpoint.fork import apply_fork, plan_fork

    if at is not None and offsets is not None:
        raise typer.BadParameter("give --at or --offsets, not both")
    config = load(file)
    plan = plan_fork(config, _absolute(to), at, offsets)
    if not dry_run:
        apply_fork(plan, storage_of(config))
    _answer_plan(plan, _show_fork, file, dry_run, as_json)


@app.command()
def adopt(
    file: File,
    source: Annotated[str, typer.Option("--from", metavar="PATH", help="The checkpoint of the other job.")],
    open_batch: Annotated[
        Literal["again", "skip"] | None,
        typer.Option(help="If its last batch is not committed: repeat it, or skip it.", show_default=False),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Continue where another Structured Streaming job on Kafka stopped; its checkpoint is not changed."""
    from penstock.config import load
    from penstock.ops.checkpoint.adopt import apply_adopt, plan_adopt

    plan = plan_adopt(load(file), _absolute(source), open_batch)
    if not dry_run:
        apply_adopt(plan, open_batch)
    _answer_plan(plan, _show_adopt, file, dry_run, as_json)


def _answer_plan(
    plan: Plan, show: Callable[[Plan, Path, bool], None], file: Path, dry_run: bool, as_json: bool
) -> None:
    if as_json:
        print_json({**plan.as_json(), "dry_run": dry_run})
    else:
        show(plan, file, dry_run)


def _show_verified(found: Verification, file: Path) -> None:
    out.print(f"[bold]{escape(found.pipeline)}[/]  {escape(found.checkpoint)}: {escape(found.state)}")
    for finding in found.findings:
        _show_finding(finding, file)
    blocking = sum(1 for one in found.findings if one.blocks)
    if blocking:
        out.print(f"[red]{counted(blocking, 'finding')} that {'blocks' if blocking == 1 else 'block'} a run[/]")
    else:
        out.print("[green]nothing blocks a run[/]")


def _show_repair(plan: RepairPlan, file: Path) -> None:
    from penstock.checkpoint import to_spark_json

    out.print(f"[bold]{escape(plan.config.name)}[/]  {escape(plan.config.checkpoint)}")
    if plan.live is not None:
        show_note(f"{plan.live} runs on it: repair is refused until it has stopped", out)
    if plan.backup is not None:
        out.print(f"  backup      the old files are kept in {escape(plan.backup)}")
    verb = "" if plan.done else "would "
    for change in plan.changes:
        what = f" {to_spark_json(change.ends)}" if change.ends else ""
        act = "remove the checksum of" if change.act == "remove checksum" else change.act.split()[0]
        out.print(f"  {verb}{act} {escape(change.name)}{escape(what)}")
        out.print(f"              [dim]{escape(change.why)}[/]")
    for refused in plan.refused:
        out.print(f"  [red]not repaired[/]  {refused.code}: {escape(refused.why)}")
    for finding in plan.left:
        _show_finding(finding, file)
    if not plan.changes and not plan.refused:
        blocking = [one for one in plan.findings if one.blocks]
        out.print("[green]there is nothing to repair[/]" if not blocking else "none of this can be repaired")
        for finding in blocking:
            _show_finding(finding, file)
    elif plan.done and not plan.left:
        out.print("[green]according to the files and the sinks, nothing blocks a run now[/]")


def _show_finding(finding: Finding, file: Path) -> None:
    colour = "bold red" if finding.blocks else "yellow"
    out.print(f"[{colour}]{finding.code}[/] {escape(finding.summary)}")
    for name, value in finding.context.items():
        out.print(f"  {escape(name)}: {escape(value)}")
    if finding.means:
        out.print(f"  [dim]{escape(finding.means)}[/]")
    for at, line in enumerate(finding.way_out.splitlines()):
        out.print(f"  {'way out: ' if at == 0 else '         '}{escape(line.replace('FILE', str(file)))}")


def _show_batch(view: BatchView) -> None:
    state = f"committed {ago(view.committed_at)}" if view.committed else "has not committed"
    out.print(f"[bold]{escape(view.pipeline)}[/]  batch {view.batch} started {ago(view.began_at)}, {state}")
    if view.watermark is not None:
        out.print(f"  watermark   {view.watermark}")
    out.print(f"  newest in   {escape(', '.join(view.sinks)) or 'no sink'}")
    rows = table("    partition", "from", "to", "offsets", numbers=("from", "to", "offsets"))
    for one in view.ranges:
        start, end = one["start"], one["end"]
        cells = [number(value, "?") for value in (start, end, None if start is None else end - start)]
        rows.add_row(f"    {one['topic']}[{one['partition']}]", *cells)
    out.print(rows)


def _show_view(view: CheckpointView, file: Path) -> None:
    out.print(f"[bold]{escape(view.pipeline)}[/]  {escape(view.checkpoint)}")
    if view.begun is None and view.committed is None:
        out.print("  fresh: no batch has started")
    out.print(f"  query       {view.query_id or 'none'}")
    if view.formats:
        out.print(f"  formats     {escape(', '.join(f'{name} {version}' for name, version in view.formats.items()))}")
    out.print(f"  batches     {number(view.begun)} started, {number(view.committed)} committed")
    if view.open is not None:
        began = f"started {ago(view.open.began_at)}" if view.open.began_at is not None else "has started"
        after = "" if view.running is not None else "; no run is active: the next run repeats it"
        out.print(f"  open        batch {view.open.batch} {began} and has not committed{after}")
    out.print(f"  running     {escape(view.running or 'no')}")
    if view.watermark is not None:
        out.print(f"  watermark   {view.watermark}")
    _show_partitions(view)
    for store in view.state:
        name = " ".join(filter(None, (store.step or f"step {store.operator}", store.name)))
        kept = f"{size(store.size_bytes)} in {counted(store.files, 'file')}"
        out.print(f"  state       {escape(name)}: {counted(store.partitions, 'partition')}, {kept}")
    for sink in view.sinks:
        word = {True: "[green]agrees[/]", False: "[red]disagrees[/]", None: "[dim]-[/]"}[sink.agrees]
        out.print(f"  sink        [bold]{escape(sink.name)}[/]  {escape(sink.says)}  {word}")
    for problem in view.problems:
        out.print(f"[red]{escape(problem)}[/]")
    if view.agree is False:
        out.print(f"[red]a run must not start:[/] penstock checkpoint verify {escape(str(file))}")
    elif view.agree:
        out.print("[green]the checkpoint and the sinks agree[/]")


def _show_partitions(view: CheckpointView) -> None:
    if view.brokers is not None:
        show_note(f"no lag: {view.brokers}", out)
    if not view.partitions:
        return
    numbers = ("committed", "open to", "log end", "lag")
    rows = table("    partition", *numbers, numbers=numbers)
    for p in view.partitions[:_SHOWN]:
        rows.add_row(f"    {p.topic}[{p.partition}]", *(number(n) for n in (p.committed, p.begun, p.log_end, p.lag)))
    out.print(rows)
    more(len(view.partitions) - _SHOWN)
    if view.lag is not None:
        out.print(f"  lag         {counted(view.lag, 'offset')} in {counted(len(view.partitions), 'partition')}")


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
        out.print(
            f"next: write `checkpoint: {escape(plan.to)}` in {escape(str(file))}, then check what a run would do:"
        )
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
    more(len(every) - _SHOWN, indent="  ")


def _absolute(path: str) -> str:
    from penstock.config.fields import resolve_location

    return resolve_location(path, Path.cwd())

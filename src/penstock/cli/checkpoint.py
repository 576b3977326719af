"""`penstock checkpoint`: a checkpoint as a thing one can look at, check and put right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from penstock.cli.arguments import File, Json, ago
from penstock.cli.render import number, out, print_json, progress_bar, show_note, table
from penstock.errors import MissingError
from penstock.wording import counted, size

if TYPE_CHECKING:
    from penstock.checkpoint.findings import Finding
    from penstock.ops.checkpoint.repair import RepairPlan
    from penstock.ops.checkpoint.show import BatchView, CheckpointView

app = typer.Typer(help="Look at a checkpoint, check it, keep copies of it, put it right.", no_args_is_help=True)

_PARTITIONS_SHOWN = 12


@app.command()
def show(
    file: File,
    batch: Annotated[
        int | None, typer.Option("--batch", min=0, metavar="N", help="One batch: its ranges.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show batches, offsets and lag, state, and what each sink's own token says; no JVM."""
    from penstock.config import load
    from penstock.ops.checkpoint.show import show_batch, show_checkpoint

    found: BatchView | CheckpointView
    found = show_batch(load(file), batch) if batch is not None else show_checkpoint(load(file))
    if as_json:
        print_json(found.as_json())
    elif batch is not None:
        _print_batch(found)
    else:
        _print_view(found, file)


@app.command()
def verify(file: File, as_json: Json = False) -> None:
    """Check a checkpoint against itself, the brokers and the sinks; exit 3 on anything that blocks a run."""
    from penstock.config import load
    from penstock.ops.checkpoint.repair import verify_checkpoint

    found = verify_checkpoint(load(file))
    if as_json:
        print_json(found.as_json())
    else:
        out.print(f"[bold]{escape(found.pipeline)}[/]  {escape(found.checkpoint)}: {escape(found.state)}")
        for finding in found.findings:
            _print_finding(finding, file)
        blocking = sum(1 for one in found.findings if one.blocks)
        if blocking:
            out.print(f"[red]{counted(blocking, 'finding')} that {'blocks' if blocking == 1 else 'block'} a run[/]")
        else:
            out.print("[green]nothing blocks a run[/]")
    if found.blocks:
        raise typer.Exit(MissingError.exit_code)


@app.command()
def repair(
    file: File,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be changed, or why not.")] = False,
    as_json: Json = False,
) -> None:
    """Put a damaged checkpoint right where that is provably safe; a copy is made first. Exit 3 where it is not."""
    from penstock.config import load
    from penstock.ops.checkpoint.repair import plan_repair

    plan = plan_repair(load(file))
    if not dry_run and plan.changes:
        plan = _with_progress(plan)
    if as_json:
        print_json(plan.as_json())
    else:
        _print_repair(plan, file)
    if plan.refused or plan.left:
        raise typer.Exit(MissingError.exit_code)


def _with_progress(plan: RepairPlan) -> RepairPlan:
    from penstock.ops.checkpoint.repair import apply_repair

    with progress_bar("copying what is there", in_bytes=True) as progress:
        return apply_repair(plan, progress)


def _print_repair(plan: RepairPlan, file: Path) -> None:
    from penstock.checkpoint import to_spark_json

    out.print(f"[bold]{escape(plan.config.name)}[/]  {escape(plan.config.checkpoint)}")
    if plan.live is not None:
        show_note(f"{plan.live} runs on it: a repair is refused until that has stopped", out)
    if plan.backup is not None:
        out.print(f"  backup      what was there is kept in {escape(plan.backup)}")
    verb = "" if plan.done else "would "
    for change in plan.changes:
        what = f" {to_spark_json(change.ends)}" if change.ends else ""
        act = "remove the checksum of" if change.act == "remove checksum" else change.act.split()[0]
        out.print(f"  {verb}{act} {escape(change.name)}{escape(what)}")
        out.print(f"              [dim]{escape(change.why)}[/]")
    for refused in plan.refused:
        out.print(f"  [red]not repaired[/]  {refused.code}: {escape(refused.why)}")
    for finding in plan.left:
        _print_finding(finding, file)
    if not plan.changes and not plan.refused:
        blocking = [one for one in plan.findings if one.blocks]
        out.print("[green]there is nothing to repair[/]" if not blocking else "nothing of this can be repaired")
        for finding in blocking:
            _print_finding(finding, file)
    elif plan.done and not plan.left:
        out.print("[green]nothing blocks a run any more, by the files and the sinks[/]")


def _print_finding(finding: Finding, file: Path) -> None:
    colour = "bold red" if finding.blocks else "yellow"
    out.print(f"[{colour}]{finding.code}[/] {escape(finding.summary)}")
    for name, value in finding.context.items():
        out.print(f"  {escape(name)}: {escape(value)}")
    if finding.means:
        out.print(f"  [dim]{escape(finding.means)}[/]")
    for at, line in enumerate(finding.way_out.splitlines()):
        out.print(f"  {'way out: ' if at == 0 else '         '}{escape(line.replace('FILE', str(file)))}")


def _print_batch(found: Any) -> None:
    view: BatchView = found
    state = f"committed {ago(view.committed_at)}" if view.committed else "has not committed"
    out.print(f"[bold]{escape(view.pipeline)}[/]  batch {view.batch} began {ago(view.began_at)}, {state}")
    if view.watermark is not None:
        out.print(f"  watermark   {view.watermark}")
    out.print(f"  held by     {escape(', '.join(view.sinks)) or 'no sink as its newest'}")
    rows = table("    partition", "from", "to", "offsets", numbers=("from", "to", "offsets"))
    for one in view.ranges:
        start, end = one["start"], one["end"]
        cells = [number(value, "?") for value in (start, end, None if start is None else end - start)]
        rows.add_row(f"    {one['topic']}[{one['partition']}]", *cells)
    out.print(rows)


def _print_view(found: Any, file: Path) -> None:
    view: CheckpointView = found
    out.print(f"[bold]{escape(view.pipeline)}[/]  {escape(view.checkpoint)}")
    if view.begun is None and view.committed is None:
        out.print("  fresh: no batch has begun")
    out.print(f"  query       {view.query_id or 'none'}")
    if view.formats:
        out.print(f"  formats     {escape(', '.join(f'{name} {version}' for name, version in view.formats.items()))}")
    out.print(f"  batches     {number(view.begun)} begun, {number(view.committed)} committed")
    if view.open is not None:
        began = f"began {ago(view.open.began_at)}" if view.open.began_at is not None else "has begun"
        after = "" if view.running is not None else "; nobody runs it: the next run does it again"
        out.print(f"  in hand     batch {view.open.batch} {began} and has not committed{after}")
    out.print(f"  running     {escape(view.running or 'no')}")
    if view.watermark is not None:
        out.print(f"  watermark   {view.watermark}")
    _print_partitions(view)
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


def _print_partitions(view: CheckpointView) -> None:
    if view.brokers is not None:
        show_note(f"no lag: {view.brokers}", out)
    if not view.partitions:
        return
    numbers = ("committed", "in hand to", "log end", "lag")
    rows = table("    partition", *numbers, numbers=numbers)
    for p in view.partitions[:_PARTITIONS_SHOWN]:
        rows.add_row(f"    {p.topic}[{p.partition}]", *(number(n) for n in (p.committed, p.begun, p.log_end, p.lag)))
    out.print(rows)
    hidden = len(view.partitions) - _PARTITIONS_SHOWN
    if hidden > 0:
        out.print(f"    and {counted(hidden, 'partition')} more: --json shows all")
    if view.lag is not None:
        out.print(f"  lag         {counted(view.lag, 'offset')} in {counted(len(view.partitions), 'partition')}")

"""`penstock replay`: run some offsets again; the plan is shown before it starts, a bar while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from penstock.cli.arguments import DryRun, File, Json
from penstock.cli.render import err, out, print_json, show_note, table
from penstock.wording import counted

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.ops.replay.replay import ReplayPlan

_SHOWN = 20

From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="T",
        help="Where to start: 2026-01-31T08:00:00Z, earliest, or offsets: orders:0=1500,orders:1=20.",
        show_default=False,
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="T",
        help="Where to end (exclusive): a time, offsets, latest (the end of the log now), or committed (the position "
        "of the live run).",
        show_default=False,
    ),
]
Partitions = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Only these: 0,3 or orders:0,orders:3.", show_default=False),
]
SinkNames = Annotated[list[str] | None, typer.Option("--sink", metavar="NAME", help="Only this sink; may be repeated.")]
Into = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TARGET",
        help="Another path, table or topic to write to; with several sinks SINK=TARGET, which may be repeated.",
    ),
]
Resume = Annotated[str | None, typer.Option(metavar="ID", help="Continue this stopped replay.", show_default=False)]
GiveUp = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="Abandon this stopped replay: redrives no longer wait for it.",
        show_default=False,
    ),
]


def replay(
    file: File,
    start: From = None,
    end: To = None,
    partitions: Partitions = None,
    sink: SinkNames = None,
    into: Into = None,
    resume: Resume = None,
    give_up: GiveUp = None,
    accept_missing: Annotated[
        bool, typer.Option("--accept-missing", help="Continue where some of these records have expired.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Write records again that the pipeline's own targets already have.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Process offsets again, next to the live run, into another target or, if safe, into the same one."""
    from penstock.config import load
    from penstock.ops.replay.folder import ReplayRequest
    from penstock.ops.replay.replay import give_up_replay, plan_replay, refuse_missing

    if give_up is not None:
        sinks = give_up_replay(load(file), give_up)
        if as_json:
            print_json({"id": give_up, "given_up": sinks})
        else:
            effect = f"redrives to {escape(', '.join(sinks))} continue" if sinks else "no redrive was waiting for it"
            out.print(f"replay {escape(give_up)} is abandoned: {effect}")
        return
    if resume is None and (start is None or end is None):
        raise typer.BadParameter("give --from and --to, or --resume ID, or --give-up ID", param_hint="--from, --to")
    config = load(file)
    request = None
    if resume is None:
        assert start is not None and end is not None
        request = ReplayRequest(start, end, partitions, tuple(sink or ()), tuple(into or ()), accept_missing, again)
    plan = plan_replay(config, request, resume)
    if not as_json:
        _show_plan(plan)
    if dry_run:
        if as_json:
            print_json(plan.as_json())
        else:
            out.print("\n[dim]nothing was written[/]")
        return
    refuse_missing(plan)
    _run(plan, file, as_json)


def _show_plan(plan: ReplayPlan) -> None:
    stored = plan.stored
    out.print(f"[bold]{escape(plan.config.name)}[/]  replay {stored.id}")
    if plan.resumed:
        out.print(f"  continues an earlier start: {plan.done} of {counted(plan.batches, 'batch', 'batches')} done")
    when = (
        f", written from {plan.times[0]:%Y-%m-%d %H:%M:%S} to {plan.times[1]:%Y-%m-%d %H:%M:%S} UTC"
        if plan.times
        else ""
    )
    parts = counted(len({r.topic_partition for r in plan.ranges}), "partition")
    out.print(f"  reads    up to {counted(plan.offsets, 'message')} of {parts}{when}")
    out.print(f"  batches  {plan.batches:,} of at most {stored.batch_offsets:,} offsets")
    running = f"runs, {plan.running}; it is not affected" if plan.running else "does not run"
    out.print(f"  live     {escape(running)}")
    for one in plan.targets:
        out.print(f"  sink     [bold]{escape(one.sink)}[/]: {escape(one.target)}")
        out.print(f"           {one.way.value}{_replaced(one.replaces)}")
    if plan.quarantine is not None:
        out.print(f"  rejects  {escape(plan.quarantine)}")
    shown = table("partition", "from", "to", "offsets", numbers=("from", "to", "offsets"))
    for r in plan.ranges[:_SHOWN]:
        shown.add_row(str(r.topic_partition), f"{r.start:,}", f"{r.end:,}", f"{len(r):,}")
    out.print(shown)
    if len(plan.ranges) > _SHOWN:
        out.print(f"  and {len(plan.ranges) - _SHOWN} more")
    for text in plan.notices:
        show_note(text)
    for lost in plan.missing:
        span = f"{lost.start:,} to {lost.end:,}" if lost.start is not None else f"everything before {lost.end:,}"
        err.print(f"[yellow]gone:[/] {lost.at} {span}: {escape(lost.reason)}")


def _replaced(rows: int | None) -> str:
    return f"; {counted(rows, 'row')} are replaced" if rows is not None else ""


def _run(plan: ReplayPlan, file: Path, as_json: bool) -> None:
    from penstock.cli.run_views import RunProgress
    from penstock.cli.signals import StopOnSignal
    from penstock.engine.patience import StopRequest
    from penstock.errors import TransientError
    from penstock.ops.replay.replay import apply_replay
    from penstock.spark.cache import log_file
    from penstock.supervision.bounded import cut

    stop = StopRequest()
    signals = StopOnSignal(stop)
    continue_hint = f"; continue: penstock replay {file} --resume {plan.stored.id}"
    sizes = [sum(map(len, batch)) for batch in cut(plan.ranges, plan.stored.batch_offsets)]
    bar = RunProgress(
        "replaying",
        plan.offsets,
        amount=lambda metrics: sizes[metrics.batch_id],
        outcome=lambda metrics: f"{metrics.rows_out:,} out, {metrics.quarantined:,} quarantined",
        done=sum(sizes[: plan.done]),
        commits_after=len(sizes) - 1 if plan.at_once else None,
        quiet=as_json,
    )
    with signals.before_first_batch(continue_hint, TransientError.exit_code), bar:
        done = apply_replay(plan, signals.listening(bar), stop, log=log_file(plan.name))
    if as_json:
        names = ("batches", "rows_in", "rows_out", "quarantined", "seconds")
        figures = {name: getattr(done, name) for name in names} if done is not None else {}
        print_json({**plan.as_json(), "finished": done is not None, **figures})
    if done is None:
        err.print(f"stopped after a batch; nothing is lost or duplicated{escape(continue_hint)}")
        raise typer.Exit(TransientError.exit_code)
    if not as_json:
        rate = done.rows_in / done.seconds if done.seconds else 0.0
        out.print(
            f"replay {plan.stored.id} is done: {done.rows_in:,} rows in, {done.rows_out:,} out, "
            f"{done.quarantined:,} quarantined, {done.seconds:.1f} s, {rate:,.0f} rows/s"
        )
        if done.quarantined and plan.quarantine is not None:
            out.print(f"quarantined in {escape(plan.quarantine)}")

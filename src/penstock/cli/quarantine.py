"""`penstock quarantine`: bad records, with their bytes, and the way back in."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from penstock.cli.arguments import DryRun, File, Json, moment
from penstock.cli.render import err, out, print_json
from penstock.wording import counted

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.ops.quarantine.place import Selection
    from penstock.ops.redrive.redrive import RedrivePlan, RedriveResult

app = typer.Typer(help="Bad records, with their bytes, and the way back in.", no_args_is_help=True)

Code = Annotated[list[str] | None, typer.Option("--code", metavar="CODE", help="Only this code; may be repeated.")]
Topic = Annotated[list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic; may be repeated.")]
Since = Annotated[
    datetime | None,
    typer.Option(
        parser=moment,
        metavar="TIME",
        help="Only what was quarantined since: 2026-01-31T08:00:00Z, 2026-01-31 or 2 hours.",
        show_default=False,
    ),
]
Until = Annotated[
    datetime | None,
    typer.Option(parser=moment, metavar="TIME", help="Only what was quarantined before.", show_default=False),
]
Where = Annotated[
    str | None,
    typer.Option(metavar="SQL", help="A Spark SQL condition over the quarantine's columns.", show_default=False),
]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many, the oldest.", show_default=False)]


@app.command("list")
def list_command(
    file: File,
    by: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Count by these: code, topic, partition, stage, state, day, ...")
    ] = "code,topic,schema_id",
    code: Code = None,
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    records: Annotated[int, typer.Option(min=0, help="List so many records, the newest.")] = 0,
    as_json: Json = False,
) -> None:
    """Count what is in quarantine: by code, topic, schema id, how it stands, and time."""
    from penstock.cli.quarantine_show import show_listing
    from penstock.config import load
    from penstock.ops.quarantine.listing import list_records

    columns = [name.strip() for name in by.split(",") if name.strip()]
    found = list_records(load(file), _selection(code, topic, since, until, where), columns, records)
    if as_json:
        _print_json(found.as_json())
    else:
        show_listing(found)


@app.command("show")
def show_command(
    file: File,
    record: Annotated[str, typer.Argument(metavar="RECORD", help="orders[3]@1234 or orders:3:1234.")],
    full: Annotated[bool, typer.Option("--full", help="All of its bytes.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Write the bytes of its value to the output and nothing else.")] = (
        False
    ),
    as_json: Json = False,
) -> None:
    """Show one record: its bytes as text and hex, its neighbours, why it is here, and what would happen to it now."""
    from penstock.cli.quarantine_show import show_shown
    from penstock.config import load
    from penstock.ops.quarantine.show import parse_place, show_record

    shown = show_record(load(file), parse_place(record))
    if raw:
        sys.stdout.buffer.write(shown.value or b"")
    elif as_json:
        _print_json(shown.as_json())
    else:
        show_shown(shown, full=full)


@app.command()
def redrive(
    file: File,
    code: Code = None,
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    limit: Limit = None,
    include_parked: Annotated[
        bool, typer.Option("--include-parked", help="Include records that failed `max_redrives` times.")
    ] = False,
    accept_duplicates: Annotated[
        bool,
        typer.Option(
            "--accept-duplicates",
            help="Include records that may already be written, in whole or in part, and targets that cannot tell.",
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Bring records back in through the pipeline as it is now, exactly once. Ctrl-C finishes the batch in hand."""
    from penstock.cli.quarantine_show import show_plan, show_trial
    from penstock.config import load
    from penstock.ops.redrive.redrive import plan_redrive, try_redrive

    plan = plan_redrive(
        load(file),
        _selection(code, topic, since, until, where, limit),
        include_parked=include_parked,
        accept_duplicates=accept_duplicates,
    )
    if not as_json:
        show_plan(plan)
    if dry_run or not (plan.records or plan.unfinished):
        trial = try_redrive(plan) if dry_run and plan.records else None
        if as_json:
            _print_json({"dry_run": dry_run, "plan": plan.as_json(), "trial": trial.as_json() if trial else None})
        elif dry_run:
            if trial is not None:
                show_trial(trial)
            out.print("[dim]nothing was written[/]")
        return
    result = _redriven(plan, quiet=as_json)
    if as_json:
        _print_json({"dry_run": False, "plan": plan.as_json(), "result": result.as_json()})
    else:
        _show_result(result, file)


@app.command()
def drop(
    file: File,
    code: Code = None,
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    limit: Limit = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take records back that were dropped.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Give records up: they are marked, and no redrive takes them. Nothing is removed, and --undo takes it back."""
    from penstock.config import load
    from penstock.ops.quarantine.listing import apply_drop, plan_drop

    plan = plan_drop(load(file), _selection(code, topic, since, until, where, limit), undo=undo)
    told = f"{'take back' if undo else 'drop'} {counted(plan.records, 'record')}"
    if not as_json:
        codes = ", ".join(f"{name} {count:,}" for name, count in plan.codes.items())
        out.print(
            f"[bold]{escape(plan.config.name)}[/]  {told} of {escape(plan.target)}" + (f": {codes}" if codes else "")
        )
    acts = bool(plan.records) and not dry_run
    if acts and not yes and sys.stdin.isatty():
        typer.confirm(f"{told}?", abort=True, err=True)
    done = apply_drop(plan) if acts else None
    if as_json:
        _print_json({"dry_run": dry_run, **plan.as_json(), "run": done})
    elif dry_run:
        out.print("[dim]nothing was written[/]")
    elif done is not None:
        back = "" if undo else f"; take it back with: penstock quarantine drop {escape(str(file))} --undo"
        out.print(f"marked by {done}{back}")


def _selection(
    code: list[str] | None,
    topic: list[str] | None,
    since: datetime | None,
    until: datetime | None,
    where: str | None,
    limit: int | None = None,
) -> Selection:
    from penstock.ops.quarantine.place import Selection

    return Selection(tuple(code or ()), tuple(topic or ()), since, until, where, limit)


def _redriven(plan: RedrivePlan, *, quiet: bool) -> RedriveResult:
    from penstock.cli.run_progress import RunProgress
    from penstock.cli.signals import StopOnSignal
    from penstock.engine.patience import StopRequest
    from penstock.ops.redrive.redrive import apply_redrive
    from penstock.spark.cache import log_file

    stop = StopRequest()
    signals = StopOnSignal(stop)
    total = plan.records + sum(run.records for run in plan.unfinished)
    progress = RunProgress(
        "redriving",
        total,
        carried=lambda metrics: metrics.rows_in,
        told=lambda metrics: f"{metrics.quarantined:,} failed again",
        quiet=quiet,
    )
    with progress:
        log = log_file(f"{plan.config.name}.redrive")
        return apply_redrive(plan, signals.listening(progress), stop, log=log)


def _show_result(result: RedriveResult, file: Path) -> None:
    runs = ", ".join(result.runs) or "none"
    told = f"{counted(result.redriven, 'record')} redriven, {result.failed:,} failed again"
    out.print(told + (f" ({result.parked:,} now parked)" if result.parked else "") + f"; run {runs}")
    if not result.finished:
        err.print(
            f"[yellow]stopped[/] with {counted(result.left, 'record')} left: it goes on where it is with: "
            f"penstock quarantine redrive {escape(str(file))}"
        )


def _print_json(body: dict[str, Any]) -> None:
    print_json(body, default=lambda value: value.isoformat() if isinstance(value, datetime) else str(value))

"""`penstock quarantine`: list, inspect and redrive bad records."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from penstock.cli.arguments import DryRun, File, Json, moment
from penstock.cli.render import answer, as_text, err, out, print_json, show_note, table
from penstock.wording import counted

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.ops.quarantine.listing import Listing
    from penstock.ops.quarantine.place import Selection
    from penstock.ops.quarantine.show import ShownRecord, TrialResult
    from penstock.ops.redrive.redrive import RedrivePlan, RedriveResult, RedriveTrial

_BAR = 40
_BYTES_SHOWN = 256
_TEXT_SHOWN = 1_000
_SPAN_FORMATS = {"hour": "%Y-%m-%d %H:00", "day": "%Y-%m-%d", "week": "%Y-%m-%d", "month": "%Y-%m"}

app = typer.Typer(help="List, inspect and redrive bad records.", no_args_is_help=True)

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
Limit = Annotated[int | None, typer.Option(min=1, help="At most this many, the oldest first.", show_default=False)]


@app.command("list")
def list_command(
    file: File,
    by: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Group by: code, topic, partition, stage, state, day, ...")
    ] = "code,topic,schema_id",
    code: Code = None,
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    records: Annotated[int, typer.Option(min=0, help="Also list this many records, the newest first.")] = 0,
    as_json: Json = False,
) -> None:
    """Count quarantined records by code, topic, schema id, state and time."""
    from penstock.config import load
    from penstock.ops.quarantine.listing import list_records

    columns = [name.strip() for name in by.split(",") if name.strip()]
    found = list_records(load(file), _selection(code, topic, since, until, where), columns, records)
    answer(found, _show_listing, as_json, as_text)


@app.command("show")
def show_command(
    file: File,
    record: Annotated[str, typer.Argument(metavar="RECORD", help="orders[3]@1234 or orders:3:1234.")],
    full: Annotated[bool, typer.Option("--full", help="All of its bytes.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Write only the bytes of its value to the output.")] = (False),
    as_json: Json = False,
) -> None:
    """Show one record: its bytes as text and hex, its neighbours, why it is here, and what would happen to it now."""
    from penstock.config import load
    from penstock.ops.quarantine.show import parse_place, show_record

    shown = show_record(load(file), parse_place(record))
    if raw:
        sys.stdout.buffer.write(shown.value or b"")
    else:
        answer(shown, lambda shown: _show_record(shown, full=full), as_json, as_text)


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
    """Process records again with the current pipeline, exactly once. Ctrl-C finishes the current batch."""
    from penstock.config import load
    from penstock.ops.redrive.redrive import plan_redrive, try_redrive

    plan = plan_redrive(
        load(file),
        _selection(code, topic, since, until, where, limit),
        include_parked=include_parked,
        accept_duplicates=accept_duplicates,
    )
    if not as_json:
        _show_redrive(plan)
    if dry_run or not (plan.records or plan.unfinished):
        trial = try_redrive(plan) if dry_run and plan.records else None
        if as_json:
            print_json(
                {"dry_run": dry_run, "plan": plan.as_json(), "trial": trial.as_json() if trial else None}, as_text
            )
        elif dry_run:
            if trial is not None:
                _show_trial(trial)
            out.print("[dim]nothing was written[/]")
        return
    result = _redriven(plan, quiet=as_json)
    if as_json:
        print_json({"dry_run": False, "plan": plan.as_json(), "result": result.as_json()}, as_text)
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
    undo: Annotated[bool, typer.Option("--undo", help="Revert: make dropped records available again.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Mark records as dropped, so that no redrive takes them. Nothing is removed, and --undo reverts it."""
    from penstock.config import load
    from penstock.ops.quarantine.listing import apply_drop, plan_drop

    plan = plan_drop(load(file), _selection(code, topic, since, until, where, limit), undo=undo)
    act = f"{'take back' if undo else 'drop'} {counted(plan.records, 'record')}"
    if not as_json:
        codes = ", ".join(f"{name} {count:,}" for name, count in plan.codes.items())
        out.print(
            f"[bold]{escape(plan.config.name)}[/]  {act} of {escape(plan.target)}" + (f": {codes}" if codes else "")
        )
    acts = bool(plan.records) and not dry_run
    if acts and not yes and sys.stdin.isatty():
        typer.confirm(f"{act}?", abort=True, err=True)
    done = apply_drop(plan) if acts else None
    if as_json:
        print_json({"dry_run": dry_run, **plan.as_json(), "run": done}, as_text)
    elif dry_run:
        out.print("[dim]nothing was written[/]")
    elif done is not None:
        revert = "" if undo else f"; revert with: penstock quarantine drop {escape(str(file))} --undo"
        out.print(f"marked by {done}{revert}")


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
    from penstock.cli.run_views import RunProgress
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
        amount=lambda metrics: metrics.rows_in,
        outcome=lambda metrics: f"{metrics.quarantined:,} failed again",
        quiet=quiet,
    )
    with progress:
        log = log_file(f"{plan.config.name}.redrive")
        return apply_redrive(plan, signals.listening(progress), stop, log=log)


def _show_result(result: RedriveResult, file: Path) -> None:
    runs = ", ".join(result.runs) or "none"
    carried = f"{counted(result.redriven, 'record')} redriven, {result.failed:,} failed again"
    out.print(carried + (f" ({result.parked:,} now parked)" if result.parked else "") + f"; run {runs}")
    if not result.finished:
        err.print(
            f"[yellow]stopped[/] with {counted(result.left, 'record')} left; continue with: "
            f"penstock quarantine redrive {escape(str(file))}"
        )


def _show_listing(found: Listing) -> None:
    from penstock.ops.quarantine.show import describe

    states = ", ".join(f"{count:,} {state}" for state, count in found.states.items())
    total = counted(found.total, "record")
    out.print(
        f"[bold]{escape(found.pipeline)}[/]  {total} in {escape(found.target)}" + (f": {states}" if states else "")
    )
    for run in found.unfinished:
        show_note(f"redrive {run} is not finished; the next redrive completes it first")
    if not found.total:
        return
    shown = [name for name in found.by if any(group.what[name] is not None for group in found.groups)]
    rows = table(*(name.replace("_", " ") for name in shown), "records", "state", "first", "last",
                 numbers=("records", "schema id", "partition"))  # fmt: skip
    for group in found.groups:
        cells = [_cell(group.what[name]) for name in shown]
        states = ", ".join(f"{count:,} {state}" for state, count in group.states.items())
        rows.add_row(*cells, f"{group.count:,}", states, _when(group.first), _when(group.last))
    out.print(rows)
    _show_times(found)
    if found.records:
        out.print()
        listed = table("record", "state", "code", "message", "quarantined at")
        for one in found.records:
            place = describe((one["topic"], one["partition"], one["offset"]))
            cells = [place, _state(one), one["code"], one["message"] or "", _when(one["quarantined_at"])]
            listed.add_row(*map(escape, cells))
        out.print(listed)


def _show_times(found: Listing) -> None:
    most = max(count for _, count in found.times)
    out.print(f"\nquarantined, by {found.span}")
    for start, count in found.times:
        bar = "█" * max(1, round(_BAR * count / most))
        out.print(f"  {start:{_SPAN_FORMATS[found.span]}}  {bar} {count:,}")


def _show_record(shown: ShownRecord, *, full: bool) -> None:
    from penstock.ops.quarantine.show import describe

    stamp = _when(shown.timestamp) if shown.timestamp is not None else "none"
    out.print(f"[bold]{escape(describe(shown.place))}[/]  timestamp {stamp}")
    for row in shown.rows:
        by = f", refused by {escape(row['refused_by'])}" if row["refused_by"] else ""
        out.print(f"  [red]{escape(row['code'])}[/] at {escape(row['stage'])}: {escape(row['message'] or '')}")
        out.print(
            f"    by {escape(row['pipeline'])} batch {row['batch_id']}, {_when(row['quarantined_at'])}{by}; "
            f"now {_state(row)}"
        )
    for mark in shown.marks:
        why = f": {escape(mark['code'])}: {escape(mark['message'] or '')}" if mark["code"] else ""
        out.print(f"    {_when(mark['marked_at'])}  {mark['outcome']} by {mark['run']}{why}")
    out.print(f"  with the pipeline as it is now: {escape(_verdict(shown.now))}")
    _show_bytes("key", shown.key, full)
    _show_bytes("value", shown.value, full, "" if shown.schema_id is None else f", schema id {shown.schema_id}")
    for name, value in shown.headers:
        text = "null" if value is None else value.decode(errors="backslashreplace")
        out.print(f"  header {escape(name)}: {escape(_printable(text))}")
    out.print("  neighbours in the source")
    for one in shown.neighbours:
        out.print(
            f"    {one.offset}: {escape(one.standing)}" + (f", quarantined: {escape(one.code)}" if one.code else "")
        )


def _show_bytes(name: str, value: bytes | None, full: bool, suffix: str = "") -> None:
    if value is None:
        out.print(f"  {name}: null")
        return
    text = value.decode(errors="backslashreplace")
    kept = text if full or len(text) <= _TEXT_SHOWN else text[:_TEXT_SHOWN] + " ..."
    out.print(f"  {name}, {counted(len(value), 'byte')}{suffix}")
    for line in kept.splitlines() or [""]:
        out.print(f"    {escape(_printable(line))}")
    some = value if full else value[:_BYTES_SHOWN]
    for line in hex_lines(some):
        out.print(f"    [dim]{escape(line)}[/]")
    if len(some) < len(value):
        out.print(f"    [dim]{len(value) - len(some):,} more (--full, or --raw > file)[/]")


def hex_lines(value: bytes) -> Iterator[str]:
    """Sixteen bytes per line: offset, hex, text."""
    for start in range(0, len(value), 16):
        part = value[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield f"{start:08x}  {part[:8].hex(' '):23}  {part[8:].hex(' '):23}  |{text}|"


def _show_redrive(plan: RedrivePlan) -> None:
    out.print(
        f"[bold]{escape(plan.config.name)}[/]  redrive of {counted(plan.records, 'record')} from {escape(plan.target)}"
    )
    for run in plan.unfinished:
        show_note(f"redrive {run.name} of {run.records:,} records is not finished: it is completed first")
    if plan.codes:
        out.print("  " + ", ".join(f"{escape(code)} {count:,}" for code, count in plan.codes.items()))
    all_sinks = {sink.name for sink in plan.config.sinks}
    for way, count in plan.ways.items():
        whole = "" if set(way) == all_sinks else " only: the others have them"
        out.print(f"  into {escape(', '.join(way))}{whole}: {count:,}")
    for notice in plan.notices:
        show_note(notice)
    for sink, count in plan.held.items():
        out.print(f"  already in {escape(sink)}, not written again: {count:,}")
    for reason, count in plan.left_out.items():
        out.print(f"  left in quarantine: {count:,} {escape(reason)}")
    if plan.taken_back:
        records = counted(plan.taken_back, "record")
        show_note(f"{records} were redriven before and wait again: their targets were restored to an earlier state")


def _show_trial(trial: RedriveTrial) -> None:
    if trial.unknown is not None:
        out.print(f"  not tried: {escape(trial.unknown)}")
        return
    codes = ", ".join(f"{escape(code)} {count:,}" for code, count in trial.codes.items())
    again = f"{trial.failed:,} would fail again" + (f": {codes}" if codes else "")
    out.print(f"  {counted(trial.redriven, 'record')} would be redriven, {again}")
    for sink, count in trial.rows.items():
        out.print(f"    {escape(sink)}: {counted(count, 'new row')}")


def _verdict(now: TrialResult) -> str:
    if now.unknown is not None:
        return f"unknown: {now.unknown}"
    if now.refused:
        refused = [f"{one['code']}: {one['message']}" for one in now.refused]
        return "refused again: " + "; ".join(refused)
    rows = ", ".join(f"{counted(count, 'row')} for {name}" for name, count in now.rows.items())
    return f"good: {rows}"


def _state(row: Mapping[str, Any]) -> str:
    if row["state"] == "redriven":
        return f"redriven by {row['run']}"
    return f"{row['state']} {counted(row['failures'], 'time')}" if row["failures"] else str(row["state"])


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return _when(value)
    return "-" if value is None else escape(str(value))


def _when(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def _printable(line: str) -> str:
    """Control characters of a payload must not reach the terminal."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in line)

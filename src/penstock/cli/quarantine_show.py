"""`penstock quarantine`, drawn: counts and times, one record with its bytes, what a redrive would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.markup import escape

from penstock.cli.render import out, show_note, table
from penstock.ops.quarantine.listing import Listing
from penstock.ops.quarantine.show import ShownRecord, TrialResult, describe
from penstock.ops.redrive.redrive import RedrivePlan, RedriveTrial
from penstock.wording import counted

_BAR = 40
_BYTES_SHOWN = 256
_TEXT_SHOWN = 1_000
_SPAN_FORMATS = {"hour": "%Y-%m-%d %H:00", "day": "%Y-%m-%d", "week": "%Y-%m-%d", "month": "%Y-%m"}


def show_listing(found: Listing) -> None:
    """Print the counts, the times, and the records where some were asked for."""
    states = ", ".join(f"{count:,} {state}" for state, count in found.states.items())
    total = counted(found.total, "record")
    out.print(
        f"[bold]{escape(found.pipeline)}[/]  {total} in {escape(found.target)}" + (f": {states}" if states else "")
    )
    for run in found.unfinished:
        show_note(f"redrive {run} is not finished; the next redrive finishes it first")
    if not found.total:
        return
    shown = [name for name in found.by if any(group.what[name] is not None for group in found.groups)]
    rows = table(*(name.replace("_", " ") for name in shown), "records", "how they stand", "first", "last",
                 numbers=("records", "schema id", "partition"))  # fmt: skip
    for group in found.groups:
        cells = [_cell(group.what[name]) for name in shown]
        stand = ", ".join(f"{count:,} {state}" for state, count in group.states.items())
        rows.add_row(*cells, f"{group.count:,}", stand, _when(group.first), _when(group.last))
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
    for moment, count in found.times:
        bar = "█" * max(1, round(_BAR * count / most))
        out.print(f"  {moment:{_SPAN_FORMATS[found.span]}}  {bar} {count:,}")


def show_shown(shown: ShownRecord, *, full: bool) -> None:
    """Print one record."""
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
    out.print(f"  as the pipeline is now: {escape(_verdict(shown.now))}")
    _show_bytes("key", shown.key, full)
    _show_bytes("value", shown.value, full, "" if shown.schema_id is None else f", schema id {shown.schema_id}")
    for name, value in shown.headers:
        told = "null" if value is None else value.decode(errors="backslashreplace")
        out.print(f"  header {escape(name)}: {escape(_printable(told))}")
    out.print("  neighbours in the source")
    for one in shown.neighbours:
        out.print(
            f"    {one.offset}: {escape(one.standing)}" + (f", quarantined: {escape(one.code)}" if one.code else "")
        )


def _show_bytes(name: str, value: bytes | None, full: bool, more: str = "") -> None:
    if value is None:
        out.print(f"  {name}: null")
        return
    text = value.decode(errors="backslashreplace")
    kept = text if full or len(text) <= _TEXT_SHOWN else text[:_TEXT_SHOWN] + " ..."
    out.print(f"  {name}, {counted(len(value), 'byte')}{more}")
    for line in kept.splitlines() or [""]:
        out.print(f"    {escape(_printable(line))}")
    some = value if full else value[:_BYTES_SHOWN]
    for line in hex_lines(some):
        out.print(f"    [dim]{escape(line)}[/]")
    if len(some) < len(value):
        out.print(f"    [dim]{len(value) - len(some):,} more (--full, or --raw > file)[/]")


def hex_lines(value: bytes) -> Iterator[str]:
    """Sixteen bytes a line: where they are, in hex, and as text."""
    for start in range(0, len(value), 16):
        part = value[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield f"{start:08x}  {part[:8].hex(' '):23}  {part[8:].hex(' '):23}  |{text}|"


def show_plan(plan: RedrivePlan) -> None:
    """Print what a redrive would do."""
    out.print(
        f"[bold]{escape(plan.config.name)}[/]  redrive of {counted(plan.records, 'record')} from {escape(plan.target)}"
    )
    for run in plan.unfinished:
        show_note(f"redrive {run.name} of {run.records:,} records is not finished: it is finished first")
    if plan.codes:
        out.print("  " + ", ".join(f"{escape(code)} {count:,}" for code, count in plan.codes.items()))
    every = {sink.name for sink in plan.config.sinks}
    for way, count in plan.ways.items():
        whole = "" if set(way) == every else " alone: the others have them"
        out.print(f"  into {escape(', '.join(way))}{whole}: {count:,}")
    for notice in plan.notices:
        show_note(notice)
    for sink, count in plan.held.items():
        out.print(f"  in {escape(sink)} already, and not written there again: {count:,}")
    for reason, count in plan.left_out.items():
        out.print(f"  left where they are: {count:,} {escape(reason)}")
    if plan.taken_back:
        show_note(
            f"{counted(plan.taken_back, 'record')} were redriven before and wait again: their targets were restored to "
            "before that"
        )


def show_trial(trial: RedriveTrial) -> None:
    """Print what a redrive would give."""
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
        return f"not known: {now.unknown}"
    if now.refused:
        told = [f"{one['code']}: {one['message']}" for one in now.refused]
        return "refused again: " + "; ".join(told)
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

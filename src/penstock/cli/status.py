"""`penstock status`, `lag`, `diagnose` and `gaps`: how pipelines are doing. They start no JVM and change nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from penstock.cli.arguments import File, Files, Json, ago, moment
from penstock.cli.render import Screen, answer, as_text, err, number, out, print_json, show_error, table
from penstock.errors import DefinitionError, PenstockError
from penstock.wording import counted, rate, spell

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.config import PipelineConfig
    from penstock.ops.diagnosis import Diagnosis
    from penstock.ops.gaps import RecordedGaps
    from penstock.ops.lag import LagReport, PartitionLag
    from penstock.ops.status import PipelineStatus

_WIDEST = 1000
_COLOURS = {"running": "green", "failed": "red", "killed": "red", "silent": "red", "wrong file": "red"}
_PARTITIONS_SHOWN = 20
_HOT_SHOWN = 8
_WATCH_SECONDS = 2.0
_REPORTS_KEPT = 30
"""How far back growth is measured, in reports of `lag --watch`."""


def status(files: Files, as_json: Json = False) -> None:
    """Show for each pipeline whether and where it runs, its last batch, its lag, today's quarantined records (UTC), its
    last backup, and problems. Exit 0 whatever the state; 2 if a file is invalid.
    """
    from penstock.config.files import pipeline_files
    from penstock.ops.status import find_status

    found = find_status(pipeline_files(files))
    if as_json:
        print_json([one.as_json() for one in found])
    elif found:
        _show_status(found)
    else:
        err.print("no *.yaml found")
    if not found or any(one.error is not None for one in found):
        raise typer.Exit(DefinitionError.exit_code)


def _show_status(found: Sequence[PipelineStatus]) -> None:
    """A line per pipeline, then the text of every warning and error."""
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
    # In a pipe each pipeline is one line, however long.
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


def lag(
    file: File,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds, until Ctrl-C.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every partition, not only the worst 20.")] = False,
    as_json: Json = False,
) -> None:
    """Show the lag of a pipeline: for each partition the offset that all sinks have committed, the end of the log, lag
    in offsets and in time, its growth, and the consumer group's offset. No JVM; nothing is changed.
    """
    from penstock.config import load
    from penstock.ops.lag import find_lag
    from penstock.ops.snapshot import take_snapshot

    config = load(file)
    if watch:
        try:
            _watch_lag(config, everything=everything, as_json=as_json)
        except KeyboardInterrupt:
            return
    most = None if everything else _PARTITIONS_SHOWN
    answer(find_lag(take_snapshot(config)), lambda report: out.print(drawn_lag(report, most)), as_json)


def drawn_lag(report: LagReport, most: int | None = _PARTITIONS_SHOWN) -> RenderableType:
    """The summary, the worst partitions, the hot ones, and notes."""
    rows = table(
        "partition", "committed", "end", "lag", "behind", "growth", "group", "",
        numbers=("committed", "end", "lag", "behind", "growth", "group"),
    )  # fmt: skip
    shown = report.worst[:most]
    for one in shown:
        rows.add_row(
            escape(str(one)),
            number(one.committed),
            f"{one.end:,}",
            f"[yellow]{one.lag:,}[/]" if one.hot else f"{one.lag:,}",
            "-" if one.seconds_behind is None else spell(one.seconds_behind) if one.lag else "0",
            "-"
            if one.growth is None
            else f"{'-' if one.growth < 0 else '+' if one.growth else ''}{rate(abs(one.growth))}",
            number(one.group) + (_differs_from_group(one) if report.group_note is not None else ""),
            "[yellow]hot[/]" if one.hot else "",
        )
    rest = report.worst[len(shown) :]
    parts: list[RenderableType] = [f"[bold]{escape(report.pipeline)}[/]: {escape(report.text)}"]
    if report.input_rate is not None and report.processing_rate is not None and report.running:
        parts.append(f"in {rate(report.input_rate)}, done {rate(report.processing_rate)}")
    parts += ["", rows]
    if rest:
        parts.append(f"and {len(rest):,} more partitions, {sum(one.lag for one in rest):,} behind: --all")
    if report.hot:
        named = ", ".join(f"{one} {one.lag:,}" for one in report.hot[:_HOT_SHOWN])
        more = f" and {len(report.hot) - _HOT_SHOWN} more" if len(report.hot) > _HOT_SHOWN else ""
        parts.append(f"[yellow]hot:[/] {escape(named)}{more}: several times the lag of the others")
    parts += [f"[yellow]note:[/] {escape(note)}" for note in (*report.notes, report.group_note) if note]
    return Group(*(Text.from_markup(part) if isinstance(part, str) else part for part in parts))


def _differs_from_group(one: PartitionLag) -> str:
    differs = one.group is not None and one.committed is not None and one.group != one.committed
    return " [yellow]![/]" if differs else ""


def _watch_lag(config: PipelineConfig, *, everything: bool, as_json: bool) -> None:
    from penstock.ops.lag import find_lag
    from penstock.ops.snapshot import take_snapshot

    reports: deque[LagReport] = deque([find_lag(take_snapshot(config))], maxlen=_REPORTS_KEPT)
    # Unlike printed output, a redrawn table has to fit the screen.
    live = Live(console=Screen(highlight=False), auto_refresh=False) if out.is_terminal and not as_json else None
    if live is not None:
        live.start()
    try:
        failing: str | None = None
        while True:
            if failing is None:
                _show_refreshed(reports[-1], live, everything=everything, as_json=as_json)
            time.sleep(_WATCH_SECONDS)
            try:
                reports.append(find_lag(take_snapshot(config), reports[0]))
                failing = None
            except PenstockError as error:
                # The same error on every refresh is shown once.
                if error.code != failing:
                    show_error(error)
                failing = error.code
    finally:
        if live is not None:
            live.stop()


def _show_refreshed(report: LagReport, live: Live | None, *, everything: bool, as_json: bool) -> None:
    if as_json:
        print_json(report.as_json())
    elif live is not None:
        most = None if everything else min(_PARTITIONS_SHOWN, max(1, out.height - 12))
        live.update(drawn_lag(report, most), refresh=True)
    else:
        hot = "".join(f"; hot: {one}" for one in report.hot[:3])
        out.print(escape(f"{report.at:%Y-%m-%dT%H:%M:%SZ} {report.pipeline}: {report.text}{hot}"))


def diagnose(file: File, as_json: Json = False) -> None:
    """Show why a pipeline is slow or stuck: the likely causes, each with its evidence and the one thing to change.

    It reads the run's own history, the checkpoint, the brokers, the tables and the registry, and changes nothing. Exit
    0 whatever it finds.
    """
    from penstock.config import load
    from penstock.ops.diagnosis import diagnose as find_causes

    config = load(file)
    with err.status("reading the history, the checkpoint, the brokers and the tables"):
        found = find_causes(config)
    answer(found, show_diagnosis, as_json)


def show_diagnosis(found: Diagnosis) -> None:
    """Print the causes, what was checked, and what could not be checked."""
    if found.causes:
        likely = counted(len(found.causes), "likely cause")
        out.print(f"[bold]{escape(found.pipeline)}[/]: {likely}{', most likely first' if found.causes[1:] else ''}")
        if found.idle is not None:
            out.print(f"[yellow]{escape(found.idle)}[/]")
    else:
        how = f"[yellow]{escape(found.idle)}[/]" if found.idle is not None else "[green]nothing is slow or stuck[/]"
        out.print(f"[bold]{escape(found.pipeline)}[/]: {how}")
    for rank, cause in enumerate(found.causes, 1):
        out.print(f"\n[bold]{rank}. {escape(cause.summary)}[/]  [dim]{cause.code}[/]")
        for line in cause.evidence:
            out.print(f"   {escape(line)}")
        out.print(f"   [green]change:[/] {escape(cause.change)}")
    if found.causes:
        out.print("")
    for line in found.looked:
        out.print(f"[dim]{escape(line)}[/]")
    for note in found.notes:
        out.print(f"[yellow]{escape(note)}[/]")


def gaps(
    file: File,
    since: Annotated[
        datetime | None,
        typer.Option(
            parser=moment,
            metavar="TIME",
            help="Only what was recorded since: 2026-01-31T08:00:00Z, 2026-01-31 or 2 hours.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what was gone from the topic before it could be read, as `on_data_loss: record` wrote it down."""
    from penstock.config import load
    from penstock.ops.gaps import find_gaps

    answer(find_gaps(load(file), since), lambda found: _show_gaps(found, since), as_json, as_text)


def _show_gaps(found: RecordedGaps, since: datetime | None) -> None:
    if not found.gaps:
        out.print(f"{escape(found.pipeline)}: {escape(_no_gaps(found, since))}")
        return
    rows = table(
        "partition", "from", "to", "offsets", "batch", "recorded at", "why", numbers=("from", "to", "offsets", "batch")
    )
    for gap in found.gaps:
        rows.add_row(
            escape(f"{gap.topic}[{gap.partition}]"),
            f"{gap.start:,}",
            number(gap.end, "?"),
            number(gap.offsets, "?"),
            str(gap.batch_id),
            f"{gap.recorded_at:%Y-%m-%d %H:%M:%S} UTC",
            escape(gap.reason),
        )
    out.print(rows)
    more = f", and {counted(found.open_ended, 'gap')} of unknown length" if found.open_ended else ""
    out.print(f"{counted(len(found.gaps), 'gap')}, {counted(found.offsets, 'offset')} missing{more}")


def _no_gaps(found: RecordedGaps, since: datetime | None) -> str:
    if found.recorded:
        return "no gap was recorded" + (" since then" if since is not None else "")
    if found.on_data_loss == "fail":
        return (
            "no gap was ever recorded: with `on_data_loss: fail` a run stops at lost records and reports them; "
            "`on_data_loss: record` continues and records them"
        )
    return f"no gap was ever recorded; the first one will make the table {found.table}"

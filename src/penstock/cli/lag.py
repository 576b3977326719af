"""`penstock lag`: how far behind, partition by partition, and whether it is catching up."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from penstock.cli.arguments import File, Json
from penstock.cli.render import Screen, number, out, print_json, show_error, table
from penstock.errors import PenstockError

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.config import PipelineConfig
    from penstock.ops.lag import LagReport, PartitionLag

_SHOWN = 20
_EVERY_SECONDS = 2.0
_LOOKS_BACK = 30


def lag(
    file: File,
    watch: Annotated[bool, typer.Option("--watch", help="Look every two seconds, until Ctrl-C.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every partition, not the worst 20 alone.")] = False,
    as_json: Json = False,
) -> None:
    """Say how far behind a pipeline is: for each partition what all sinks have committed, the end of the log, lag in
    offsets and in time, how it moves, and what the consumer group says. No JVM; nothing is changed.
    """
    from penstock.config import load
    from penstock.ops.lag import find_lag

    config = load(file)
    if watch:
        try:
            _watch(config, everything=everything, as_json=as_json)
        except KeyboardInterrupt:
            return
    report = find_lag(config)
    if as_json:
        print_json(report.as_json())
    else:
        out.print(drawn(report, None if everything else _SHOWN))


def drawn(report: LagReport, most: int | None = _SHOWN) -> RenderableType:
    """The sentence, the worst partitions, what is hot, and what there is to know besides."""
    from penstock.wording import rate, spell

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
            number(one.group) + (_aside(one) if report.group_note is not None else ""),
            "[yellow]hot[/]" if one.hot else "",
        )
    rest = report.worst[len(shown) :]
    parts: list[RenderableType] = [f"[bold]{escape(report.pipeline)}[/]: {escape(report.text)}"]
    if report.input_rate is not None and report.processing_rate is not None and report.running:
        parts.append(f"in {rate(report.input_rate)}, done {rate(report.processing_rate)}")
    parts += ["", rows]
    if rest:
        parts.append(f"and {len(rest):,} partitions more, with {sum(one.lag for one in rest):,} behind: --all")
    if report.hot:
        named = ", ".join(f"{one} {one.lag:,}" for one in report.hot[:8])
        more = f" and {len(report.hot) - 8} more" if len(report.hot) > 8 else ""
        parts.append(f"[yellow]hot:[/] {escape(named)}{more}: several times the lag of the others")
    parts += [f"[yellow]note:[/] {escape(note)}" for note in (*report.notes, report.group_note) if note]
    return Group(*(Text.from_markup(part) if isinstance(part, str) else part for part in parts))


def _aside(one: PartitionLag) -> str:
    differs = one.group is not None and one.committed is not None and one.group != one.committed
    return " [yellow]![/]" if differs else ""


def _watch(config: PipelineConfig, *, everything: bool, as_json: bool) -> None:
    from penstock.ops.lag import find_lag

    looks: deque[LagReport] = deque([find_lag(config)], maxlen=_LOOKS_BACK)
    # Unlike what is printed, what is drawn again has to end where the screen does.
    live = Live(console=Screen(highlight=False), auto_refresh=False) if out.is_terminal and not as_json else None
    if live is not None:
        live.start()
    try:
        failing: str | None = None
        while True:
            if failing is None:
                _show(looks[-1], live, everything=everything, as_json=as_json)
            time.sleep(_EVERY_SECONDS)
            try:
                looks.append(find_lag(config, before=looks[0]))
                failing = None
            except PenstockError as error:
                # It is looked at again and again: what is wrong is told once.
                if error.code != failing:
                    show_error(error)
                failing = error.code
    finally:
        if live is not None:
            live.stop()


def _show(report: LagReport, live: Live | None, *, everything: bool, as_json: bool) -> None:
    if as_json:
        print_json(report.as_json())
    elif live is not None:
        # What is higher than the screen cannot be redrawn.
        most = None if everything else min(_SHOWN, max(1, out.height - 12))
        live.update(drawn(report, most), refresh=True)
    else:
        hot = "".join(f"; hot: {one}" for one in report.hot[:3])
        out.print(escape(f"{report.at:%Y-%m-%dT%H:%M:%SZ} {report.pipeline}: {report.text}{hot}"))

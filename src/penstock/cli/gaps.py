"""`penstock gaps`: the ranges that a pipeline could not read any more, as it wrote them down."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from penstock.cli.arguments import File, Json, moment
from penstock.cli.render import number, out, print_json, table
from penstock.wording import counted

# Every command loads this module.
if TYPE_CHECKING:
    from penstock.ops.gaps import RecordedGaps


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

    found = find_gaps(load(file), since)
    if as_json:
        print_json(found.as_json(), default=datetime.isoformat)
    else:
        show_gaps(found, since)


def show_gaps(found: RecordedGaps, since: datetime | None = None) -> None:
    """Print a line a gap, and the sum."""
    if not found.gaps:
        out.print(f"{escape(found.pipeline)}: {escape(_none(found, since))}")
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


def _none(found: RecordedGaps, since: datetime | None) -> str:
    if found.recorded:
        return "no gap was recorded" + (" since then" if since is not None else "")
    if found.on_data_loss == "fail":
        return (
            "no gap was ever recorded: with `on_data_loss: fail` a run stops where records are gone, and says which; "
            "`on_data_loss: record` goes on and writes them down"
        )
    return f"no gap was ever recorded; the first one will make the table {found.table}"

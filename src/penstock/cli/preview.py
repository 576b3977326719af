"""`penstock preview`, drawn: a table for each sink, as wide as the terminal, and the bad records with their reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from penstock.cli.render import out
from penstock.cli.test import cell_text
from penstock.ops.cases.rows import Row, shown_columns, to_plain
from penstock.ops.preview import Preview
from penstock.wording import counted

_WIDEST = 200
_BAD = ("topic", "partition", "offset", "code", "message")


def show_preview(preview: Preview) -> None:
    """Print what the messages would become."""
    out.print(f"[bold]{escape(preview.pipeline)}[/]  {counted(preview.messages, 'message')}, {preview.lane} lane")
    for name, rows in preview.seen.sinks.items():
        out.print(f"\nsink [bold]{escape(name)}[/]: {counted(len(rows), 'row')}")
        if rows:
            columns = list(dict.fromkeys(column for row in rows for column in shown_columns(row)))
            out.print(_table(columns, rows), soft_wrap=False)
    bad = preview.seen.quarantine
    out.print(f"\nquarantine: {counted(len(bad), 'record')}")
    if bad:
        out.print(_table(_BAD, bad), soft_wrap=False)
    out.print("\n[dim]nothing was written[/]")


def preview_json(preview: Preview) -> dict[str, Any]:
    """For `--json`."""
    bad = [{name: row[name] for name in ("stage", *_BAD, "key", "value")} for row in preview.seen.quarantine]
    return {
        "pipeline": preview.pipeline,
        "lane": preview.lane,
        "messages": preview.messages,
        "sinks": {name: [to_plain(row) for row in rows] for name, rows in preview.seen.sinks.items()},
        "quarantine": [to_plain(row) for row in bad],
        "counts": dict(preview.seen.counts),
    }


def _table(columns: Sequence[str], rows: Sequence[Row]) -> Table:
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        number = all(isinstance(row.get(column), int | float | None) for row in rows)
        drawn.add_column(column, justify="right" if number else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        drawn.add_row(*(escape(cell_text(row[name], _WIDEST)) if row.get(name) is not None else "" for name in columns))
    return drawn

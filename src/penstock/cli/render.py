"""Errors and plans for people: the cause on top, both sides, the way out."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.errors import PenstockError

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def show_error(error: PenstockError) -> None:
    """Print one error to the error stream."""
    for line in str(error).splitlines():
        err.print(escape(line), style=None if line.startswith(" ") else "bold red")


def size(count: int) -> str:
    """Bytes of what is kept: in megabytes unless they are few."""
    return f"{count / 1_000_000:,.1f} MB" if count >= 100_000 else f"{count:,} bytes"


def table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """An unframed table; the columns in `numbers` are set right."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made

"""What every command prints: errors with their hints, notes, tables, progress bars, JSON. Quoted text stays text."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Protocol, TypeVar

import typer
from rich.console import Console, ConsoleDimensions
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.errors import PenstockError
from penstock.wording import counted

# Control characters, other than line breaks and tabs, and the marks that reverse the direction of text.
_CONTROLS = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
}


def visible(text: str) -> str:
    """Text from a message, a topic or a file, with control characters escaped."""
    return text.translate(_CONTROLS)


# Wide enough for any table: a line that goes into a file or to another program is not folded.
_UNFOLDED = 10_000


class Answer(Protocol):
    """What a command found."""

    def as_json(self) -> object:
        """For `--json`."""
        ...


T = TypeVar("T", bound=Answer)


class Screen(Console):
    """A console that shows printed text literally. Its width is COLUMNS, else that of the terminal, else unlimited."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._width = None

    @property  # type: ignore[misc]
    def size(self) -> ConsoleDimensions:
        """Columns and lines that a page may have."""
        if not self.is_terminal and "COLUMNS" not in os.environ:
            return ConsoleDimensions(_UNFOLDED, 25)
        return super().size

    def render_str(self, text: str, **options: Any) -> Text:
        """Text and its markup, for the screen."""
        return super().render_str(visible(text), **options)


out = Screen(highlight=False, soft_wrap=True)
err = Screen(stderr=True, highlight=False, soft_wrap=True)


def show_error(error: PenstockError) -> None:
    """Print one error to the error stream."""
    for line in str(error).split("\n"):
        err.print(escape(line), style=None if line.startswith(" ") else "bold red")


def show_note(text: str, console: Console = err) -> None:
    """Print a note."""
    console.print(f"[yellow]note:[/] {escape(text)}")


def print_json(body: object, default: Callable[[Any], Any] = str) -> None:
    """The answer to `--json`, on a line."""
    typer.echo(json.dumps(body, default=default))


def as_text(value: object) -> str:
    """Values that JSON has no type for; times as RFC 3339."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def answer(found: T, show: Callable[[T], object], as_json: bool, default: Callable[[Any], Any] = str) -> None:
    """Print what a command found: as JSON, or drawn by `show`."""
    if as_json:
        print_json(found.as_json(), default)
    else:
        show(found)


def number(value: float | None, unknown: str = "-") -> str:
    """A count with thousands separated."""
    return unknown if value is None else f"{value:,}"


@contextmanager
def progress_bar(doing: str, *, in_bytes: bool = False, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, removed when the work is done. Yields `progress(done, total)`."""
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn(doing), BarColumn(), DownloadColumn() if in_bytes else MofNCompleteColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task(doing, total=None, visible=False)
        yield lambda done, of: bar.update(task, completed=done, total=of, visible=True)


def more(hidden: int, noun: str = "partition", indent: str = "    ") -> None:
    """Print how many rows of a table are hidden."""
    if hidden > 0:
        out.print(f"{indent}and {counted(hidden, noun)} more: --json shows all")


def table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """An unframed table; the columns in `numbers` are set right."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made

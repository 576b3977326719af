"""A bar for what takes a while, on a terminal, gone when it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.cli.render import err


@contextmanager
def bar_of(doing: str, *, bytewise: bool = False, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Tells a bar how much is done, of how much."""
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn(doing), BarColumn(), DownloadColumn() if bytewise else MofNCompleteColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task(doing, total=None, visible=False)
        yield lambda done, of: bar.update(task, completed=done, total=of, visible=True)

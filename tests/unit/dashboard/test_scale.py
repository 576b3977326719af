"""Fifty pipelines of a thousand partitions: what is not needed is not read, and what was sent is not sent again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.dashboard.pipelines import ago, batch, checkpoint_of, definition, lag, runs, write_history

from penstock.checkpoint.lock import checkpoint_lock
from penstock.dashboard.recent import MOST_COLUMNS
from penstock.dashboard.watcher import PipelineWatch, Watcher

PIPELINES, PARTITIONS = 50, 1000
_opened: list[str] | None = None


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append(str(args[0]))


@contextmanager
def files_opened() -> Iterator[list[str]]:
    """The files that are opened meanwhile. A hook of the interpreter cannot be taken out again: it is added once."""
    global _opened
    if not getattr(sys, "_penstock_hears_files", False):
        sys.addaudithook(_hear)
        sys._penstock_hears_files = True  # type: ignore[attr-defined]
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


def entry(file: Path, seconds_ago: float, more: int) -> dict[str, Any]:
    return lag(ago(seconds_ago), file.stem, [1_000_000 + more + p for p in range(PARTITIONS)], [1_000_000] * PARTITIONS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """All of them run."""
    folder = tmp_path_factory.mktemp("many")
    made = [definition(folder, f"p{number}") for number in range(PIPELINES)]
    with ExitStack() as locks:
        for file in made:
            write_history(file, [entry(file, 9, 1), batch(1, ago(5)), entry(file, 0, 2)])
            locks.enter_context(checkpoint_lock(str(checkpoint_of(file))))
            runs(file)
        write_history(made[0], [entry(made[0], 0, more) for more in range(MOST_COLUMNS)])
        yield made


@pytest.fixture(scope="module")
def watcher(files: list[Path]) -> Watcher:
    made = Watcher(files)
    made.poll()
    return made


def made_anew(watch: PipelineWatch, before: Any = None) -> Any:
    watch._views._made_at = 0.0
    return watch.send(before)


def test_polls_of_pipelines_of_which_nothing_is_new_open_no_file(watcher: Watcher) -> None:
    watcher.poll()
    for watch in watcher.watches.values():
        # Whether a run has died is looked at every few seconds, whether or not it wrote: not now.
        watch._run_at += 3600
    with files_opened() as opened:
        for _ in range(5):
            watcher.poll()
    assert opened == []


def test_a_poll_reads_of_a_history_what_is_new_in_it(watcher: Watcher, files: list[Path]) -> None:
    watch = watcher.watches["p7"]
    tail = watch._tail
    assert tail is not None
    before, size = tail.bytes_read, (checkpoint_of(files[7]) / ".penstock.history").stat().st_size
    write_history(files[7], [batch(2, ago(0))])
    with files_opened() as opened:
        watcher.poll()
    assert [Path(name).name for name in opened] == [".penstock.history"]
    assert tail.bytes_read - before == (checkpoint_of(files[7]) / ".penstock.history").stat().st_size - size < 1000


def test_pipelines_that_run_and_are_not_watched_cost_no_look(watcher: Watcher) -> None:
    assert all(watch.facts.running for watch in watcher.watches.values())
    assert watcher.due() == []
    watcher.watches["p3"].watch()
    assert len(watcher.due()) == 2, "at the one that is watched, and into its quarantine"


def test_what_a_page_gets_is_small_but_for_the_first_time(watcher: Watcher, files: list[Path]) -> None:
    assert len(watcher.overview.text) < 60_000
    watch = watcher.watches["p0"]
    first = made_anew(watch)
    assert len(first.text) > MOST_COLUMNS * PARTITIONS * 2
    write_history(files[0], [entry(files[0], 0, 500)])
    watcher.poll()
    second = made_anew(watch, first)
    # The partitions as they are, one column, and the rest of the page.
    assert len(second.text) < len(first.text) / 4
    assert second.text is made_anew(watch, first).text, "a second page gets the same text"


def test_what_is_kept_of_a_pipeline_is_bounded(watcher: Watcher) -> None:
    columns = watcher.watches["p0"].facts.recent.columns
    assert len(columns) == MOST_COLUMNS
    assert sum(column.lags.nbytes for column in columns) == MOST_COLUMNS * PARTITIONS * 8

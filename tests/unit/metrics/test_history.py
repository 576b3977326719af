"""A run's own log: what is added is read again, whole lines only, and it stays small."""

from __future__ import annotations

import fcntl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.batches import finished

from penstock.metrics import BatchMetrics
from penstock.metrics.history import Entry, History, Notice, history_of


def ids(entries: list[Entry]) -> list[int]:
    return [entry.fact.batch_id for entry in entries if isinstance(entry.fact, BatchMetrics)]


def test_history_entries_are_read_in_order_by_kind_and_time(tmp_path: Path) -> None:
    history = History(tmp_path / "below" / "h")
    for number in range(3):
        history.add(finished(number))
        history.add(Notice("so"))
    assert ids(history.read(BatchMetrics)) == [0, 1, 2]
    assert [type(entry.fact) for entry in history.read()] == [BatchMetrics, Notice] * 3
    assert history.read(since=datetime.now(UTC) + timedelta(minutes=1)) == []
    assert len(history.read(since=datetime.now(UTC) - timedelta(minutes=1))) == 6


def test_history_that_is_full_keeps_the_file_before_and_no_more(tmp_path: Path) -> None:
    history = History(tmp_path / "h", most_bytes=10_000)
    for number in range(500):
        history.add(finished(number))
    numbers = ids(history.read())
    assert numbers == list(range(numbers[0], 500))
    assert 10 < len(numbers) < 100
    assert {path.name for path in tmp_path.iterdir()} == {"h", "h.1"}


def test_history_that_two_processes_find_full_at_once_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (History(tmp_path / "history", most_bytes=1000) for _ in range(2))
    one.add(finished(0))
    other.add(finished(1))
    lock = fcntl.flock

    def overtaken(handle: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        one.path.rename(one.older)  # as the other process does it
        other.add(finished(3))
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", overtaken)
    one.add(finished(2))
    assert ids(one.read()) == [0, 1, 2, 3]


def test_history_with_broken_lines_gives_the_others(tmp_path: Path) -> None:
    history = History(tmp_path / "h")
    history.add(finished(1))
    with history.path.open("ab") as file:
        file.write(b'{"at": "now", "event": "batch"}\n[]\nnull\n{"event": "batch"}\n\xff\xfe\n{"at": "2026-01-0')
    assert ids(history.read()) == [1]


def test_history_that_cannot_be_written_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "h")
    history.add(finished(1))
    History(tmp_path / "other").add(Notice(object()))  # type: ignore[arg-type]
    assert history.read() == []


def test_history_of_a_local_checkpoint_is_in_it_and_of_another_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert history_of(str(tmp_path)).path == tmp_path / ".penstock.history"
    assert history_of(f"file://{tmp_path}").path == tmp_path / ".penstock.history"
    monkeypatch.delenv("PENSTOCK_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    there = history_of("s3://bucket/checkpoints/orders")
    assert there.path == tmp_path / "penstock/history/s3-bucket-checkpoints-orders.jsonl"
    there.add(finished(1))
    assert len(there.read()) == 1

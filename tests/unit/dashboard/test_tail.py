"""A history is followed without reading anything twice, whatever happens to its file."""

from __future__ import annotations

from pathlib import Path

from penstock.dashboard.recent import HistoryTail
from penstock.metrics.history import History, Notice


def texts(tail: HistoryTail) -> list[str]:
    return [entry.fact.text for entry in tail.read() if isinstance(entry.fact, Notice)]


def test_tail_of_a_history_that_grows_gives_each_entry_once(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    tail = HistoryTail(history)
    assert texts(tail) == []
    history.add(Notice("a"))
    assert texts(tail) == ["a"]
    read = tail.bytes_read
    assert texts(tail) == []
    history.add(Notice("b"))
    history.add(Notice("c"))
    assert texts(tail) == ["b", "c"]
    assert tail.bytes_read == history.path.stat().st_size > read


def test_tail_of_a_line_that_is_still_written_waits_for_its_end(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    tail = HistoryTail(history)
    history.add(Notice("whole"))
    line = history.path.read_bytes()
    with history.path.open("ab") as file:
        file.write(line[:20])
        file.flush()
        assert texts(tail) == ["whole"]
        file.write(line[20:])
    assert texts(tail) == ["whole"]


def test_tail_of_a_history_whose_file_was_full_reads_the_rest_of_it_first(tmp_path: Path) -> None:
    history = History(tmp_path / "history", most_bytes=300)
    tail = HistoryTail(history)
    history.add(Notice("0"))
    assert texts(tail) == ["0"]
    for number in range(1, 6):
        history.add(Notice(str(number)))
    assert history.older.exists() and history.path.exists()
    assert texts(tail) == ["1", "2", "3", "4", "5"]


def test_tail_of_a_long_history_begins_with_the_end_of_it(tmp_path: Path) -> None:
    history = History(tmp_path / "history", most_bytes=4000)
    for number in range(100):
        history.add(Notice(str(number)))
    tail = HistoryTail(history, most_at_first=1000)
    found = texts(tail)
    assert found == [str(number) for number in range(100 - len(found), 100)]
    assert 5 < len(found) < 20 and tail.bytes_read <= 1000


def test_tail_of_a_history_with_broken_lines_leaves_them_out(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    history.path.write_bytes(b'{"at": "yesterday", "event": "notice"}\n\xff\xfe\n[]\n')
    history.add(Notice("whole"))
    assert texts(HistoryTail(history)) == ["whole"]

from __future__ import annotations

import io

import pytest
from rich.markup import escape
from rich.table import Table

from penstock.cli.cases import cell_text
from penstock.cli.render import Screen, visible


@pytest.mark.parametrize(
    ("brought", "shown"),
    [
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\x1b[2J\x1b[31mred", "\\x1b[2J\\x1b[31mred"),
        ("over\rwritten", "over\\x0dwritten"),
        ("\x9b31m", "\\x9b31m"),
        ("turned \u202e round", "turned \\u202e round"),
        ("two\nlines\tand ünï 水 👩\u200d💻", "two\nlines\tand ünï 水 👩\u200d💻"),
    ],
)
def test_text_that_a_terminal_would_obey_is_shown(brought: str, shown: str) -> None:
    assert visible(brought) == shown


def test_screen_shows_what_a_message_brought_in_lines_and_in_tables() -> None:
    written = io.StringIO()
    screen = Screen(file=written, force_terminal=True, color_system=None, width=200)
    screen.print("[bold]note:[/] " + escape("[red]\x1b[31m"))
    rows = Table(box=None)
    rows.add_column("a\x1b[5m")
    rows.add_row("\x1b]52;c;aGVsbG8=\x07")
    screen.print(rows)
    text = written.getvalue()
    assert "\x1b]52" not in text and "\x1b[31m" not in text and "\x1b[5m" not in text
    assert "[red]\\x1b[31m" in text and "\\x1b]52;c;aGVsbG8=\\x07" in text


def test_cell_of_a_value_holds_nothing_to_obey() -> None:
    assert cell_text("a\x1b[2J\nb") == "a\\x1b[2J\\nb"


def test_table_that_goes_to_a_file_is_folded_only_where_columns_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines() -> int:
        written = io.StringIO()
        table = Table("word", box=None)
        table.add_row("word " * 100)
        Screen(file=written).print(table)
        return written.getvalue().count("\n")

    monkeypatch.delenv("COLUMNS", raising=False)
    assert lines() == 2
    monkeypatch.setenv("COLUMNS", "80")
    assert lines() > 2

"""The demo without its broker: where it may write, and that it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import MissingError, TerminalError
from penstock.ops.demo import DemoSummary, Expected, _check, _sample_rows, fresh_folder


def test_demo_folder_of_somebody_else_is_kept(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(MissingError) as raised:
        fresh_folder(tmp_path)
    assert raised.value.code == "DEMO_FOLDER_TAKEN"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_demo_folder_of_an_earlier_demo_is_emptied(tmp_path: Path) -> None:
    (fresh_folder(tmp_path / "demo") / "lake").mkdir()
    assert not (fresh_folder(tmp_path / "demo") / "lake").exists()


def test_demo_whose_numbers_do_not_agree_says_both(tmp_path: Path) -> None:
    expected = Expected(sent=100, duplicates=5, filtered=3, quarantined=Counter(MALFORMED_JSON=2))
    summary = DemoSummary(
        folder=tmp_path,
        brokers="localhost:1",
        sent=100,
        landed=90,
        distinct=90,
        filtered=3,
        duplicates=5,
        quarantined=Counter(MALFORMED_JSON=2),
        samples=[],
        batches=3,
        lag=0,
        files=1,
        run_seconds=1.0,
        seconds=1.0,
    )
    _check(summary, expected)
    with pytest.raises(TerminalError) as raised:
        _check(replace(summary, landed=91, batches=1), expected)
    assert raised.value.code == "DEMO_DOES_NOT_ADD_UP"
    assert raised.value.context == {"landed": "expected 90, found 91", "batches": "expected at least 3, found 1"}


def test_sample_is_one_row_of_each_of_the_first_three_codes() -> None:
    assert _sample_rows(pa.table({"code": ["A", "A", "B", "A", "C", "D"]})) == [0, 2, 4]

"""Expected rows against seen ones: by value, by the columns that are named, each row once; and the way back to text."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.ops.cases.reports import _printable as printable
from penstock.ops.cases.rows import MapValue, compare, matches, rows_of, to_plain

NOON = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expected", "seen"),
    [
        (None, None),
        (1, 1),
        (1, 1.0),
        (2.5, 2.5),
        ("NaN", float("nan")),
        ("-Infinity", float("-inf")),
        ("12.5", Decimal("12.50")),
        (12.5, Decimal("12.50")),
        ("2026-01-31T12:00:00.25Z", NOON),
        ("2026-01-31T13:00:00.250+01:00", NOON),
        ("2026-01-31 12:00:00.25", NOON),
        ("2026-01-31T12:00:00", datetime(2026, 1, 31, 12)),
        ("2026-01-31", date(2026, 1, 31)),
        ("abc", b"abc"),
        ("0x00ff", b"\x00\xff"),
        ([1, None], [1, None]),
        ({"city": "x"}, {"city": "x", "zip": 5}),
        ({"a": 1}, MapValue(a=1)),
    ],
)
def test_matches_value_that_is_meant(expected: Any, seen: Any) -> None:
    assert matches(expected, seen)


@pytest.mark.parametrize(
    ("expected", "seen"),
    [
        (None, 0),
        (0, None),
        (1, True),
        (True, 1),
        ("1", 1),
        (1, "1"),
        (1, 2),
        (True, Decimal(1)),
        ("12.51", Decimal("12.50")),
        ("x", Decimal(1)),
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12)),
        ("yesterday", NOON),
        (5, NOON),
        ("2026-02-01", date(2026, 1, 31)),
        ("0x00", b"\x01"),
        ([1], [1, 2]),
        ("ab", ["a", "b"]),
        ({"city": "y"}, {"city": "x", "zip": 5}),
        ({"town": "x"}, {"city": "x"}),
        ({"a": 1}, MapValue(a=1, b=2)),
    ],
)
def test_matches_another_value_does_not(expected: Any, seen: Any) -> None:
    assert not matches(expected, seen)


def test_exact_wants_every_field_and_every_column() -> None:
    assert not matches({"city": "x"}, {"city": "x", "zip": 5}, exact=True)
    seen = [{"a": 1, "b": 2, "_penstock": {"offset": 0}, "_penstock_key": "k", "_penstock_delete": False}]
    assert compare("t", [{"a": 1}], seen).passed
    assert compare("t", [{"a": 1}], seen, exact=True).rows[0].columns == ("b",)
    assert compare("t", [{"a": 1, "b": 2}], seen, exact=True).passed
    deleted = [{"a": 1, "_penstock_delete": True}]
    assert compare("t", [{"a": 1}], deleted, exact=True).rows[0].columns == ("_penstock_delete",)


def test_compare_in_any_order_finds_the_one_assignment_that_fits() -> None:
    expected = [{"id": 1}, {"id": 1, "n": 5}]
    assert compare("t", expected, [{"id": 1, "n": 5}, {"id": 1, "n": 6}]).passed
    assert compare("t", expected, [{"id": 1, "n": 6}, {"id": 1, "n": 5}]).passed
    assert not compare("t", expected, [{"id": 1, "n": 6}, {"id": 1, "n": 6}]).passed


def test_compare_in_order_holds_row_against_row() -> None:
    seen = [{"id": 2}, {"id": 1}]
    assert compare("t", [{"id": 1}, {"id": 2}], seen).passed
    diff = compare("t", [{"id": 1}, {"id": 2}], seen, ordered=True)
    assert [row.kind for row in diff.rows] == ["differs", "differs"]
    assert [row.kind for row in compare("t", [{"id": 2}], seen, ordered=True).rows] == ["same", "unexpected"]
    assert [row.kind for row in compare("t", [*seen, {"id": 3}], seen, ordered=True).rows][-1] == "missing"


def test_compare_pairs_rows_that_are_nearly_alike_and_names_the_cells() -> None:
    expected = [{"id": 1, "n": 5, "s": "a"}, {"id": 2, "n": 6, "s": "b"}, {"id": 3, "n": 7, "s": "c"}]
    seen = [{"id": 2, "n": 66, "s": "b"}, {"id": 1, "n": 5, "s": "a"}, {"id": 9, "n": 9, "s": "z"}]
    diff = compare("t", expected, seen)
    assert [(row.kind, row.columns) for row in diff.rows] == [
        ("same", ()),
        ("differs", ("n",)),
        ("missing", ()),
        ("unexpected", ()),
    ]
    assert (diff.count("same"), diff.passed) == (1, False)


def test_column_that_the_rows_lack_differs() -> None:
    assert compare("t", [{"id": 1, "no": None}], [{"id": 1}]).rows[0].columns == ("no",)


def test_rows_of_a_table_keep_what_the_types_say() -> None:
    table = pa.table(
        {
            "f": pa.array([0.1], pa.float32()),
            "m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
            "s": pa.array([{"x": 0.1}], pa.struct([("x", pa.float32())])),
            "l": pa.array([[None, 0.1]], pa.list_(pa.float32())),
            "n": pa.array([None], pa.int64()),
        }
    )
    [row] = rows_of(table)
    assert row == {"f": 0.1, "m": {"a": 1}, "s": {"x": 0.1}, "l": [None, 0.1], "n": None}
    assert isinstance(row["m"], MapValue)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 5, -2.5, 1e300, float("nan"), float("inf"), "text"),
        *(Decimal("12.50"), Decimal("1E+3"), NOON, datetime(2026, 1, 1), date(2026, 1, 1)),
        *(b"abc", b"\xff\x00", b"0xzz", b"line\n", [1, None], {"a": Decimal("1.0")}, MapValue(a=NOON)),
    ],
    ids=repr,
)
def test_plain_value_matches_what_it_was_made_of(value: Any) -> None:
    assert matches(to_plain(value), value)


def test_text_for_xml_has_no_characters_that_xml_cannot_say() -> None:
    assert printable("a\tb\nc é \x00\x1f\ufffe\uffff") == "a\tb\nc é \ufffd\ufffd\ufffd\ufffd"

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sinks.postgres.stage import to_csv, to_text, unholdable, within_limits

NESTED = pa.struct(
    [
        pa.field('na"me', pa.string()),
        pa.field("list", pa.list_(pa.struct([pa.field("x", pa.int64())]))),
        pa.field("map", pa.map_(pa.string(), pa.list_(pa.bool_()))),
    ]
)
VALUES = st.lists(
    st.none()
    | st.fixed_dictionaries(
        {
            'na"me': st.none() | st.text(),
            "list": st.none() | st.lists(st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(0, 2**62)})),
            "map": st.none() | st.dictionaries(st.text(), st.none() | st.lists(st.none() | st.booleans()), max_size=3),
        }
    ),
    max_size=6,
)


@given(VALUES, st.integers(0, 3))
def test_json_of_any_nested_value_and_any_slice_reads_back_as_it_was(values: list[Any], start: int) -> None:
    rows = [v and {**v, "map": None if v["map"] is None else list(v["map"].items())} for v in values]
    texts = to_text(pa.array(rows, NESTED).slice(start)).to_pylist()
    assert [text and json.loads(text) for text in texts] == values[start:]
    assert [text is None for text in texts] == [value is None for value in values[start:]]


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (
            pa.decimal128(38, 4),
            Decimal("1234567890123456789012345678901234.5000"),
            "1234567890123456789012345678901234.5000",
        ),
        (pa.float64(), float("nan"), "null"),
        (pa.float64(), float("-inf"), "null"),
        (pa.float64(), 5e-324, "5e-324"),
        (pa.binary(), b"\x00\xff", '"AP8="'),
        (pa.date32(), date(1, 2, 3), '"0001-02-03"'),
        (pa.timestamp("us", tz="UTC"), datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), '"2026-01-02T03:04:05.000006Z"'),
        (pa.timestamp("us"), datetime(2026, 1, 2), '"2026-01-02T00:00:00.000000"'),
        (pa.map_(pa.int32(), pa.string()), [(1, "a")], '{"1":"a"}'),
        (pa.string(), None, "null"),
    ],
)
def test_json_of_each_kind_of_value_is_exact(kind: pa.DataType, value: Any, told: str) -> None:
    assert to_text(pa.array([[value]], pa.list_(kind))).to_pylist() == [f"[{told}]"]


@given(st.lists(st.tuples(st.none() | st.text(), st.none() | st.binary()), min_size=1))
def test_csv_of_any_text_and_bytes_keeps_nulls_from_empty_ones_apart(
    rows: list[tuple[str | None, bytes | None]],
) -> None:
    columns = [
        pa.array([row[0] for row in rows], pa.string()),
        to_text(pa.array([row[1] for row in rows], pa.binary())),
    ]
    line = to_csv(columns).decode()
    read = list(csv.reader(io.StringIO(line, newline=""), strict=True))
    hexed = ["" if row[1] is None else f"\\x{row[1].hex()}" for row in rows]
    assert [row[1] for row in read] == hexed
    assert [row[0] for row in read] == [row[0] or "" for row in rows]
    assert to_csv([pa.array(["", None])]) == b'""\n\n'


UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"


@pytest.mark.parametrize(
    ("values", "kind", "staged", "bad"),
    [
        (["a", None, "b\0"], pa.string(), "text", [2]),
        ([["\\u0000"], ["\\\\u0000"], ["\0"], ["\\\0"]], pa.list_(pa.string()), "jsonb", [2, 3]),
        ([UUID, UUID.upper(), None, "x", f"{{{UUID}}}"], pa.string(), '"pg_catalog"."uuid"', [3, 4]),
        ([-719162, -719163, None, 2932896, 2932897], pa.date32(), "date", [1, 4]),
        (
            [-62135596800000000, -62135596800000001, 253402300799999999, 253402300800000000],
            pa.timestamp("us"),
            "timestamp",
            [1, 3],
        ),
        ([1, None], pa.int64(), "bigint", []),
    ],
)
def test_values_that_text_cannot_hold_are_found_and_no_others(
    values: list[Any], kind: pa.DataType, staged: str, bad: list[int]
) -> None:
    if pa.types.is_temporal(kind):
        array = pa.array(values, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    else:
        array = pa.array(values, kind)
    found = list(unholdable("x", to_text(array), kind, staged))
    assert [n for each in found for n, refused in enumerate(each.rows.to_pylist()) if refused] == bad


def test_stamps_outside_of_the_limits_are_left_out_alone() -> None:
    stamps = pa.array([0, 2**62, -(2**62), None], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    assert within_limits(stamps).is_null().to_pylist() == [False, True, True, True]

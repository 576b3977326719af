from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sinks.delta.stage import file_statistics, indexed
from penstock.sinks.files.writer import dictionary_columns, leaves_of, leaves_with_nan

LAST = "\U0010ffff"


def statistics_of(values: list[Any], kind: pa.DataType, tmp_path: Path, limit: int = 32, groups: int = 1) -> Any:
    table = pa.table({"c": pa.array(values, kind)})
    file = tmp_path / "file.parquet"
    pq.write_table(table, file, row_group_size=math.ceil(len(values) / groups))
    leaves = indexed(leaves_of(table.schema), limit)
    text = file_statistics(pq.read_metadata(file), leaves, leaves_with_nan(table, leaves))
    return json.loads(text, parse_float=str)


def bounds(values: list[Any], kind: pa.DataType, tmp_path: Path, groups: int = 1) -> tuple[Any, Any, Any]:
    found = statistics_of(values, kind, tmp_path, groups=groups)
    return found["minValues"].get("c"), found["maxValues"].get("c"), found["nullCount"].get("c")


UTC_TIME = pa.timestamp("us", tz="UTC")

EDGES: dict[str, tuple[pa.DataType, list[Any], tuple[Any, Any, int]]] = {
    "integers": (pa.int64(), [3, -(2**63), None, 2**63 - 1], (-(2**63), 2**63 - 1, 1)),
    "bytes": (pa.int8(), [-128, 127], (-128, 127, 0)),
    "dates": (pa.date32(), [date(2026, 1, 2), date(1, 1, 1), None], ("0001-01-01", "2026-01-02", 1)),
    "time-is-rounded-outward": (
        UTC_TIME,
        [datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 123457, tzinfo=UTC)],
        ("2026-01-01T00:00:00.123Z", "2026-01-01T00:00:00.124Z", 0),
    ),
    "time-in-whole-milliseconds": (
        UTC_TIME,
        [datetime(2026, 1, 1, 0, 0, 0, 123000, tzinfo=UTC)],
        ("2026-01-01T00:00:00.123Z", "2026-01-01T00:00:00.123Z", 0),
    ),
    "time-before-1970": (
        UTC_TIME,
        [datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)],
        ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z", 0),
    ),
    "time-without-a-zone": (
        pa.timestamp("us"),
        [datetime(2026, 1, 1, 0, 0, 0, 1)],
        ("2026-01-01T00:00:00.000", "2026-01-01T00:00:00.001", 0),
    ),
    "decimals-keep-every-digit": (
        pa.decimal128(38, 10),
        [Decimal("1234567890123456789012345678.0123456789"), Decimal("-0.0000000001")],
        ("-0.0000000001", "1234567890123456789012345678.0123456789", 0),
    ),
    "floats": (pa.float64(), [1.5, -2.25, None], ("-2.25", "1.5", 1)),
    "floats-with-nan": (pa.float64(), [1.5, math.nan], (None, None, 0)),
    "floats-with-infinities": (pa.float64(), [1.5, math.inf, 0.5], ("0.5", None, 0)),
    "zeros-of-both-signs": (pa.float64(), [0.0, -0.0], ("-0.0", "0.0", 0)),
    "only-nulls": (pa.int64(), [None, None], (None, None, 2)),
    "booleans-have-no-bounds": (pa.bool_(), [True, None], (None, None, 1)),
    "bytes-have-no-bounds": (pa.binary(), [b"a", None], (None, None, 1)),
    "short-text": (pa.string(), ["b", "a" * 32], ("a" * 32, "b", 0)),
    "long-text": (pa.string(), ["b" * 33, "a" * 33], ("a" * 32, "b" * 32 + LAST, 0)),
    "long-text-with-the-last-character": (
        pa.string(),
        ["b" * 32 + LAST + "c"],
        ("b" * 32, "b" * 32 + LAST + LAST, 0),
    ),
    "long-text-that-nothing-is-above": (pa.string(), ["b" * 32 + LAST], ("b" * 32, None, 0)),
    "text-in-many-bytes": (pa.string(), ["水" * 40], ("水" * 32, "水" * 32 + LAST, 0)),
    "text-too-long-for-the-footer": (pa.string(), ["x" * 5000, "y"], (None, None, 0)),
    "empty-text": (pa.large_string(), ["", "a"], ("", "a", 0)),
}


@pytest.mark.parametrize("case", sorted(EDGES))
def test_statistics_of_edge_values_bound_them(case: str, tmp_path: Path) -> None:
    kind, values, expected = EDGES[case]
    assert bounds(values, kind, tmp_path) == expected


def test_statistics_of_times_beyond_year_9999_leave_the_bound_out(tmp_path: Path) -> None:
    far = pa.array([0, 300_000_000_000_000_000], pa.int64()).cast(UTC_TIME)
    table = pa.table({"c": far})
    pq.write_table(table, tmp_path / "f.parquet")
    leaves = indexed(leaves_of(table.schema))
    found = json.loads(file_statistics(pq.read_metadata(tmp_path / "f.parquet"), leaves, set()))
    assert found["minValues"] == {"c": "1970-01-01T00:00:00.000Z"}
    assert found["maxValues"] == {}


def test_statistics_over_several_row_groups_cover_all_of_them(tmp_path: Path) -> None:
    assert bounds([5, 9, None, None, -1, 4], pa.int64(), tmp_path, groups=3) == (-1, 9, 2)
    assert bounds(["é", "z", "a", "水"], pa.string(), tmp_path, groups=2) == ("a", "水", 0)


def test_statistics_of_nested_columns_reach_struct_leaves_and_no_lists(tmp_path: Path) -> None:
    inner = pa.struct([pa.field("offset", pa.int64()), pa.field("a.b", pa.float64())])
    schema = pa.schema(
        [
            pa.field("many", pa.list_(pa.struct([pa.field("x", pa.int64())]))),
            pa.field("map", pa.map_(pa.string(), pa.int64())),
            pa.field("at", inner),
        ]
    )
    rows = [
        {"many": [{"x": 1}, {"x": 2}], "map": {"k": 1}, "at": {"offset": 7, "a.b": math.nan}},
        {"many": None, "map": None, "at": None},
        {"many": [], "map": {}, "at": {"offset": 9, "a.b": 1.0}},
    ]
    table = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(table, tmp_path / "f.parquet")
    leaves = indexed(leaves_of(schema))
    with_nan = leaves_with_nan(table, leaves)
    found = json.loads(file_statistics(pq.read_metadata(tmp_path / "f.parquet"), leaves, with_nan))
    assert found == {
        "numRecords": 3,
        "minValues": {"at": {"offset": 7}},
        "maxValues": {"at": {"offset": 9}},
        "nullCount": {"at": {"offset": 1, "a.b": 1}},
    }


def test_leaves_of_a_nested_schema_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("s", pa.struct([pa.field("l", pa.list_(pa.string())), pa.field("n", pa.int32())])),
            pa.field("m", pa.map_(pa.string(), pa.struct([pa.field("v", pa.int64())]))),
            pa.field("ll", pa.large_list(pa.list_(pa.date32()))),
        ]
    )
    pq.write_table(pa.Table.from_pylist([], schema=schema), tmp_path / "f.parquet")
    footer = pq.read_schema(tmp_path / "f.parquet"), pq.ParquetFile(tmp_path / "f.parquet").schema
    paths = [footer[1].column(n).path for n in range(len(footer[1]))]
    assert [leaf.parquet_path for leaf in leaves_of(schema)] == paths
    assert dictionary_columns(leaves_of(schema)) == [path for path in paths if path != "m.key_value.value.v"]


def test_indexed_leaves_stop_at_the_limit_of_the_table(tmp_path: Path) -> None:
    leaves = leaves_of(pa.schema([pa.field(f"c{n}", pa.int64()) for n in range(40)]))
    assert len(indexed(leaves)) == 32
    assert len(indexed(leaves, 2)) == 2
    assert len(indexed(leaves, -1)) == 40
    assert indexed(leaves, 0) == []


@given(st.lists(st.text(max_size=80), min_size=1))
def test_statistics_of_any_text_never_exclude_a_value(
    tmp_path_factory: pytest.TempPathFactory, values: list[str]
) -> None:
    low, high, _ = bounds(values, pa.string(), tmp_path_factory.mktemp("any"))
    for value in values:
        assert low is None or low.encode() <= value.encode()
        assert high is None or value.encode() <= high.encode()

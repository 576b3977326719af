from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.sinks.files.folder import can_partition, folder_of, split_by_values


def split(columns: dict[str, pa.Array], by: list[str]) -> list[tuple[Any, list[Any]]]:
    rows = pa.RecordBatch.from_pydict(columns)
    return [(values, part.to_pylist()) for values, part in split_by_values(rows, by)]


def test_split_without_partition_columns_gives_the_rows_as_they_are() -> None:
    assert split({"n": pa.array([1, 2])}, []) == [((), [{"n": 1}, {"n": 2}])]


def test_split_of_no_rows_gives_nothing() -> None:
    assert split({"n": pa.array([], pa.int64()), "p": pa.array([], pa.string())}, ["p"]) == []


def test_split_by_two_columns_keeps_row_order_and_drops_the_columns() -> None:
    found = split(
        {"n": pa.array(range(6)), "p": pa.array(["b", "a", "b", None, "a", "b"]), "q": pa.array([1, 1, 1, 1, 2, 1])},
        ["p", "q"],
    )
    assert dict(found) == {
        ("b", "1"): [{"n": 0}, {"n": 2}, {"n": 5}],
        ("a", "1"): [{"n": 1}],
        (None, "1"): [{"n": 3}],
        ("a", "2"): [{"n": 4}],
    }


def test_split_takes_empty_text_for_null_as_the_delta_protocol_does() -> None:
    assert split({"n": pa.array([1, 2]), "p": pa.array(["", None])}, ["p"]) == [((None,), [{"n": 1}, {"n": 2}])]


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (pa.array([date(2026, 1, 2)]), "2026-01-02"),
        (pa.array([datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)]), "2026-01-02T03:04:05.000006Z"),
        (pa.array([datetime(2026, 1, 2, 3, 4, 5)]), "2026-01-02 03:04:05.000000"),
        (pa.array([True]), "true"),
        (pa.array([-5], pa.int8()), "-5"),
        (pa.array([Decimal("0.00")], pa.decimal128(5, 2)), "0.00"),
        (pa.array([Decimal("1E-9")], pa.decimal128(20, 9)), "0.000000001"),
    ],
)
def test_partition_value_as_text_follows_the_delta_protocol(array: pa.Array, text: str) -> None:
    assert split({"n": pa.array([1]), "p": array}, ["p"]) == [((text,), [{"n": 1}])]


def test_split_parts_own_their_memory_so_that_one_does_not_keep_the_batch() -> None:
    rows = pa.RecordBatch.from_pydict({"n": pa.array(range(10_000)), "p": pa.array(["a"] + ["b"] * 9_999)})
    small = next(part for values, part in split_by_values(rows, ["p"]) if values == ("a",))
    assert small.get_total_buffer_size() < 200


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        ("plain", "p=plain"),
        ("a/b=c %", "p=a%2Fb%3Dc %25"),
        ("ünï", "p=ünï"),
        (None, "p=__HIVE_DEFAULT_PARTITION__"),
        ("2026-01-01T00:00:00.000000Z", "p=2026-01-01T00%3A00%3A00.000000Z"),
        ("..", "p=.."),
        ("a\nb", "p=a%0Ab"),
    ],
)
def test_folder_of_special_values_is_escaped_as_hive_does(value: str | None, folder: str) -> None:
    assert folder_of(["p"], (value,)) == folder


def test_folder_of_long_values_fits_a_file_system_and_stays_distinct() -> None:
    first, second = (folder_of(["p"], ("水" * 300 + end,)) for end in "ab")
    assert first != second
    assert len(first.encode()) <= 255


@pytest.mark.parametrize("kind", [pa.float64(), pa.binary(), pa.list_(pa.int64()), pa.struct([])])
def test_can_partition_by_types_without_an_exact_text_is_false(kind: pa.DataType) -> None:
    assert not can_partition(kind)

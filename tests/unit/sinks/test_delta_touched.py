"""What a batch touches: bounds that hold every value, or none at all."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sinks.delta.touched import FEW, BoundsCollector, Touched, joint_bounds, predicate, spark_literal

UTC_TIME = pa.timestamp("us", tz="UTC")


def column(values: list[Any], kind: pa.DataType | None = None, name: str = "c") -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind or pa.int64())], names=[name])


def seen(*batches: pa.RecordBatch, listed: bool = True) -> Touched | None:
    collector = BoundsCollector("c", listed=listed)
    for batch in batches:
        collector.add(batch)
    return collector.bounds()


def test_values_of_several_batches_are_bounded_and_listed() -> None:
    assert seen(column([5, 3]), column([]), column([9, None, 3])) == Touched("c", 3, 9, frozenset({3, 5, 9}))
    assert seen(column([5, 3]), listed=False) == Touched("c", 3, 5, None)


def test_values_that_are_many_are_bounded_and_not_listed() -> None:
    assert seen(column(list(range(FEW + 1)))) == Touched("c", 0, FEW, None)
    halves = [column(list(range(low, low + FEW))) for low in (0, 50)]
    assert seen(*halves) == Touched("c", 0, FEW + 49, None)
    several = seen(*halves, column([1]))
    assert several is not None
    assert several.values is None


@pytest.mark.parametrize(
    "batches",
    [
        [column([1]), column([1], name="other")],
        [column([1.5], pa.float64())],
        [column([b"x"], pa.binary())],
        [column([None, None])],
        [column([300_000_000_000_000_000]).cast(pa.schema([pa.field("c", UTC_TIME)]))],
        [],
    ],
    ids=["a batch without the column", "floats", "bytes", "only nulls", "beyond year 9999", "nothing"],
)
def test_column_that_cannot_be_bounded_surely_is_not(batches: list[pa.RecordBatch]) -> None:
    assert seen(*batches) is None


def test_null_of_a_delete_is_unknown_and_of_a_row_a_null() -> None:
    rows = column([4, None])
    for deletes, known in (([True, None], True), ([True, False], True), ([False, True], False)):
        collector = BoundsCollector("c", listed=True)
        collector.add(rows, pa.array(deletes))
        collector.add(column([7]))
        assert (collector.bounds() == Touched("c", 4, 7, frozenset({4, 7}))) is known
        assert (collector.bounds() is None) is not known


def test_parts_bound_a_column_only_together() -> None:
    one, other = Touched("c", 1, 2, frozenset({1, 2})), Touched("c", 5, 9, frozenset({5, 9}))
    alone = Touched("d", 1, 1, None)
    assert joint_bounds([[one, alone], [other]]) == {"c": Touched("c", 1, 9, frozenset({1, 2, 5, 9}))}
    assert joint_bounds([[one], []]) == {}
    assert joint_bounds([]) == {}
    many = Touched("c", 0, 9, None)
    assert joint_bounds([[one], [many]]) == {"c": Touched("c", 0, 9, None)}


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.int8(), -128, "-128Y"),
        (pa.int16(), 7, "7S"),
        (pa.int32(), -7, "-7"),
        (pa.int64(), -(2**63), "-9223372036854775808L"),
        (pa.date32(), date(1, 1, 1), "DATE '0001-01-01'"),
        (UTC_TIME, datetime(2026, 1, 1, tzinfo=UTC), "TIMESTAMP_LTZ '2026-01-01 00:00:00.000000Z'"),
        (pa.timestamp("us"), datetime(2026, 1, 1, 0, 0, 0, 1), "TIMESTAMP_NTZ '2026-01-01 00:00:00.000001'"),
        (pa.string(), "it's \\ ${x}", "'it\\'s \\\\ ${x}'"),
        (pa.string(), "x" * 1001, None),
        (pa.float64(), 1.5, None),
    ],
)
def test_literal_has_exactly_the_type_of_its_column(kind: pa.DataType, value: Any, text: str | None) -> None:
    assert spark_literal(kind, value) == text


def test_predicate_is_a_list_while_few_and_bounds_otherwise() -> None:
    listed = Touched("c", 1, 9, frozenset({9, 1}))
    assert predicate("t.c", pa.int32(), listed, spark_literal) == "t.c IN (1, 9)"
    assert predicate("t.c", pa.int64(), Touched("c", 1, 9, None), spark_literal) == "t.c >= 1L AND t.c <= 9L"
    long = Touched("c", "a", "z" * 2000, frozenset({"a", "z" * 2000}))
    assert predicate("t.c", pa.string(), long, spark_literal) is None


@given(st.lists(st.text(), min_size=1))
def test_bounds_of_any_text_hold_every_value_by_its_bytes(values: list[str]) -> None:
    found = seen(column(values, pa.string()))
    assert found is not None
    assert all(found.low.encode() <= value.encode() <= found.high.encode() for value in values)

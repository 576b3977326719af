"""Rows that a step fails on: refused with their records, or the end of the run; the rows beside them go on."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.lanes.expression_cases import edge_table, failing_cases

from penstock.errors import TerminalError
from penstock.model import COORDINATES, COORDINATES_FIELD, OffsetRange
from penstock.transforms import ArrowExpression, Cast, Derive, ExpectRule, Where, compile_expression, expect_steps
from penstock.transforms.expressions.terms import RowError, Rows
from penstock.transforms.step import FromSpark

SCHEMA = pa.schema([("id", pa.int64()), ("speed", pa.string()), ("parts", pa.int32()), COORDINATES_FIELD])
ROWS = [(1, "7", 2), (2, "fast", 0), (3, None, 0), (4, "9", 4), (5, "slow", 1), (6, "3000000000", None)]


def rows(values: list[tuple[Any, ...]] = ROWS) -> pa.RecordBatch:
    places = [{"topic": "cars", "partition": 3, "offset": 10 + n, "timestamp": None} for n in range(len(values))]
    columns = [pa.array(column, field.type) for column, field in zip(zip(*values, strict=True), SCHEMA, strict=False)]
    return pa.RecordBatch.from_arrays([*columns, pa.array(places, COORDINATES_FIELD.type)], schema=SCHEMA)


def record(offset: int) -> OffsetRange:
    return OffsetRange("cars", 3, offset, offset + 1)


def refused(split: Any) -> list[tuple[int, str, str]]:
    assert all(one.record == record(one.record.start) for one in split.refused)
    return [(one.record.start, one.code, one.message) for one in split.refused]


def test_cast_of_rows_that_fail_refuses_exactly_those_and_names_no_value() -> None:
    split = Cast({"speed": "INT"}, "quarantine").apply(rows())
    assert split.good.column("id").to_pylist() == [1, 3, 4]
    assert split.good.column("speed").to_pylist() == [7, None, 9]
    assert split.good.schema.field("speed").type == pa.int32()
    why = "cast speed to INT: CAST_INVALID_INPUT"
    assert refused(split) == [(offset, "EXPRESSION_FAILED", why) for offset in (11, 14, 15)]


def test_derive_of_a_row_that_fails_twice_names_the_first_expression() -> None:
    split = Derive({"each": "100 / parts", "fast": "CAST(speed AS BIGINT)"}, "quarantine").apply(rows())
    assert split.good.column("id").to_pylist() == [1, 4, 6]
    assert split.good.column("each").to_pylist() == [50.0, 25.0, None]
    assert [(offset, message) for offset, _, message in refused(split)] == [
        (11, "derive each: DIVIDE_BY_ZERO"),
        (12, "derive each: DIVIDE_BY_ZERO"),
        (14, "derive fast: CAST_INVALID_INPUT"),
    ]


def test_where_refuses_the_rows_it_fails_on_and_drops_those_that_are_not_true() -> None:
    split = Where("id > 1 AND 4 / parts > 1", "quarantine").apply(rows())
    assert split.good.column("id").to_pylist() == [5]
    assert [offset for offset, _, _ in refused(split)] == [11, 12]
    assert split.refused[0].message == "where id > 1 AND 4 / parts > 1: DIVIDE_BY_ZERO"


def test_expect_refuses_the_rows_that_a_rule_fails_on_before_rules_are_judged() -> None:
    rules = [ExpectRule("few", "4 / parts < 3"), ExpectRule("known", "speed IS NOT NULL", "fail")]
    expect, judge = expect_steps(rules, "quarantine")
    tried = expect.apply(rows())
    assert [message for _, _, message in refused(tried)] == ["expect few: DIVIDE_BY_ZERO"] * 2
    judged = judge.apply(tried.good)
    assert judged.good.column("id").to_pylist() == [1, 4]
    assert [one.record for one in judged.refused] == [record(14), record(15)]


@pytest.mark.parametrize(
    "step", [Cast({"speed": "INT"}), Derive({"n": "CAST(speed AS INT)"}), Where("CAST(speed AS INT) > 0")], ids=repr
)
def test_step_that_may_not_refuse_stops_and_names_the_record(step: Any) -> None:
    with pytest.raises(TerminalError) as caught:
        step.apply(rows())
    assert caught.value.code == "EXPRESSION_FAILED"
    assert caught.value.context["record"] == "cars[3] offset 11"
    assert "fast" not in str(caught.value)


@pytest.mark.parametrize("lost", [[], [None] * len(ROWS)], ids=["no column", "null"])
def test_step_that_refuses_rows_without_coordinates_stops(lost: list[None]) -> None:
    given = rows().drop_columns([COORDINATES])
    if lost:
        given = given.append_column(COORDINATES_FIELD, pa.array(lost, COORDINATES_FIELD.type))
    with pytest.raises(TerminalError) as caught:
        Cast({"speed": "INT"}, "quarantine").apply(given)
    assert caught.value.code == "EXPRESSION_FAILED"
    assert "record" not in caught.value.context


def test_row_that_fails_with_a_time_beyond_python_is_refused() -> None:
    places = pa.StructArray.from_arrays(
        [
            pa.array(["cars"]),
            pa.array([3], pa.int32()),
            pa.array([10], pa.int64()),
            pa.array([2**62], COORDINATES_FIELD.type.field("timestamp").type),
        ],
        fields=list(COORDINATES_FIELD.type),
    )
    given = rows(ROWS[1:2]).set_column(3, COORDINATES_FIELD, places)
    [refusal] = Cast({"speed": "INT"}, "quarantine").apply(given).refused
    assert refusal.record == record(10)
    with pytest.raises(TerminalError, match=r"offset 10"):
        Cast({"speed": "INT"}).apply(given)


def test_values_from_spark_without_a_struct_are_refused() -> None:
    step = FromSpark(Derive({"each": "?", "id": "?"}, "quarantine"))
    each = pa.StructArray.from_arrays(
        [pa.array([1.5, None, 2.5, None, None, 9.0])],
        fields=[pa.field("value", pa.float64(), nullable=False)],
        mask=pa.array([False, True, False, False, False, False]),
    )
    number = pa.StructArray.from_arrays(
        [pa.array([1, 2, 3, 4, 5, None], pa.int32())], ["value"], mask=pa.array([False] * 5 + [True])
    )
    given = rows().append_column(FromSpark.column(0), each).append_column(FromSpark.column(1), number)
    split = step.apply(given)
    assert split.good.schema == step.output(given.schema)
    assert split.good.schema.names == ["id", "speed", "parts", "each", COORDINATES]
    assert not split.good.schema.field("each").nullable
    assert split.good.column("id").to_pylist() == [1, 3, 4, 5]
    assert split.good.column("each").to_pylist() == [1.5, 2.5, None, None]
    assert [(offset, message) for offset, _, message in refused(split)] == [
        (11, "derive each: Spark cannot compute it"),
        (15, "derive id: Spark cannot compute it"),
    ]


def one_by_one(compiled: ArrowExpression, batch: pa.RecordBatch) -> tuple[pa.Array, dict[int, str]]:
    """Every row alone: what it gives, or why it fails."""
    values = []
    failed: dict[int, str] = {}
    for row in range(batch.num_rows):
        try:
            found = compiled.run(Rows(batch.slice(row, 1)))
        except RowError as failure:
            failed[row] = failure.error_class
            found = pa.scalar(None, compiled.type)
        values.append(pa.repeat(found, 1) if isinstance(found, pa.Scalar) else found)
    return pa.concat_arrays(values), failed


def shown(values: pa.Array, failed: dict[int, str]) -> list[str]:
    """The values of the rows that do not fail; times as numbers, which Python has no bounds for."""
    if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
        values = values.cast(pa.int32() if pa.types.is_date(values.type) else pa.int64())
    return [repr(value) for row, value in enumerate(values) if row not in failed]


@pytest.mark.parametrize("case", failing_cases())
def test_attempt_notes_the_rows_that_fail_alone_and_gives_the_others_their_values(case: str) -> None:
    batch = edge_table().combine_chunks().to_batches()[0]
    compiled = compile_expression(case, batch.schema)
    assert isinstance(compiled, ArrowExpression)
    values, failed = compiled.attempt(batch)
    alone, failed_alone = one_by_one(compiled, batch)
    assert failed == failed_alone
    assert shown(values, failed) == shown(alone, failed)


def test_attempt_of_pieces_that_both_may_fail_notes_the_first_failure_of_each_row() -> None:
    batch = edge_table().combine_chunks().to_batches()[0]
    pieces, checked = failing_cases(), 0
    for left, right in zip(pieces, reversed(pieces), strict=True):
        compiled = compile_expression(f"concat(CAST({left} AS STRING), CAST({right} AS STRING))", batch.schema)
        if isinstance(compiled, ArrowExpression):
            checked += 1
            assert compiled.attempt(batch)[1] == one_by_one(compiled, batch)[1], compiled.text
    assert checked > 10

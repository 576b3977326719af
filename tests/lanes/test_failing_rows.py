"""A row that a step fails on: over Arrow and in Spark the same rows go on, and the same records are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.lanes.expression_cases import edge_table, failing_cases

from penstock.engine.frame import TaskReports, apply_steps, with_tried
from penstock.model import COORDINATES, COORDINATES_FIELD, Refusal
from penstock.transforms import (
    ArrowExpression,
    Cast,
    Derive,
    Drop,
    ExpectRule,
    Sql,
    Where,
    compile_expression,
    expect_steps,
)
from penstock.transforms.step import FromSpark

PlacedStep = Callable[[pa.Table], tuple[pa.RecordBatch, Any]]

CARS = pa.table(
    {
        "id": pa.array(range(8), pa.int64()),
        "speed": ["7", "fast", None, "9", "slow", "3000000000", "0", "12"],
        "parts": pa.array([2, 0, 0, 4, 1, None, 3, 0], pa.int32()),
        "odd.name": pa.array([1, 2, 3, 4, 5, 6, 7, None], pa.int32()),
    }
)


@pytest.fixture(scope="module")
def placed(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> PlacedStep:
    """A table with coordinates, as a batch and as a frame of several partitions."""
    folder = Path(tmp_path_factory.mktemp("failing"))

    def make(table: pa.Table) -> tuple[pa.RecordBatch, Any]:
        places = [{"topic": "t", "partition": n % 3, "offset": n, "timestamp": n} for n in range(table.num_rows)]
        table = table.drop_columns([COORDINATES] if COORDINATES in table.schema.names else [])
        table = table.append_column(COORDINATES_FIELD, pa.array(places, COORDINATES_FIELD.type))
        file = folder / f"{len(list(folder.iterdir()))}.parquet"
        pq.write_table(table, file)
        return table.combine_chunks().to_batches()[0], spark.read.parquet(str(file)).repartition(2)

    return make


def in_arrow(steps: Sequence[Any], rows: pa.RecordBatch) -> tuple[pa.Table, list[Refusal]]:
    refused: list[Refusal] = []
    for step in steps:
        assert step.no_arrow_form(rows.schema) is None, step
        split = step.apply(rows)
        rows, refused = split.good, [*refused, *split.refused]
    return pa.Table.from_batches([rows]), refused


def in_spark(steps: Sequence[Any], frame: Any) -> tuple[pa.Table, list[Refusal]]:
    told = TaskReports(frame.sparkSession.sparkContext)
    table = apply_steps(frame.sparkSession, frame, steps, told).toArrow()
    refused = [refusal for report in told.take() for refusal in report.refused]
    told.forget()
    assert all(refusal.stage == "transform" for refusal in refused)
    return table, refused


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def why(refused: Sequence[Refusal]) -> list[tuple[int, str, str]]:
    return sorted((one.record.start, one.code, one.message) for one in refused)


RULES = [ExpectRule("few", "4 / parts < 3"), ExpectRule("known", "id <> 5", "drop")]
STEPS: list[list[Any]] = [
    [Cast({"speed": "INT"}, "quarantine")],
    [Derive({"each": "100 / parts", "fast": "CAST(speed AS BIGINT)"}, "quarantine")],
    [Derive({"parts": "12 % parts", "odd.name": "`odd.name` + 2147483643"}, "quarantine")],
    [Where("id > 1 AND 4 / parts > 1", "quarantine")],
    [*expect_steps(RULES, "quarantine")],
    [Where("id <> 1"), Cast({"speed": "BIGINT"}, "quarantine"), Where("10 / speed > 0", "quarantine")],
    # What a later step leaves out has failed before.
    [Derive({"each": "100 / parts"}, "quarantine"), Where("id > 2"), Drop(["each"])],
]


@pytest.mark.parametrize("steps", STEPS, ids=repr)
def test_steps_that_refuse_give_the_same_rows_and_refusals_in_both_lanes(placed: PlacedStep, steps: list[Any]) -> None:
    rows, frame = placed(CARS)
    (ours, refused), (theirs, refused_there) = in_arrow(steps, rows), in_spark(steps, frame)
    assert ours.schema.names == theirs.schema.names
    assert ours.schema.types == theirs.schema.types
    assert sorted_rows(ours) == sorted_rows(theirs)
    assert why(refused) == why(refused_there) != []


def test_expressions_tried_by_spark_fail_on_the_same_rows_as_over_arrow(placed: PlacedStep) -> None:
    rows, frame = placed(edge_table())
    cases = failing_cases()
    tried = with_tried(frame, Derive({f"c{n}": case for n, case in enumerate(cases)}, "quarantine"))
    assert tried is not None
    table = tried.toArrow().sort_by("row").combine_chunks()
    found = []
    for number, case in enumerate(cases):
        compiled = compile_expression(case, rows.schema)
        assert isinstance(compiled, ArrowExpression)
        values, failed = compiled.attempt(rows)
        struct = table.column(FromSpark.column(number)).combine_chunks()
        if pc.indices_nonzero(struct.is_null()).to_pylist() != sorted(failed):
            found.append(f"{case}: fails on other rows")
        kept = pa.array([row not in failed for row in range(rows.num_rows)])
        if str(values.filter(kept)) != str(struct.field(0).filter(kept)):
            found.append(f"{case}: gives other values")
    assert not found, "\n".join(found)


def test_step_that_only_spark_can_evaluate_refuses_the_rows_that_fail(placed: PlacedStep) -> None:
    _, frame = placed(CARS)
    # Both need the same piece, which Spark would compute once, before either.
    shared = "CAST(regexp_extract(speed, '.*', 0) AS INT)"
    step = Derive({"one": f"{shared} + 1", "two": f"{shared} * 2 -- twice", "id": "input.id"}, "quarantine")
    assert step.no_arrow_form(pa.schema([*CARS.schema, COORDINATES_FIELD])) is not None
    table, refused = in_spark([step, Where("one <> 8", "quarantine")], frame)
    assert table.schema.names == ["id", "speed", "parts", "odd.name", "one", "two", COORDINATES]
    assert sorted(zip(*(table.column(n).to_pylist() for n in ("id", "one", "two")), strict=True)) == [
        (3, 10, 18),
        (6, 1, 0),
        (7, 13, 24),
    ]
    message = "derive one: Spark cannot compute it"
    assert why(refused) == [(offset, "EXPRESSION_FAILED", message) for offset in (1, 4, 5)]


def test_condition_that_only_spark_can_evaluate_refuses_and_ends_at_null(placed: PlacedStep) -> None:
    _, frame = placed(CARS)
    condition = "regexp_like(speed, '.') AND 4 / parts > 1 /* NULL ends it */"
    table, refused = in_spark([Where(condition, "quarantine")], frame)
    # Of id 2 the speed is NULL: the division by zero behind it is never looked at.
    assert sorted(table.column("id").to_pylist()) == [0, 4, 6]
    assert [offset for offset, _, _ in why(refused)] == [1, 7]


def test_rule_that_only_spark_can_evaluate_refuses_and_judges(placed: PlacedStep) -> None:
    _, frame = placed(CARS)
    steps = expect_steps([ExpectRule("fast", "CAST(regexp_extract(speed, '.*', 0) AS INT) > 7")], "quarantine")
    table, refused = in_spark(steps, frame)
    assert sorted(table.column("id").to_pylist()) == [3, 7]
    broken = "the row breaks fast (CAST(regexp_extract(speed, '.*', 0) AS INT) > 7)"
    assert why(refused) == sorted(
        [(n, "EXPRESSION_FAILED", "expect fast: Spark cannot compute it") for n in (1, 4, 5)]
        + [(n, "EXPECTATION_BROKEN", broken) for n in (0, 2, 6)]
    )


@pytest.mark.parametrize(
    "step",
    [
        Derive({"n": "explode(array(1, 2))"}, "quarantine"),
        Derive({"n": "make_interval(parts)", "m": "id"}, "quarantine"),
        Derive({"n": "speed COLLATE UTF8_LCASE"}, "quarantine"),
        Where("id IN (SELECT max(id) FROM input)", "quarantine"),
    ],
    ids=repr,
)
def test_step_that_spark_alone_can_carry_is_left_to_spark(placed: PlacedStep, step: Any) -> None:
    _, frame = placed(CARS)
    plain = type(step)(step.condition if isinstance(step, Where) else step.columns)
    session = frame.sparkSession
    ours, theirs = apply_steps(session, frame, [step]), apply_steps(session, frame, [plain])
    assert ours.schema == theirs.schema
    assert ours.drop(*(["n"] if "n" in ours.columns else [])).count() == theirs.count()


def test_rows_that_no_longer_say_their_record_stop_the_run(placed: PlacedStep) -> None:
    _, frame = placed(CARS)
    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        in_spark([Sql("SELECT DISTINCT speed FROM input"), Cast({"speed": "INT"}, "quarantine")], frame)


def test_step_that_cannot_fail_stays_one_of_spark(placed: PlacedStep) -> None:
    _, frame = placed(CARS)
    steps: list[Any] = [Where("id > 1", "quarantine"), Derive({"odd": "`odd.name` IS NULL"}, "quarantine")]
    plan = apply_steps(frame.sparkSession, frame, steps)._jdf.queryExecution().toString()
    assert "MapInArrow" not in plan

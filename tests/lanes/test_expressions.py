"""Expressions give the same value, NULL and type in Arrow and in Spark, over a table of edge values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.lanes.expression_cases import all_cases, edge_table

from penstock.transforms import ArrowExpression, compile_expression

BATCH = 120


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return edge_table()


@pytest.fixture(scope="module")
def frame(spark: Any, table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Any:
    # A file, not a local relation: those are folded by the optimizer, without the code that a real query runs.
    path = Path(tmp_path_factory.mktemp("edges")) / "edges.parquet"
    pq.write_table(table, path)
    return spark.read.parquet(str(path)).coalesce(1)


def evaluate_in_spark(frame: Any, cases: list[str]) -> list[pa.ChunkedArray]:
    named = [f"({case}\n) AS c{number}" for number, case in enumerate(cases)]
    result = frame.selectExpr("row", *named).toArrow().sort_by("row")
    return [result.column(f"c{number}") for number in range(len(cases))]


def comparable(values: Any) -> list[object]:
    """Values that can be told apart exactly: floats by their bits, times as numbers."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    elif pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    plain: list[object] = values.to_pylist()
    return [("nan" if math.isnan(v) else v.hex()) if isinstance(v, float) else v for v in plain]


def differences(frame: Any, table: pa.Table, cases: list[str]) -> Iterator[str]:
    rows = table.combine_chunks().to_batches()[0]
    for case, spark_values in zip(cases, evaluate_in_spark(frame, cases), strict=True):
        compiled = compile_expression(case, table.schema)
        assert isinstance(compiled, ArrowExpression), compiled
        arrow_values = compiled.evaluate(rows)
        if arrow_values.type != spark_values.type or compiled.type != spark_values.type:
            yield f"{case}: arrow {compiled.type}, {arrow_values.type}, spark {spark_values.type}"
        for row, (ours, theirs) in enumerate(zip(comparable(arrow_values), comparable(spark_values), strict=True)):
            if ours != theirs:
                yield f"{case}: row {row}: arrow {ours!r}, spark {theirs!r}"
                break


def test_expressions_over_edge_values_equal_spark(frame: Any, table: pa.Table) -> None:
    cases = all_cases()
    found = [d for n in range(0, len(cases), BATCH) for d in differences(frame, table, cases[n : n + BATCH])]
    assert not found, "\n".join(found)


def _binary(operators: list[str], left: st.SearchStrategy[str], right: st.SearchStrategy[str]) -> Any:
    return st.builds("({} {} {})".format, left, st.sampled_from(operators), right)


def _doubles() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(["f64", "g64", "f32", "st.deep.z", "1.5", "0", "1e300", "i32", "CAST(NULL AS DOUBLE)"])
    return st.recursive(
        st.builds("CAST({} AS DOUBLE)".format, leaves),
        lambda inner: st.one_of(
            _binary(["+", "-", "*"], inner, inner),
            st.builds("(-{})".format, inner),
            st.builds("({} / 3)".format, inner),
            st.builds("coalesce({}, {})".format, inner, inner),
            st.builds("nullif({}, {})".format, inner, inner),
        ),
        max_leaves=5,
    )


def _texts() -> st.SearchStrategy[str]:
    return st.recursive(
        st.sampled_from(["s", "t", "'a'", "''", "st.y", "CAST(i64 AS STRING)", "'é😀'", "CAST(NULL AS STRING)"]),
        lambda inner: st.one_of(
            st.builds("trim({})".format, inner),
            st.builds("concat({}, {})".format, inner, inner),
            st.builds("({} || {})".format, inner, inner),
            st.builds("substring({}, {}, {})".format, inner, st.integers(0, 3), st.integers(-1, 3)),
            st.builds("coalesce({}, {})".format, inner, inner),
        ),
        max_leaves=4,
    )


def _numbers() -> st.SearchStrategy[str]:
    plain = ["i8", "i16", "i32", "i64", "f32", "dec", "1", "-5", "1.5", "3000000000", "1e0", "year(d)", "length(s)"]
    return st.one_of(st.sampled_from(plain), st.sampled_from(["day(ts)", "hour(ts)", "dayofweek(near)", "st.x"]))


def _moments() -> st.SearchStrategy[str]:
    units = st.sampled_from(["YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND"])
    plain = st.sampled_from(["d", "near", "date(ts)", "ts", "ntz", "DATE '2024-02-29'", "TIMESTAMP '2024-01-01'"])
    return st.one_of(plain, st.builds("date_trunc('{}', {})".format, units, st.sampled_from(["ts", "near"])))


def _conditions() -> st.SearchStrategy[str]:
    compared = ["=", "<>", "<", "<=", ">", ">=", "<=>"]
    pattern = st.text("a%_b\n日", max_size=4).map("'{}'".format)
    near = _moments().filter(lambda text: text != "d")
    leaves = st.one_of(
        st.sampled_from(["b", "c", "(b IS NULL)", "isnan(f64)", "TRUE", "CAST(NULL AS BOOLEAN)"]),
        _binary(compared, _doubles(), _doubles()),
        _binary(compared, _texts(), _texts()),
        _binary(compared, _numbers(), _numbers()),
        _binary(compared, near, near),
        _binary(["LIKE", "NOT LIKE"], _texts(), pattern),
        st.builds("({} IN ({}, {}))".format, _numbers(), _numbers(), _numbers()),
        st.builds("({} NOT IN ({}, NULL))".format, _texts(), _texts()),
        st.builds("({} BETWEEN {} AND {})".format, _doubles(), _doubles(), _numbers()),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            _binary(["AND", "OR", "=", "<=>"], inner, inner),
            st.builds("(NOT {})".format, inner),
            st.builds("({} IS NULL)".format, inner),
            st.builds("IF({}, {}, {})".format, inner, inner, inner),
        ),
        max_leaves=4,
    )


def _branches() -> st.SearchStrategy[str]:
    values = st.one_of(_numbers(), _doubles())
    moments = _moments().filter(lambda text: text != "d")
    return st.one_of(
        st.builds("CASE WHEN {} THEN {} WHEN {} THEN {} END".format, _conditions(), values, _conditions(), values),
        st.builds("IF({}, {}, {})".format, _conditions(), moments, moments),
        st.builds("CASE {} WHEN {} THEN {} ELSE {} END".format, _numbers(), _numbers(), _texts(), _texts()),
        st.builds("coalesce({}, {}, {})".format, values, values, values),
    )


_ANY = st.one_of(_conditions(), _branches(), _doubles(), _texts())


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases=st.lists(_ANY, min_size=40, max_size=80, unique=True))
def test_expressions_of_the_grammar_at_random_equal_spark(frame: Any, table: pa.Table, cases: list[str]) -> None:
    exact = [case for case in cases if isinstance(compile_expression(case, table.schema), ArrowExpression)]
    assert len(exact) > len(cases) / 2
    found = list(differences(frame, table, exact))
    assert not found, "\n".join(found)

"""Expressions give the same value, NULL and type in Arrow and in Spark, over a table of edge values."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.lanes.expression_cases import all_cases, edge_table, failing_cases, some_cases

from penstock.transforms import ArrowExpression, Derive, Where, compile_expression
from penstock.transforms.expressions.terms import RowError, Rows

BATCH = 90


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


@dataclass(frozen=True)
class Evaluated:
    """An expression over the table by Arrow: the values, and by row the error class where it fails."""

    case: str
    type: pa.DataType
    values: pa.Array
    failed: dict[int, str]

    @property
    def guarded(self) -> str:
        """The expression where it does not fail, so that many can be evaluated in one query."""
        rows = ", ".join(map(str, self.failed)) or "-1"
        return f"CASE WHEN row NOT IN ({rows}) THEN ({self.case}\n) END"


def evaluate_in_arrow(table: pa.Table, case: str) -> Evaluated:
    compiled = compile_expression(case, table.schema)
    assert isinstance(compiled, ArrowExpression), compiled
    rows = table.combine_chunks().to_batches()[0]
    live, failed = [True] * rows.num_rows, dict[int, str]()
    while True:
        try:
            values = compiled.run(Rows(rows, pa.array(live)))
        except RowError as failure:
            failed[failure.row] = failure.error_class
            live[failure.row] = False
            continue
        values = pa.repeat(values, rows.num_rows) if isinstance(values, pa.Scalar) else values
        return Evaluated(case, compiled.type, values, failed)


def comparable(values: Any) -> list[object]:
    """Values that can be told apart exactly: floats by their bits, times as numbers."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    elif pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    plain: list[object] = values.to_pylist()
    return [("nan" if math.isnan(v) else v.hex()) if isinstance(v, float) else v for v in plain]


def differences(frame: Any, table: pa.Table, cases: list[str]) -> Iterator[str]:
    evaluated = [evaluate_in_arrow(table, case) for case in cases]
    try:
        in_spark = evaluate_in_spark(
            frame, [each.guarded if may_fail(table, each) else each.case for each in evaluated]
        )
    except Exception as error:
        if len(cases) == 1:
            yield f"{cases[0]}: arrow does not fail, spark: {str(error)[:200]}"
        else:
            middle = len(cases) // 2
            yield from differences(frame, table, cases[:middle])
            yield from differences(frame, table, cases[middle:])
        return
    for each, spark_values in zip(evaluated, in_spark, strict=True):
        if each.values.type != spark_values.type or each.type != spark_values.type:
            yield f"{each.case}: arrow {each.type}, {each.values.type}, spark {spark_values.type}"
        pairs = zip(comparable(each.values), comparable(spark_values), strict=True)
        for row, (ours, theirs) in enumerate(pairs):
            if ours != theirs and row not in each.failed:
                yield f"{each.case}: row {row}: arrow {ours!r}, spark {theirs!r}"
                break


def may_fail(table: pa.Table, evaluated: Evaluated) -> bool:
    compiled = compile_expression(evaluated.case, table.schema)
    return isinstance(compiled, ArrowExpression) and bool(compiled.failures)


@pytest.mark.parametrize("cases_of", [some_cases, pytest.param(all_cases, marks=pytest.mark.long)])
def test_expressions_over_edge_values_equal_spark(
    frame: Any, table: pa.Table, cases_of: Callable[[], list[str]]
) -> None:
    cases = cases_of()
    found = [d for n in range(0, len(cases), BATCH) for d in differences(frame, table, cases[n : n + BATCH])]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("every_case", [False, pytest.param(True, marks=pytest.mark.long)])
def test_expressions_that_fail_on_a_row_fail_in_spark_on_that_row(
    frame: Any, table: pa.Table, every_case: bool
) -> None:
    found: list[str] = []
    tried: set[str] = set()
    for evaluated in (evaluate_in_arrow(table, case) for case in failing_cases()):
        assert evaluated.failed, f"{evaluated.case} does not fail"
        # One row for each error class, of each case or of all: every row would take a query of its own.
        rows = {error_class: row for row, error_class in evaluated.failed.items() if error_class not in tried}
        found += [fault for row in rows.values() for fault in _other_failure(frame, evaluated, row)]
        if not every_case:
            tried |= rows.keys()
    assert not found, "\n".join(found)


def _other_failure(frame: Any, evaluated: Evaluated, row: int) -> Iterator[str]:
    """What is wrong if Spark does not fail on that row in the same way."""
    try:
        frame.where(f"row = {row}").selectExpr(f"({evaluated.case}\n)").toArrow()
    except Exception as error:
        # Of times that overflow Spark lets Java's own exception through.
        if not re.search(rf"\[{evaluated.failed[row]}|ArithmeticException: long overflow", str(error)):
            yield f"{evaluated.case}: row {row}: {evaluated.failed[row]}, spark {str(error)[:120]}"
    else:
        yield f"{evaluated.case}: row {row}: {evaluated.failed[row]}, spark does not fail"


STEPS = [
    [Where("j32 <> 0"), Derive({"q": "10 / j32"})],
    [Where("j32 <> 0 AND 10 / j32 > 1")],
    [Where("IF(j32 = 0, NULL, TRUE) AND 10 / j32 > 1")],
    [Where("b"), Where("j32 <> 0"), Derive({"q": "i8 % j32", "r": "j32 > 0 OR 10 / j32 < 1"})],
    [Where("TRY_CAST(num AS INT) IS NOT NULL"), Derive({"n": "CAST(num AS INT)"})],
]


@pytest.mark.parametrize("steps", STEPS, ids=repr)
def test_filter_before_what_would_fail_protects_it_in_both_lanes(frame: Any, table: pa.Table, steps: list[Any]) -> None:
    rows, in_spark = table.combine_chunks().to_batches()[0], frame
    for step in steps:
        assert step.no_arrow_form(rows.schema) is None
        rows = step.apply(rows).good
        in_spark.createOrReplaceTempView("input")
        in_spark = frame.sparkSession.sql(step.select(in_spark.columns))
    kept = in_spark.toArrow().sort_by("row")
    assert 0 < rows.num_rows < table.num_rows
    for name in ("row", *rows.schema.names[len(table.schema) - 1 : -1]):
        assert comparable(rows.column(name)) == comparable(kept.column(name)), name


@pytest.mark.parametrize("every_letter", [False, pytest.param(True, marks=pytest.mark.long)])
def test_case_mapping_of_all_of_unicode_equals_spark(spark: Any, tmp_path: Path, every_letter: bool) -> None:
    letters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    if not every_letter:
        letters = [letter for letter in letters if letter.upper() != letter.lower()]
    words = ["".join(word) for size in (2, 3) for word in itertools.product("Σaİ .1'\u0301日😀", repeat=size)]
    table = pa.table({"row": pa.array(range(len(letters) + len(words)), pa.int64()), "word": letters + words})
    pq.write_table(table, tmp_path / "letters.parquet")
    found = list(
        differences(spark.read.parquet(str(tmp_path / "letters.parquet")), table, ["upper(word)", "lower(word)"])
    )
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


def _integers() -> st.SearchStrategy[str]:
    leaves = [
        "i8",
        "i16",
        "i32",
        "j32",
        "i64",
        "1",
        "2",
        "-3",
        "length(s)",
        "size(arr)",
        "CAST(num AS INT)",
        "CAST(f64 AS INT)",
    ]
    return st.recursive(
        st.sampled_from(leaves),
        lambda inner: st.one_of(
            _binary(["+", "-", "*", "div", "%"], inner, inner),
            st.builds("abs({})".format, inner),
            st.builds("(-{})".format, st.sampled_from(["i32", "i64", "k8"])),
            st.builds("coalesce({}, {})".format, inner, inner),
            st.builds("greatest({}, {})".format, inner, inner),
            st.builds("IF({} > 0, {}, {})".format, inner, inner, inner),
            st.builds("CAST({} AS SMALLINT)".format, inner),
            st.builds("try_divide({}, {})".format, inner, inner),
        ),
        max_leaves=4,
    )


def _decimal_numbers() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(["dec", "cent", "tiny", "1.5", "i32", "2", "0.05", "CAST(i8 AS DECIMAL(5,2))"])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            _binary(["+", "-", "*", "/", "%"], inner, inner),
            st.builds("round({}, 2)".format, inner),
            st.builds("floor({})".format, inner),
            st.builds("least({}, {})".format, inner, inner),
            st.builds("CAST({} AS DECIMAL(12,4))".format, inner),
        ),
        max_leaves=3,
    )


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
        _binary(compared, _integers(), _integers()),
        _binary(compared, _decimal_numbers(), _numbers()),
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
        st.builds("IF({}, {}, {})".format, _conditions(), _integers(), _integers()),
    )


_ANY = st.one_of(_conditions(), _branches(), _doubles(), _texts(), _integers(), _decimal_numbers())


@pytest.mark.long
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases=st.lists(_ANY, min_size=40, max_size=80, unique=True))
def test_expressions_of_the_grammar_at_random_equal_spark(frame: Any, table: pa.Table, cases: list[str]) -> None:
    exact = [case for case in cases if isinstance(compile_expression(case, table.schema), ArrowExpression)]
    assert len(exact) > len(cases) / 2
    found = list(differences(frame, table, exact))
    assert not found, "\n".join(found)

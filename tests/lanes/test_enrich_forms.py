"""Enriching gives the same rows in its Arrow form and as a join in Spark SQL."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.model import COORDINATES, COORDINATES_FIELD
from penstock.transforms import Enrich, LocalRows, enrich_steps
from penstock.transforms.enrich import FOUND

NAN = float("nan")
COUNT = 25

NUMBERS = st.sampled_from([None, -1, 0, 1, 2, 3, 2**31 - 1])
FLOATS = st.sampled_from([None, NAN, 0.0, -0.0, 1.0, 1.5, -2.0])
TEXTS = st.sampled_from([None, "", "a", "A", "é", "x" * 7, "x" * 8, "x" * 9, "x" * 129, "\x00", "a\x00"])
DAYS = st.sampled_from([None, 0, 1, -1, 19_000])

ROWS = pa.schema(
    [
        ("n", pa.int32()),
        ("big", pa.int64()),
        ("f", pa.float64()),
        ("small", pa.float32()),
        ("s", pa.string()),
        ("d", pa.date32()),
        COORDINATES_FIELD,
    ]
)
TABLE = pa.schema(
    [
        ("Id", pa.int64()),
        ("dec", pa.decimal128(12, 2)),
        ("F", pa.float64()),
        ("text", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("odd `name`", pa.int32()),
    ]
)


def mixed(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Not one value alone, as the first example otherwise is."""
    return st.lists(values, min_size=COUNT, max_size=COUNT).filter(lambda drawn: len(set(drawn)) > 2)


@st.composite
def some_rows(draw: st.DrawFn) -> pa.RecordBatch:
    kinds = (NUMBERS, NUMBERS, FLOATS, FLOATS, TEXTS, DAYS)
    columns = [draw(mixed(kind)) for kind in kinds]
    places = [{"topic": "t", "partition": 0, "offset": n, "timestamp": 0} for n in range(COUNT)]
    arrays = [pa.array(values, field.type) for values, field in zip([*columns, places], ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


@st.composite
def some_table(draw: st.DrawFn) -> pa.Table:
    kinds = (NUMBERS, NUMBERS, FLOATS, TEXTS, DAYS, NUMBERS)
    ids, decimals, floats, texts, days, odd = (draw(mixed(kind)) for kind in kinds)
    moments = pa.array(days, pa.date32()).cast(TABLE.field("at").type)
    values = [pa.array(ids, pa.int64()), pa.array(decimals, pa.int32()).cast(pa.decimal128(12, 2))]
    values += [pa.array(floats, pa.float64()), pa.array(texts, pa.string()), moments, pa.array(odd, pa.int32())]
    return pa.Table.from_arrays(values, schema=TABLE)


KEYS = [
    {"big": "id"},
    {"n": "Id"},
    {"big": "dec"},
    {"f": "f"},
    {"small": "F"},
    {"S": "text"},
    {"d": "at"},
    {"s": "text", "n": "odd `name`"},
    {"f": "F", "d": "at", "n": "dec"},
]
TAKE = {"number": "Id", "float": "F", "new `name`": "odd `name`", "text": "text"}


def sorted_rows(table: Any) -> list[str]:
    return sorted(repr(row).replace("-0.0", "0.0") for row in table.to_pylist())


def in_arrow(step: Enrich, table: pa.Table, rows: pa.RecordBatch) -> pa.RecordBatch:
    held = step.with_rows(LocalRows(step.pack(table)))
    assert held.no_arrow_form(rows.schema) is None
    good = held.apply(rows).good
    assert good.schema.equals(step.output(rows.schema))
    return good


@pytest.mark.parametrize(
    ("on_miss", "on_duplicate"),
    [
        pytest.param("keep", "all", marks=pytest.mark.long),
        pytest.param("drop", "all", marks=pytest.mark.long),
        ("quarantine", "first"),
    ],
)
@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(rows=some_rows(), table=some_table())
def test_enrich_in_arrow_equals_its_spark_form(
    spark: Any, rows: pa.RecordBatch, table: pa.Table, on_miss: Any, on_duplicate: Any
) -> None:
    spark.createDataFrame(pa.Table.from_batches([rows])).createOrReplaceTempView("input")
    spark.createDataFrame(table).createOrReplaceTempView("`the table`")
    steps = [enrich_steps("the table", on, TAKE, TABLE, on_miss, on_duplicate)[0] for on in KEYS]
    queries = [f"SELECT *, {place} AS step FROM ({step.select(ROWS.names)})" for place, step in enumerate(steps)]
    joined = spark.sql(" UNION ALL ".join(queries)).toArrow()
    for place, step in enumerate(steps):
        assert isinstance(step, Enrich)
        good = in_arrow(step, table, rows)
        by_spark = joined.filter(pc.field("step") == place).drop_columns(["step"])
        assert good.schema.names == by_spark.schema.names == step.output(ROWS).names
        assert good.schema.types == by_spark.schema.types
        assert sorted_rows(good) == sorted_rows(by_spark), KEYS[place]


def test_enrich_in_spark_marks_misses_and_counts_duplicates(spark: Any) -> None:
    rows = pa.table({"id": pa.array([1, 5, None], pa.int64()), COORDINATES: pa.nulls(3, COORDINATES_FIELD.type)})
    customers = pa.table({"id": pa.array([1, 2, 2, None, None], pa.int64()), "name": ["a", "b", "c", "d", "e"]})
    spark.createDataFrame(rows).createOrReplaceTempView("input")
    spark.createDataFrame(customers).createOrReplaceTempView("customers")
    first, unmatched = enrich_steps("customers", {"id": "id"}, None, customers.schema, "quarantine")
    assert isinstance(first, Enrich)
    joined = spark.sql(first.select(rows.schema.names)).toArrow()
    assert joined.filter(pc.field(FOUND)).num_rows == 1
    assert unmatched.output(joined.schema).names == ["id", "name", COORDINATES]
    [counted] = spark.sql(first.duplicates_query()).collect()
    assert counted.duplicates == 1

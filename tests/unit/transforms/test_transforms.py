"""The transforms over Arrow rows. That their Spark forms say the same is in tests/lanes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import DefinitionError, PenstockError
from penstock.model import COORDINATES, COORDINATES_FIELD
from penstock.transforms import Cast, Dedupe, Derive, Drop, Rename, Sql, Where

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("amount", pa.float64()),
        COORDINATES_FIELD,
    ]
)


def batch(*rows: tuple[int, str | None, float | None]) -> pa.RecordBatch:
    values = [
        {"id": i, "name": n, "amount": a, COORDINATES: {"topic": "t", "partition": 0, "offset": o, "timestamp": o}}
        for o, (i, n, a) in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist(values, schema=SCHEMA)


ROWS = batch((1, "a", 1.0), (2, None, -1.0), (3, "c", None))


def offsets(rows: pa.RecordBatch) -> list[int]:
    return [place["offset"] for place in rows.column(COORDINATES).to_pylist()]


def test_where_on_true_false_and_null_keeps_the_true() -> None:
    assert offsets(Where("amount >= 0").apply(ROWS).good) == [0]


def test_where_that_gives_no_boolean_is_refused() -> None:
    with pytest.raises(DefinitionError) as caught:
        Where("amount").output(SCHEMA)
    assert caught.value.code == "EXPRESSION_INVALID"
    assert "DOUBLE" in caught.value.summary


def test_derive_of_new_and_existing_columns_keeps_places_and_coordinates_last() -> None:
    derive = Derive({"Name": "coalesce(name, '?')", "half": "amount / 2", "was": "name"})
    good = derive.apply(ROWS).good
    assert good.schema.names == ["id", "Name", "amount", "half", "was", COORDINATES] == derive.output(SCHEMA).names
    assert good.column("Name").to_pylist() == ["a", "?", "c"]
    assert good.column("was").to_pylist() == ["a", None, "c"]
    assert good.schema.field("id") == SCHEMA.field("id")


def test_derive_without_coordinates_appends_new_columns() -> None:
    assert Derive({"x": "1"}).output(pa.schema([("id", pa.int64())])).names == ["id", "x"]


def test_cast_changes_the_type_in_place() -> None:
    good = Cast({"ID": "DECIMAL(20,1)"}).apply(ROWS).good
    assert good.schema.names == ["ID", "name", "amount", COORDINATES]
    assert good.schema.field("ID").type == pa.decimal128(20, 1)


def test_cast_that_may_fail_needs_spark() -> None:
    cast = Cast({"name": "TIMESTAMP"})
    assert "CAST(`name` AS TIMESTAMP)" in (cast.no_arrow_form(SCHEMA) or "")
    assert cast.select(SCHEMA.names) == (
        "SELECT `id`, (CAST(`name` AS TIMESTAMP)\n) AS `name`, `amount`, `_penstock` FROM input"
    )


def test_rename_of_two_columns_swaps_them() -> None:
    good = Rename({"id": "name", "Name": "id"}).apply(ROWS).good
    assert good.schema.names == ["name", "id", "amount", COORDINATES]
    assert good.column("name").to_pylist() == [1, 2, 3]


def test_drop_leaves_the_others_and_the_coordinates() -> None:
    assert Drop(["NAME", "id"]).apply(ROWS).good.schema.names == ["amount", COORDINATES]


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: Rename({"nam": "x"}).select(SCHEMA.names), "COLUMN_UNKNOWN"),
        (lambda: Rename({"id": "AMOUNT"}).output(SCHEMA), "COLUMN_DUPLICATE"),
        (lambda: Rename({"id": "_Penstock"}), "COLUMN_RESERVED"),
        (lambda: Drop(["nam"]).output(SCHEMA), "COLUMN_UNKNOWN"),
        (lambda: Drop(["_penstock"]), "COLUMN_RESERVED"),
        (lambda: Drop(["a"]).select(["a", "A"]), "COLUMN_AMBIGUOUS"),
        (lambda: Derive({"_penstock": "1"}), "COLUMN_RESERVED"),
        (lambda: Derive({"a": "1", "A": "2"}), "COLUMN_DUPLICATE"),
        (lambda: Derive({"a": "1", "b": "a + 1"}).output(SCHEMA), "COLUMN_UNKNOWN"),
        (lambda: Cast({"nam": "INT"}).output(SCHEMA), "COLUMN_UNKNOWN"),
        (lambda: Where("nam = 'a'").output(SCHEMA), "COLUMN_UNKNOWN"),
        (lambda: Dedupe(["nam"]).no_arrow_form(SCHEMA), "COLUMN_UNKNOWN"),
        (lambda: Dedupe([]), "DEDUPE_WITHOUT_KEYS"),
        (lambda: Derive({"a": "CAST(amount AS STRING)"}).apply(ROWS), "TRANSFORM_NEEDS_SPARK"),
        (lambda: Sql("SELECT 1").apply(ROWS), "TRANSFORM_NEEDS_SPARK"),
    ],
)
def test_transform_that_cannot_be_made_or_applied_says_why(make: Callable[[], object], code: str) -> None:
    with pytest.raises(PenstockError) as caught:
        make()
    assert caught.value.code == code


@pytest.mark.parametrize(
    "transform",
    [
        Where("amount >= 0"),
        Derive({"x": "year(DATE '2024-01-01')"}),
        Rename({"id": "x"}),
        Drop(["id"]),
        Cast({"id": "STRING"}),
        Dedupe(["id"]),
    ],
    ids=repr,
)
def test_transform_sent_to_a_task_after_use_is_small_and_does_the_same(transform: Any) -> None:
    before = transform.apply(ROWS).good
    sent = pickle.dumps(transform)
    assert len(sent) < 300
    assert pickle.loads(sent).apply(ROWS).good.equals(before)


def test_transform_given_another_schema_compiles_again() -> None:
    where = Where("amount > 0")
    assert where.apply(ROWS).good.num_rows == 1
    moved = ROWS.select(["amount", "id", COORDINATES])
    assert where.apply(moved).good.num_rows == 1


def test_select_of_where_quotes_names_and_ends_comments() -> None:
    select = Where("a > 1 -- why").select(["a", "odd `name`"])
    assert select == "SELECT `a`, `odd ``name``` FROM input AS input WHERE (a > 1 -- why\n)"

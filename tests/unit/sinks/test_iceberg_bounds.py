from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from penstock.model import DELETES, MergeRules
from penstock.sinks.iceberg.bounds import FEW, bounds_of, conditions
from penstock.sinks.spark_sql import MergeTerms, quoted


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def told(*parts: pa.RecordBatch, keys: tuple[str, ...] = ("k",), never_changing: tuple[str, ...] = ()) -> list[str]:
    names = (*keys, *never_changing)
    found = [{name: bounds for name in names if (bounds := bounds_of(part, name))} for part in parts]
    terms = MergeTerms(MergeRules(keys), quoted).on(conditions(found, names, "t")).split(" AND (")
    assert terms[0] == " AND ".join(f"t.`{key}` = s.`{key}`" for key in keys)
    return [term.removesuffix(")") for term in terms[1:]]


@pytest.mark.parametrize(
    ("values", "condition"),
    [
        (pa.array([3, -1, 3]), "t.`k` IN (-1, 3)"),
        (pa.array(["a'b", "c\\"]), "t.`k` IN ('a\\'b', 'c\\\\')"),
        (pa.array([date(1970, 1, 3)]), "t.`k` IN (date_from_unix_date(2))"),
        (pa.array([datetime(1970, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")), "t.`k` IN (timestamp_micros(0))"),
        (pa.array(range(FEW + 1)), f"t.`k` BETWEEN 0 AND {FEW}"),
    ],
)
def test_conditions_of_a_key_name_the_values_or_their_bounds(values: pa.Array, condition: str) -> None:
    assert told(batch(k=values)) == [condition]


def test_conditions_over_several_parts_cover_all_of_them() -> None:
    assert told(batch(k=[1]), batch(k=[9, 5])) == ["t.`k` IN (1, 5, 9)"]
    assert told(batch(k=list(range(FEW + 1))), batch(k=[-7])) == [f"t.`k` BETWEEN -7 AND {FEW}"]


@pytest.mark.parametrize("values", [[1.5], [True], [b"x"]])
def test_conditions_of_a_type_that_is_ordered_otherwise_are_left_out(values: list[Any]) -> None:
    assert told(batch(k=values)) == []


def test_conditions_of_a_column_that_never_changes_let_rows_without_it_through() -> None:
    parts = batch(k=[1, 2], day=["a", None])
    assert told(parts, never_changing=("day",)) == ["t.`k` IN (1, 2)", "t.`day` IN ('a') OR t.`day` IS NULL"]


def test_conditions_of_a_column_that_a_delete_leaves_out_are_left_out() -> None:
    deleting = pa.RecordBatch.from_pydict({"k": [1, 2], "day": ["a", None], DELETES: [False, True]})
    assert told(deleting, never_changing=("day",)) == ["t.`k` IN (1, 2)"]
    assert told(batch(k=[1], day=["a"]), batch(k=[2]), never_changing=("day",)) == ["t.`k` IN (1, 2)"]

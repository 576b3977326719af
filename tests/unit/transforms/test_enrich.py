"""Enriching over Arrow: matches as Spark's `=` has them, misses, duplicates, and a table that changes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DefinitionError, MissingError, TerminalError
from penstock.model import COORDINATES, COORDINATES_FIELD, OffsetRange, Split
from penstock.transforms import Enrich, LocalRows, checked_keys, enrich_steps
from penstock.transforms.lookup import KeyIndex

NAN = float("nan")
CUSTOMERS = pa.table(
    {"id": pa.array([1, 2, 3, None], pa.int64()), "name": ["ann", "bob", None, "nobody"], "tier": [7, 8, 9, 0]}
)


def batch(**columns: pa.Array) -> pa.RecordBatch:
    count = len(next(iter(columns.values())))
    places = [{"topic": "t", "partition": 0, "offset": offset, "timestamp": 0} for offset in range(count)]
    whole = {**columns, COORDINATES: pa.array(places, COORDINATES_FIELD.type)}
    return pa.RecordBatch.from_arrays(list(whole.values()), names=list(whole))


def ids(*values: int | None) -> pa.RecordBatch:
    return batch(customer=pa.array(values, pa.int64()))


def run(
    rows: pa.RecordBatch,
    table: pa.Table = CUSTOMERS,
    on: Mapping[str, str] | None = None,
    take: Mapping[str, str] | None = None,
    **how: Any,
) -> Split:
    """All steps one after another; the split that leaves."""
    first, *others = enrich_steps("customers", on or {"customer": "id"}, take, table.schema, **how)
    assert isinstance(first, Enrich)
    held = first.with_rows(LocalRows(first.pack(table)))
    split, schema = held.apply(rows), held.output(rows.schema)
    assert split.good.schema.equals(schema)
    for step in others:
        split, schema = step.apply(split.good), step.output(schema)
        assert split.good.schema.equals(schema)
    return split


def values(split: Split, *columns: str) -> list[tuple[object, ...]]:
    return [tuple(row[column] for column in columns) for row in split.good.to_pylist()]


def test_enrich_of_known_keys_adds_columns_before_the_coordinates() -> None:
    good = run(ids(2, 1)).good
    assert good.schema.names == ["customer", "name", "tier", COORDINATES]
    assert good.select(["customer", "name", "tier"]).to_pylist() == [
        {"customer": 2, "name": "bob", "tier": 8},
        {"customer": 1, "name": "ann", "tier": 7},
    ]


def test_enrich_of_unknown_and_null_keys_keeps_the_rows_with_nulls() -> None:
    assert values(run(ids(9, None, 3, 1)), "customer", "name", "tier") == [
        (9, None, None),
        (None, None, None),
        (3, None, 9),
        (1, "ann", 7),
    ]


def test_enrich_on_miss_drop_leaves_the_rows_out() -> None:
    split = run(ids(9, 2, None, 1), on_miss="drop")
    assert values(split, "customer", "name") == [(2, "bob"), (1, "ann")]
    assert not split.refused


def test_enrich_on_miss_quarantine_refuses_each_record_once() -> None:
    split = run(ids(9, 2, None), on_miss="quarantine")
    assert values(split, "customer", "name") == [(2, "bob")]
    assert split.good.schema.names == ["customer", "name", "tier", COORDINATES]
    assert [refusal.record for refusal in split.refused] == [OffsetRange("t", 0, 0, 1), OffsetRange("t", 0, 2, 3)]
    assert {refusal.code for refusal in split.refused} == {"ENRICH_MISS"}
    assert "9" not in split.refused[0].message


def test_enrich_on_miss_quarantine_of_rows_without_coordinates_is_refused() -> None:
    _, unmatched = enrich_steps("customers", {"a": "id"}, None, CUSTOMERS.schema, on_miss="quarantine")
    with pytest.raises(DefinitionError) as raised:
        unmatched.output(pa.schema([("a", pa.int64())]))
    assert raised.value.code == "ENRICH_NEEDS_COORDINATES"


def test_enrich_with_named_columns_takes_them_under_their_new_names() -> None:
    split = run(ids(1), take={"customer_name": "NAME", "again": "name", "key": "id"})
    assert values(split, "customer_name", "again", "key") == [("ann", "ann", 1)]


TWICE = pa.table({"id": [5, 5, 5, 6], "name": ["z", None, "a", "only"], "score": [1.0, NAN, 2.0, 0.0]})


def test_enrich_with_several_rows_for_a_key_fails_with_counts_only() -> None:
    with pytest.raises(MissingError) as raised:
        run(ids(5), TWICE)
    assert raised.value.code == "TABLE_DUPLICATE_KEYS"
    assert raised.value.context == {"keys": "id"}
    assert "1 key has more than one row" in str(raised.value)


def test_enrich_on_duplicate_first_takes_the_least_row() -> None:
    assert values(run(ids(6, 5), TWICE, on_duplicate="first"), "name") == [("only",), (None,)]
    assert values(run(ids(5), TWICE, take={"score": "score"}, on_duplicate="first"), "score") == [(1.0,)]


def test_enrich_on_duplicate_all_gives_one_row_for_each_match() -> None:
    split = run(ids(9, 5, 6, 5), TWICE, on_duplicate="all", take={"name": "name"})
    assert values(split, "customer", "name") == [
        (9, None),
        (5, "z"),
        (5, None),
        (5, "a"),
        (6, "only"),
        (5, "z"),
        (5, None),
        (5, "a"),
    ]
    offsets = [place["offset"] for place in split.good.column(COORDINATES).to_pylist()]
    assert offsets == [0, 1, 1, 1, 2, 3, 3, 3]
    assert values(run(ids(9, 6), TWICE, on_duplicate="all", on_miss="drop"), "customer") == [(6,)]


def test_checked_keys_of_null_keys_counts_no_duplicate() -> None:
    table = pa.table({"id": pa.array([None, None, 1], pa.int64()), "name": ["a", "b", "c"]})
    kept, duplicates = checked_keys(table, ["id"], "fail", "customers")
    assert (kept.to_pylist(), duplicates) == ([{"id": 1, "name": "c"}], 0)


def test_checked_keys_with_first_orders_nan_above_and_null_below_all() -> None:
    table = pa.table({"id": [1, 1, 1, 2, 2], "score": [NAN, None, 0.0, NAN, 3.0]})
    kept, duplicates = checked_keys(table, ["id"], "first", "customers")
    assert (kept.to_pylist(), duplicates) == ([{"id": 1, "score": None}, {"id": 2, "score": 3.0}], 2)


KEYS = [
    pa.array([NAN, -0.0, 1.5], pa.float64()),
    pa.array([NAN, -0.0, 1.5], pa.float32()),
    pa.array(["", "é", "x" * 500], pa.string()),
    pa.array([b"", b"\x00", b"\x00\x00"], pa.binary()),
    pa.array([Decimal("1.50"), Decimal("-1.50"), Decimal("0.00")], pa.decimal128(20, 2)),
    pa.array([date(1, 1, 1), date(1970, 1, 1), date(9999, 1, 1)], pa.date32()),
    pa.array([datetime(1, 1, 1), datetime(1970, 1, 1), datetime(9999, 1, 1)], pa.timestamp("us", tz="UTC")),
    pa.array([-128, 0, 127], pa.int8()),
]


@pytest.mark.parametrize("keys", KEYS, ids=lambda keys: str(keys.type))
def test_enrich_by_any_plain_type_finds_each_key(keys: pa.Array) -> None:
    table = pa.table({"id": keys, "place": [0, 1, 2]})
    rows = batch(customer=pa.concat_arrays([keys[::-1], pa.nulls(1, keys.type)]))
    assert values(run(rows, table), "place") == [(2,), (1,), (0,), (None,)]


def test_enrich_by_booleans_finds_each_key() -> None:
    table = pa.table({"id": [True, False], "place": [0, 1]})
    assert values(run(batch(customer=pa.array([False, None, True])), table), "place") == [(1,), (None,), (0,)]


def test_enrich_by_zeros_of_both_signs_and_any_nan_matches_as_spark_does() -> None:
    other_nan = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
    table = pa.table({"id": [0.0, NAN], "place": [0, 1]})
    assert values(run(batch(customer=pa.array([-0.0, other_nan])), table), "place") == [(0,), (1,)]


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (pa.array([1, 7], pa.int32()), pa.array([7], pa.int64())),
        (pa.array([1, 7], pa.int64()), pa.array([7], pa.int16())),
        (pa.array([1, 7], pa.int64()), pa.array([Decimal("7.00")], pa.decimal128(10, 2))),
        (pa.array([1, 7], pa.int32()), pa.array([7.0], pa.float64())),
        (pa.array([1, 7], pa.date32()), pa.array([7 * 86_400_000_000], pa.timestamp("us", tz="UTC"))),
    ],
    ids=lambda keys: str(keys.type),
)
def test_enrich_by_keys_of_two_types_compares_them_in_the_wider(mine: pa.Array, theirs: pa.Array) -> None:
    table = pa.table({"id": theirs, "place": [0]})
    assert values(run(batch(customer=mine), table), "place") == [(None,), (0,)]


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (pa.string(), pa.int64()),
        (pa.int64(), pa.float64()),
        (pa.bool_(), pa.int32()),
        (pa.string(), pa.binary()),
        (pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.decimal128(10, 2), pa.float64()),
    ],
    ids=str,
)
def test_enrich_by_keys_that_do_not_compare_names_both_types(mine: pa.DataType, theirs: pa.DataType) -> None:
    step = Enrich("customers", {"a": "id"}, None, pa.schema([("id", theirs), ("name", pa.string())]))
    with pytest.raises(DefinitionError) as raised:
        step.output(pa.schema([("a", mine)]))
    assert raised.value.code == "ENRICH_KEY_TYPES"
    assert {"row", "table"} <= raised.value.context.keys()


def test_enrich_by_a_column_that_the_table_lacks_names_those_it_has() -> None:
    for on, take in ({"a": "ident"}, None), ({"a": "id"}, {"b": "surname"}):
        with pytest.raises(MissingError) as raised:
            Enrich("customers", on, take, CUSTOMERS.schema)
        assert raised.value.code == "TABLE_COLUMN_MISSING"
        assert raised.value.context["columns of the table"] == "id, name, tier"


def test_enrich_with_a_name_that_is_there_is_refused() -> None:
    step = Enrich("customers", {"customer": "id"}, {"Customer": "name"}, CUSTOMERS.schema)
    with pytest.raises(DefinitionError) as raised:
        step.output(ids(1).schema)
    assert raised.value.code == "COLUMN_DUPLICATE"


def test_enrich_with_a_column_of_another_type_than_before_is_refused() -> None:
    step = Enrich("customers", {"customer": "id"}, None, CUSTOMERS.schema)
    with pytest.raises(MissingError) as raised:
        step.pack(CUSTOMERS.set_column(2, "tier", pa.array(["a", "b", "c", "d"])))
    assert raised.value.code == "TABLE_COLUMN_CHANGED"
    with pytest.raises(MissingError) as raised:
        step.pack(CUSTOMERS.drop_columns(["name"]))
    assert raised.value.code == "TABLE_COLUMN_MISSING"


def test_enrich_without_rows_needs_spark_and_knows_its_columns() -> None:
    step = Enrich("customers", {"customer": "id"}, None, CUSTOMERS.schema)
    assert "larger than its `memory`" in str(step.no_arrow_form(ids(1).schema))
    assert step.output(ids(1).schema).names == ["customer", "name", "tier", COORDINATES]
    with pytest.raises(TerminalError):
        step.apply(ids(1))
    held = step.with_rows(LocalRows(step.pack(CUSTOMERS)))
    assert held.no_arrow_form(ids(1).schema) is None
    assert held.select(ids(1).schema.names) is None


def test_enrich_with_newer_rows_of_the_table_uses_them() -> None:
    assert values(run(ids(1)), "name") == [("ann",)]
    newer = CUSTOMERS.set_column(1, "name", pa.array(["anna", "bob", None, "x"]))
    assert values(run(ids(1), newer), "name") == [("anna",)]


def test_enrich_with_an_empty_table_misses_all() -> None:
    assert values(run(ids(1, None), CUSTOMERS.slice(0, 0)), "name") == [(None,), (None,)]
    assert run(ids(), CUSTOMERS).good.num_rows == 0


def test_enrich_with_a_sink_table_leaves_its_coordinates_there() -> None:
    table = CUSTOMERS.append_column(COORDINATES_FIELD, pa.nulls(4, COORDINATES_FIELD.type))
    assert run(ids(1), table).good.schema.names == ["customer", "name", "tier", COORDINATES]


def test_enrich_without_its_rows_pickles_small() -> None:
    step = Enrich("customers", {"customer": "id"}, None, CUSTOMERS.schema)
    assert len(pickle.dumps(step)) < 2_000
    assert pickle.loads(pickle.dumps(step)).output(ids(1).schema) == step.output(ids(1).schema)


def test_enrich_of_a_slice_reads_its_own_rows() -> None:
    table = pa.table({"id": ["a", "bb", "ccc"], "place": [0, 1, 2]})
    rows = batch(customer=pa.array(["ccc", None, "a", "bb"])).slice(1, 3)
    assert values(run(rows, table), "place") == [(None,), (0,), (1,)]


TEXTS = st.one_of(st.none(), st.text(max_size=20), st.sampled_from(["x" * 8, "x" * 9, "y" * 127, "y" * 128, "y" * 200]))


@settings(max_examples=60, deadline=None)
@given(
    held=st.lists(st.tuples(TEXTS, st.integers(-3, 3) | st.none()), max_size=40),
    asked=st.lists(st.tuples(TEXTS, st.integers(-3, 3) | st.none()), max_size=40),
)
def test_key_index_of_any_keys_finds_what_a_dictionary_finds(
    held: list[tuple[str | None, int | None]], asked: list[tuple[str | None, int | None]]
) -> None:
    def columns(keys: list[tuple[str | None, int | None]]) -> list[pa.Array]:
        return [pa.array([key[0] for key in keys], pa.string()), pa.array([key[1] for key in keys], pa.int32())]

    expected: dict[tuple[str | None, int | None], list[int]] = {}
    for place, key in enumerate(held):
        if None not in key:
            expected.setdefault(key, []).append(place)
    index = KeyIndex(columns(held))
    numbers = index.find(columns(asked))
    assert [n >= 0 for n in numbers.tolist()] == [key in expected for key in asked]
    matched = [key for key in asked if key in expected]
    owners, places = index.every(numbers[numbers >= 0])
    assert [(matched[o], p) for o, p in zip(owners.tolist(), places.tolist(), strict=True)] == [
        (key, place) for key in matched for place in expected[key]
    ]


def test_key_index_of_keys_with_equal_hashes_tells_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.transforms.lookup._hash", lambda keys: np.full(len(keys[0]), 2**64 - 1, np.uint64))
    index = KeyIndex([pa.array(["a", "b", "c"])])
    numbers = index.find([pa.array(["c", "x", "a", None, "b"])])
    assert numbers[[1, 3]].tolist() == [-1, -1]
    assert index.first(numbers[[0, 2, 4]]).tolist() == [2, 0, 1]


def test_enrich_without_keys_is_refused() -> None:
    with pytest.raises(DefinitionError) as raised:
        Enrich("customers", {}, None, CUSTOMERS.schema)
    assert raised.value.code == "ENRICH_WITHOUT_KEYS"


def test_enrich_on_duplicate_first_of_a_column_without_an_order_is_refused() -> None:
    schema = pa.schema([("id", pa.int64()), ("names", pa.map_(pa.string(), pa.string()))])
    Enrich("customers", {"customer": "id"}, None, schema, on_duplicate="all")
    with pytest.raises(DefinitionError) as raised:
        Enrich("customers", {"customer": "id"}, None, schema, on_duplicate="first")
    assert raised.value.code == "ENRICH_WITHOUT_ORDER"
    assert raised.value.context["column"].startswith("names ")


def test_enrich_on_miss_quarantine_of_a_row_that_is_of_no_record_stops_the_batch() -> None:
    rows = ids(2, 9)
    nobody = pa.nulls(2, COORDINATES_FIELD.type)
    made = rows.set_column(1, COORDINATES, nobody)
    assert values(run(made.slice(0, 1), on_miss="quarantine"), "customer", "name") == [(2, "bob")]
    with pytest.raises(TerminalError) as raised:
        run(made, on_miss="quarantine")
    assert raised.value.code == "ENRICH_WITHOUT_RECORD"

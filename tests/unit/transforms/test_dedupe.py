"""Deduplication: the newest row of each key, and buckets in which equal keys meet."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import COORDINATES, COORDINATES_FIELD
from penstock.transforms import Dedupe

NAN = float("nan")
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]


def batch(keys: dict[str, pa.Array], places: list[tuple[int, int, str, int]] | None = None) -> pa.RecordBatch:
    count = len(next(iter(keys.values())))
    places = places or [(offset, offset, "t", 0) for offset in range(count)]
    coordinates = [
        {"offset": offset, "timestamp": at, "topic": topic, "partition": partition}
        for offset, at, topic, partition in places
    ]
    columns = {**keys, COORDINATES: pa.array(coordinates, COORDINATES_FIELD.type)}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def kept(rows: pa.RecordBatch, *keys: str) -> list[int]:
    return [place["offset"] for place in Dedupe(keys).apply(rows).good.column(COORDINATES).to_pylist()]


def test_dedupe_of_repeated_keys_keeps_the_greatest_offset_in_order() -> None:
    rows = batch({"id": pa.array([1, 2, 1, None, 3, None])})
    assert kept(rows, "id") == [1, 2, 4, 5]


def test_dedupe_of_distinct_keys_keeps_the_rows_as_they_are() -> None:
    rows = batch({"id": pa.array([3, 1, 2])})
    assert Dedupe(["id"]).apply(rows).good.equals(rows)


@pytest.mark.parametrize("count", [0, 1])
def test_dedupe_of_hardly_any_rows_keeps_them(count: int) -> None:
    rows = batch({"id": pa.array(range(count), pa.int64())})
    assert Dedupe(["id"]).apply(rows).good.num_rows == count
    assert Dedupe(["id"]).buckets(rows, 4).type == pa.int32()


def test_dedupe_of_floats_takes_zeros_and_nans_as_one_key_each() -> None:
    rows = batch({"x": pa.array([0.0, -0.0, NAN, OTHER_NAN, None, None, 1.0])})
    assert kept(rows, "x") == [1, 3, 5, 6]


def test_dedupe_of_equal_offsets_goes_by_timestamp_topic_and_partition() -> None:
    places = [(5, 1, "t", 0), (5, 2, "a", 0), (5, 2, "b", 1), (5, 2, "b", 0), (4, 9, "z", 9), (5, 1, "t", 1)]
    rows = batch({"id": pa.array([1, 1, 1, 1, 1, 2])}, places)
    good = Dedupe(["id"]).apply(rows).good.column(COORDINATES).to_pylist()
    assert [(p["offset"], p["topic"], p["partition"]) for p in good] == [(5, "b", 1), (5, "t", 1)]


def test_dedupe_by_a_nested_key_needs_spark() -> None:
    schema = pa.schema([pa.field("tags", pa.list_(pa.string())), COORDINATES_FIELD])
    assert "LIST" in (Dedupe(["TAGS"]).no_arrow_form(schema) or "")


ANY_KEY = st.tuples(st.sampled_from([None, 1, 2, -(2**63)]), st.sampled_from([None, "", "a", "é"]))
ANY_PLACE = st.tuples(st.integers(0, 5), st.integers(0, 2), st.sampled_from("ab"), st.integers(0, 3))


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(ANY_PLACE, ANY_KEY, min_size=1, max_size=40))
def test_dedupe_of_any_rows_keeps_the_newest_of_each_key(rows: dict[Any, Any]) -> None:
    places = list(rows)
    keys = {"a": pa.array([k[0] for k in rows.values()], pa.int64()), "b": pa.array([k[1] for k in rows.values()])}
    newest: dict[Any, Any] = {}
    for place, key in rows.items():
        newest[key] = max(newest.get(key, place), place)
    good = Dedupe(["a", "b"]).apply(batch(keys, places)).good
    found = {(r["a"], r["b"]): r[COORDINATES] for r in good.to_pylist()}
    assert good.num_rows == len(newest)
    assert {key: (p["offset"], p["topic"], p["partition"]) for key, p in found.items()} == {
        key: (offset, topic, partition) for key, (offset, _, topic, partition) in newest.items()
    }


KEYS = {
    "long": pa.array([1, 2, None, -1, 2**63 - 1], pa.int64()),
    "byte": pa.array([1, 2, None, -1, 127], pa.int8()),
    "text": pa.array(["", "a", None, "é" * 40, "x" * 33], pa.string()),
    "data": pa.array([b"", b"a", None, b"\xff" * 100, b"\x00"], pa.binary()),
    "real": pa.array([0.0, 1.5, None, NAN, math.inf], pa.float64()),
    "single": pa.array([0.0, 1.5, None, NAN, math.inf], pa.float32()),
    "flag": pa.array([True, False, None, True, False]),
    "day": pa.array([0, 1, None, -1, 2**31 - 1], pa.date32()),
    "at": pa.array([0, 1, None, -1, 2**62], pa.timestamp("us", tz="UTC")),
    "price": pa.array(
        [Decimal("0.00"), Decimal("1.50"), None, Decimal("-1.50"), Decimal("2.00")], pa.decimal128(38, 2)
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_buckets_of_equal_keys_in_other_batches_and_slices_are_equal(name: str) -> None:
    dedupe, rows = Dedupe([name]), batch({name: KEYS[name]})
    whole = dedupe.buckets(rows, 1_000).to_pylist()
    assert whole == [dedupe.buckets(rows.slice(n, 1), 1_000).to_pylist()[0] for n in range(rows.num_rows)]
    assert whole[1:4] == dedupe.buckets(rows.slice(1, 3), 1_000).to_pylist()
    assert all(0 <= bucket < 1_000 for bucket in whole)


def test_buckets_of_zeros_and_nans_are_those_of_one_key() -> None:
    rows = batch({"x": pa.array([0.0, -0.0, NAN, OTHER_NAN])})
    zero, minus_zero, nan, other_nan = Dedupe(["x"]).buckets(rows, 1_000_000).to_pylist()
    assert (zero, nan) == (minus_zero, other_nan)
    assert zero != nan


def test_buckets_in_another_process_are_equal() -> None:
    program = (
        "import pyarrow as pa; from penstock.transforms import Dedupe;"
        "rows = pa.RecordBatch.from_arrays([pa.array(range(50)), pa.array(map(str, range(50)))], names=['a', 'b']);"
        "print(Dedupe(['a', 'b']).buckets(rows, 97).to_pylist())"
    )
    runs = {subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout for _ in "12"}
    rows = pa.RecordBatch.from_arrays([pa.array(range(50)), pa.array(map(str, range(50)))], names=["a", "b"])
    assert {run.decode().strip() for run in runs} == {str(Dedupe(["a", "b"]).buckets(rows, 97).to_pylist())}


@pytest.mark.parametrize(
    "keys",
    [
        pa.array(range(0, 80_000, 8)),
        pa.array([f"customer-{n:06}" for n in range(10_000)]),
        pa.array([f"https://example.org/a/rather/long/path/to/item/{n}" for n in range(10_000)]),
        pa.array([n / 10 for n in range(10_000)]),
    ],
    ids=["strided", "prefixed", "long", "fractions"],
)
def test_buckets_of_many_keys_are_spread_evenly(keys: pa.Array) -> None:
    counts = Dedupe(["k"]).buckets(batch({"k": keys}), 8).value_counts().field("counts").to_pylist()
    assert len(counts) == 8
    assert max(counts) < 1.2 * len(keys) / 8

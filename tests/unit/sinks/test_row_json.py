"""Rows as JSON: what is written, and that the JSON decoder reads back the same row."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.decoders import JsonDecoder
from penstock.model import RAW_SCHEMA
from penstock.sinks.row_json import json_rows, texts

UTC_TIME = pa.timestamp("us", tz="UTC")


def written(kind: pa.DataType, values: list[Any]) -> list[str]:
    return list(json_rows(pa.RecordBatch.from_arrays([pa.array(values, kind)], ["x"])).to_pylist())


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.int64(), 2**62, "4611686018427387904"),
        (pa.float64(), 0.1, "0.1"),
        (pa.float64(), float("nan"), "null"),
        (pa.float32(), float("-inf"), "null"),
        (pa.bool_(), True, "true"),
        (pa.string(), 'a"\\\n\x00\x1fü\u2028', '"a\\"\\\\\\n\\u0000\\u001fü\u2028"'),
        (pa.string(), "", '""'),
        (pa.binary(), b"\xff\x00", '"/wA="'),
        (pa.date32(), date(1, 1, 1), '"0001-01-01"'),
        (UTC_TIME, datetime(2026, 1, 1, 2, 3, 4, 5, tzinfo=UTC), '"2026-01-01T02:03:04.000005Z"'),
        (pa.timestamp("us"), datetime(1960, 1, 1), '"1960-01-01T00:00:00.000000"'),
        (pa.decimal128(38, 10), Decimal("0.0000000001"), "0.0000000001"),
        (
            pa.decimal128(38, 2),
            Decimal("-123456789012345678901234567890123456.99"),
            "-123456789012345678901234567890123456.99",
        ),
        (pa.list_(pa.decimal128(5, 1)), [Decimal("1.5"), None], "[1.5,null]"),
        (pa.list_(pa.list_(pa.string())), [["a"], [], None], '[["a"],[],null]'),
        (pa.map_(pa.string(), pa.int32()), [('k"', 1), ("", None)], '{"k\\"":1,"":null}'),
        (pa.map_(pa.int32(), pa.string()), [(1, "a")], '{"1":"a"}'),
        (pa.struct([("a b", pa.binary()), ("n", pa.int8())]), {"a b": b"x", "n": None}, '{"a b":"eA==","n":null}'),
        (pa.large_string(), "a", '"a"'),
        (pa.null(), None, "null"),
    ],
)
def test_value_of_each_kind_is_written_as_json(kind: pa.DataType, value: Any, text: str) -> None:
    assert written(kind, [value, None]) == [f'{{"x":{text}}}', '{"x":null}']


def test_columns_keep_their_order_and_odd_names_are_escaped() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ['b"', "a"])
    assert json_rows(rows).to_pylist() == ['{"b\\"":1,"a":2}']


def test_slice_of_nested_rows_is_written_as_the_slice_alone() -> None:
    kind = pa.struct([("l", pa.list_(pa.string())), ("m", pa.map_(pa.string(), pa.int64()))])
    values = [{"l": [str(n)] * n, "m": [(str(n), n)]} if n % 3 else None for n in range(20)]
    rows = pa.RecordBatch.from_arrays([pa.array(values, kind)], ["x"])
    assert json_rows(rows.slice(7, 6)).to_pylist() == json_rows(rows).to_pylist()[7:13]


def test_texts_of_scalars_have_no_quotes_and_nulls_stay() -> None:
    assert texts(pa.array([date(2026, 1, 1), None])).to_pylist() == ["2026-01-01", None]
    assert texts(pa.array([True, None])).to_pylist() == ["true", None]
    assert texts(pa.array([{"a": 1}, None])).to_pylist() == ['{"a":1}', None]


SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pa.float32(), st.floats(allow_nan=False, allow_infinity=False, width=32)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=12)),
    (pa.binary(), st.binary(max_size=9)),
    (pa.date32(), st.dates()),
    (UTC_TIME, st.datetimes(timezones=st.just(UTC))),
    (pa.timestamp("us"), st.datetimes()),
    (pa.decimal128(38, 9), st.decimals(-(10**28), 10**28, places=9)),
]


@st.composite
def columns(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A type and a strategy for its values, nulls among them."""
    shape = draw(st.sampled_from(["scalar", "scalar", "list", "map", "struct"] if depth else ["scalar"]))
    if shape == "scalar":
        kind, values = draw(st.sampled_from(SCALARS))
    elif shape == "list":
        inner, items = draw(columns(depth=depth - 1))
        kind, values = pa.list_(inner), st.lists(items, max_size=3)
    elif shape == "map":
        inner, items = draw(columns(depth=depth - 1))
        kind = pa.map_(pa.string(), inner)
        values = st.dictionaries(st.text('ab"\\é', max_size=3), items, max_size=3).map(lambda d: list(d.items()))
    else:
        fields = draw(st.lists(columns(depth=depth - 1), min_size=1, max_size=3))
        kind = pa.struct([(f"f{n}", inner) for n, (inner, _) in enumerate(fields)])
        values = st.fixed_dictionaries({f"f{n}": items for n, (_, items) in enumerate(fields)})
    return kind, st.none() | values


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_row_is_read_back_by_the_json_decoder_as_it_was(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(columns(), min_size=1, max_size=4))
    schema = pa.schema([pa.field(f"c{n}", kind) for n, (kind, _) in enumerate(kinds)])
    row = st.fixed_dictionaries({f"c{n}": values for n, (_, values) in enumerate(kinds)})
    rows = pa.RecordBatch.from_pylist(data.draw(st.lists(row, min_size=1, max_size=5)), schema=schema)
    values = json_rows(rows).cast(pa.binary())
    assert all(json.loads(value) is not None for value in values.to_pylist())
    raw = {name: pa.nulls(len(values), RAW_SCHEMA.field(name).type) for name in RAW_SCHEMA.names}
    split = JsonDecoder(schema).decode(pa.RecordBatch.from_pydict({**raw, "value": values}, schema=RAW_SCHEMA))
    assert split.bad.num_rows == 0, split.bad.to_pylist()
    assert split.good.select(schema.names).to_pylist() == rows.to_pylist()

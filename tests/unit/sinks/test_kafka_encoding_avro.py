"""Rows to Avro, read back by fastavro, which is not ours: every type, random rows, and what must be refused."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.sinks.kafka.encode.avro import AvroRows, avro_schema, avro_type
from penstock.sinks.kafka.encode.shapes import UnfitError

ZONED, LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def read(text: str, encoded: pa.Array) -> list[Any]:
    schema = fastavro.parse_schema(json.loads(text))
    values = []
    for body in encoded.to_pylist():
        source = io.BytesIO(body)
        values.append(fastavro.schemaless_reader(source, schema, None))
        assert not source.read()
    return values


def plain(value: Any, kind: pa.DataType) -> Any:
    """A value of Arrow as fastavro gives it."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: plain(item, kind.item_type) for key, item in value}
    if pa.types.is_list(kind):
        return [plain(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: plain(value[field.name], field.type) for field in kind}
    return value


def rows_of(columns: pa.Schema, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=columns)


def expected(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    return [{f.name: plain(row[f.name], f.type) for f in rows.schema} for row in rows.to_pylist()]


def exact(number: int, scale: int) -> Decimal:
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text()),
    (pa.binary(), st.binary(max_size=20)),
    (pa.date32(), st.dates()),
    (ZONED, MOMENTS.map(lambda at: at.replace(tzinfo=UTC))),
    (LOCAL, MOMENTS),
    (pa.decimal128(38, 6), st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: exact(n, 6))),
    (pa.decimal128(5, 0), st.integers(-99999, 99999).map(Decimal)),
]


Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def nested(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    def listed(of: Typed) -> Typed:
        return pa.list_(of[0]), st.lists(st.none() | of[1], max_size=3)

    def mapped(of: Typed) -> Typed:
        pairs = st.dictionaries(st.text(max_size=5), st.none() | of[1], max_size=3).map(lambda d: list(d.items()))
        return pa.map_(pa.string(), of[0]), pairs

    def structured(parts: list[Typed]) -> Typed:
        fields = [pa.field(f"f{n}", kind) for n, (kind, _) in enumerate(parts)]
        values = {f"f{n}": st.none() | of for n, (_, of) in enumerate(parts)}
        return pa.struct(fields), st.fixed_dictionaries(values)

    return inner.map(listed) | inner.map(mapped) | st.lists(inner, min_size=1, max_size=3).map(structured)


TYPES: st.SearchStrategy[Typed] = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=4)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    typed = draw(st.lists(TYPES, min_size=1, max_size=4))
    required = draw(st.lists(st.booleans(), min_size=len(typed), max_size=len(typed)))
    fields = [pa.field(f"c{n}", kind, nullable=not required[n]) for n, (kind, _) in enumerate(typed)]
    values = {f"c{n}": of if required[n] else st.none() | of for n, (_, of) in enumerate(typed)}
    rows = rows_of(pa.schema(fields), draw(st.lists(st.fixed_dictionaries(values), max_size=8)))
    start = draw(st.integers(0, rows.num_rows))
    return rows.slice(start)


@QUICK
@given(batches())
def test_random_rows_are_read_back_equal_by_fastavro(rows: pa.RecordBatch) -> None:
    text = avro_schema(rows.schema, "shop.Order")
    encoder = AvroRows.of(rows.schema, text)
    assert encoder.slow is None
    assert list(encoder.misfits(rows)) == []
    assert read(text, encoder.encode(rows)) == expected(rows)


@QUICK
@given(st.sampled_from(LEAVES).flatmap(lambda leaf: st.tuples(st.just(leaf[0]), st.lists(st.none() | leaf[1]))))
def test_random_key_of_one_column_is_its_plain_type_and_a_null_is_no_key(typed: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = typed
    rows = pa.RecordBatch.from_arrays([pa.array(values, kind)], ["id"])
    text = avro_type(rows.schema.field(0), "shop.OrderKey")
    encoder = AvroRows.of(rows.schema, text)
    assert list(encoder.misfits(rows)) == []
    encoded = encoder.encode(rows)
    assert encoded.is_null().to_pylist() == [value is None for value in values]
    assert read(text, encoded.drop_null()) == [value for value in values if value is not None]


def test_decimal_has_the_fewest_bytes_as_other_writers_make_them() -> None:
    numbers = [0, 1, -1, 127, 128, -128, -129, 255, 256, 10**37, -(10**37)]
    rows = pa.RecordBatch.from_arrays([pa.array([Decimal(n) for n in numbers], pa.decimal128(38, 0))], ["d"])
    encoded = AvroRows.of(rows.schema, avro_schema(rows.schema, "R")).encode(rows).to_pylist()
    lengths = [max(1, ((n if n >= 0 else ~n).bit_length() + 8) // 8) for n in numbers]
    assert [len(body) - 2 for body in encoded] == lengths


def test_made_schema_names_records_by_their_way_and_defaults_to_null() -> None:
    inner = pa.struct([pa.field("record", pa.struct([("x", pa.int8())])), pa.field("n", pa.int64(), nullable=False)])
    columns = pa.schema([pa.field("a", inner), pa.field("b", pa.list_(inner)), pa.field("id", pa.int64(), False)])
    schema = json.loads(avro_schema(columns, "shop.Order"))
    a, b, identity = schema["fields"]
    assert (schema["namespace"], schema["name"]) == ("shop", "Order")
    assert (a["default"], a["type"][0]) == (None, "null")
    assert (a["type"][1]["namespace"], a["type"][1]["name"]) == ("shop.Order", "a")
    assert b["type"][1]["items"][1]["fields"][0]["type"][1]["namespace"] == "shop.Order.b"
    assert identity == {"name": "id", "type": "long"}
    fastavro.parse_schema(schema)


@pytest.mark.parametrize(
    ("field", "told"),
    [
        (pa.field("my column", pa.int64()), 'called "my column"'),
        (pa.field("m", pa.map_(pa.int32(), pa.int64())), "strings as keys"),
        (pa.field("d", pa.duration("s")), "no Avro type for duration"),
    ],
)
def test_column_that_avro_cannot_have_is_refused_by_name(field: pa.Field, told: str) -> None:
    with pytest.raises(UnfitError, match=told):
        avro_schema(pa.schema([field]), "R")


OWN = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "source", "type": "string", "default": "penstock"},
        {"name": "note", "type": [{"type": "string"}, "null"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4}},
        {"name": "absent", "type": [{"type": "record", "name": "Far", "fields": []}, "null"]},
    ],
}
OWN_COLUMNS = pa.schema(
    [
        ("price", pa.decimal128(6, 2)),
        ("note", pa.string()),
        ("at", ZONED),
        ("kind", pa.large_string()),
        ("id", pa.int8()),
    ]
)
WHEN = datetime(2026, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
FITTING = {"price": Decimal("1.50"), "note": None, "at": WHEN, "kind": "OLD", "id": 7}


def test_own_schema_takes_wider_types_other_orders_defaults_and_absent_nullable_fields() -> None:
    encoder = AvroRows.of(OWN_COLUMNS, json.dumps(OWN))
    rows = rows_of(OWN_COLUMNS, [FITTING, {**FITTING, "at": None, "note": "x"}])
    assert encoder.slow is None
    assert list(encoder.misfits(rows)) == []
    first, second = read(json.dumps(OWN), encoder.encode(rows))
    assert first == {**FITTING, "source": "penstock", "absent": None}
    assert second == {**first, "at": None, "note": "x"}


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        ({"id": None}, "SINK_VALUE_NULL", "id is null"),
        ({"kind": "ODD"}, "SINK_VALUE_UNFIT", "kind: is not one of NEW, OLD"),
        ({"at": WHEN + timedelta(microseconds=1)}, "SINK_VALUE_UNFIT", "at: has microseconds"),
    ],
)
def test_row_that_its_schema_cannot_hold_is_found_before_it_is_written(
    change: dict[str, Any], code: str, told: str
) -> None:
    rows = rows_of(OWN_COLUMNS, [FITTING, {**FITTING, **change}, FITTING])
    [misfit] = AvroRows.of(OWN_COLUMNS, json.dumps(OWN)).misfits(rows)
    assert misfit.rows.tolist() == [False, True, False]
    assert misfit.code == code
    assert told in misfit.message


@pytest.mark.parametrize(
    ("fields", "column", "told"),
    [
        ([{"name": "x", "type": "int"}], pa.int64(), "x: the column is int64, the schema has int"),
        ([{"name": "x", "type": ["null", "int", "string"]}], pa.int32(), "union of 2 types"),
        ([{"name": "y", "type": "int"}], pa.int32(), "no field for x"),
        ([{"name": "x", "type": "int"}, {"name": "y", "type": "int"}], pa.int32(), "y: .* it is no column"),
        ([{"name": "x", "type": "long"}], ZONED, "x: the column is timestamp"),
        ([{"name": "x", "type": {"type": "long", "logicalType": "timestamp-micros"}}], LOCAL, "timestamp-micros"),
        ([{"name": "x", "type": {"type": "int", "logicalType": "date"}}], pa.int32(), "date"),
        ([{"name": "x", "type": "nothing"}], pa.int32(), "not valid"),
    ],
)
def test_own_schema_that_the_columns_do_not_fit_is_refused(fields: list[Any], column: pa.DataType, told: str) -> None:
    schema = {"type": "record", "name": "R", "fields": fields}
    with pytest.raises(UnfitError, match=told):
        AvroRows.of(pa.schema([("x", column)]), json.dumps(schema))


def test_fixed_goes_row_by_row_says_so_and_is_exact() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "f", "type": {"type": "fixed", "name": "F", "size": 2}},
            {"name": "b", "type": ["null", "bytes"]},
            {"name": "d", "type": {"type": "fixed", "name": "D", "size": 5, "logicalType": "decimal", "precision": 9}},
            {"name": "w", "type": {"type": "fixed", "name": "W", "size": 20, "logicalType": "decimal", "precision": 9}},
            {"name": "m", "type": {"type": "map", "values": {"type": "int", "logicalType": "date"}}},
        ],
    }
    nine = pa.decimal128(9, 0)
    columns = pa.schema(
        [("f", pa.binary()), ("b", pa.binary()), ("d", nine), ("w", nine), ("m", pa.map_(pa.string(), pa.date32()))]
    )
    row = {"f": b"\xff\0", "b": b"\xfe", "d": Decimal(-1), "w": Decimal(-300), "m": [("k", date(2026, 1, 1))]}
    encoder = AvroRows.of(columns, json.dumps(schema))
    assert encoder.slow is not None
    assert "is fixed" in encoder.slow
    rows = rows_of(columns, [row, {**row, "f": b"x"}])
    [misfit] = encoder.misfits(rows)
    assert misfit.rows.tolist() == [False, True]
    assert read(json.dumps(schema), encoder.encode(rows.slice(0, 1))) == expected(rows.slice(0, 1))


def test_null_inside_a_list_or_a_struct_is_seen_from_its_row_and_not_below_a_null_parent() -> None:
    item = {"type": "record", "name": "I", "fields": [{"name": "n", "type": "long"}]}
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "x", "type": {"type": "array", "items": ["null", item]}}],
    }
    columns = pa.schema([("x", pa.list_(pa.struct([("n", pa.int64())])))])
    rows = rows_of(columns, [{"x": [{"n": None}]}, {"x": [{"n": 1}, None]}, {"x": []}, {"x": [{"n": 1}, {"n": None}]}])
    for start in (0, 1):
        [misfit] = AvroRows.of(columns, json.dumps(schema)).misfits(rows.slice(start))
        assert misfit.rows.tolist() == [True, False, False, True][start:]
        assert "x[].n is null" in misfit.message


def test_what_lies_hidden_under_a_null_is_no_misfit() -> None:
    """Arrow keeps the values of a null list or struct, whatever they are."""
    hidden = pa.StructArray.from_arrays([pa.array([1, None, None])], ["n"], mask=pa.array([False, True, True]))
    offsets, none = pa.array([0, 1, 2, 3], pa.int32()), pa.array([False, False, True])
    inner = pa.StructArray.from_arrays([pa.array([1, None, None])], ["n"])
    lists = pa.ListArray.from_arrays(offsets, inner, mask=none)
    rows = pa.RecordBatch.from_arrays([hidden, lists], ["s", "x"])
    number = {"name": "n", "type": "long"}
    struct = {"type": "record", "name": "S", "fields": [number]}
    items = {"type": "array", "items": {"type": "record", "name": "I", "fields": [number]}}
    fields = [{"name": "s", "type": ["null", struct]}, {"name": "x", "type": ["null", items]}]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    encoder = AvroRows.of(rows.schema, text)
    [misfit] = encoder.misfits(rows)
    assert misfit.rows.tolist() == [False, True, False]
    good = rows.take(pa.array([0, 2]))
    assert read(text, encoder.encode(good)) == [{"s": {"n": 1}, "x": [{"n": 1}]}, {"s": None, "x": None}]


def test_slice_of_each_plain_type_is_written_from_its_own_place() -> None:
    values = {
        "raw": pa.array([b"\xff\xfe", b"two", None, b"four"]),
        "price": pa.array([Decimal("1.25"), Decimal("-2.50"), None, Decimal("300.00")], pa.decimal128(9, 2)),
        "text": pa.array(["one", "two", None, "four"], pa.large_string()),
        "small": pa.array([1, 2, None, 4], pa.int8()),
        "day": pa.array([1, 2, None, 4], pa.date32()),
        "at": pa.array([1, 2, None, 4], ZONED),
        "many": pa.array([[b"\xff"], [b"two", None], None, []], pa.list_(pa.binary())),
    }
    rows = pa.RecordBatch.from_pydict(values)
    text = avro_schema(rows.schema, "R")
    encoder = AvroRows.of(rows.schema, text)
    for start in range(4):
        assert read(text, encoder.encode(rows.slice(start))) == expected(rows.slice(start))


def test_own_schema_with_references_is_resolved() -> None:
    near = {"type": "record", "name": "Near", "namespace": "shop", "fields": [{"name": "n", "type": "long"}]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "shop.Near"}]}
    columns = pa.schema([("x", pa.struct([("n", pa.int32())]))])
    encoded = AvroRows.of(columns, json.dumps(schema), (json.dumps(near),)).encode(rows_of(columns, [{"x": {"n": 3}}]))
    assert encoded.to_pylist() == [b"\x06"]


def test_avro_encoder_pickles_and_stays_small() -> None:
    encoder = AvroRows.of(OWN_COLUMNS, json.dumps(OWN))
    packed = pickle.dumps(encoder)
    assert len(packed) < 10_000
    rows = rows_of(OWN_COLUMNS, [FITTING])
    assert pickle.loads(packed).encode(rows) == encoder.encode(rows)

"""Rows to Protobuf, read back by Google's library, which is not ours: every type, random rows, stable numbers."""

from __future__ import annotations

import base64
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.registry.protobuf import find_message
from penstock.sinks.kafka.encode.protobuf_rows import ProtobufRows, compiled, message_before, protobuf_schema
from penstock.sinks.kafka.encode.shapes import UnfitError

ZONED, LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
INNER = pa.struct([("a", pa.int16()), ("b", pa.list_(pa.string())), ("c", pa.struct([("d", pa.decimal128(9, 2))]))])
COLUMNS = pa.schema(
    [
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("number", pa.int32()),
        ("long", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", ZONED),
        ("local", LOCAL),
        ("price", pa.decimal128(38, 6)),
        ("numbers", pa.list_(pa.int64())),
        ("moments", pa.list_(ZONED)),
        ("prices", pa.map_(pa.string(), pa.decimal128(9, 2))),
        ("inner", INNER),
        ("inners", pa.list_(INNER)),
        ("by_name", pa.map_(pa.string(), INNER)),
    ]
)


def exact(number: int, scale: int) -> Decimal:
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
ZONED_MOMENTS = MOMENTS.map(lambda at: at.replace(tzinfo=UTC))
PRICES = st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: exact(n, 2))
INNERS = st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(-(2**15), 2**15 - 1),
        "b": st.none() | st.lists(st.text(max_size=3), max_size=2),
        "c": st.none() | st.fixed_dictionaries({"d": st.none() | PRICES}),
    }
)
NAMES = st.text(max_size=4)


def pairs(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(NAMES, of, max_size=2).map(lambda found: list(found.items()))


ROWS = st.fixed_dictionaries(
    {
        name: st.none() | values
        for name, values in {
            "flag": st.booleans(),
            "tiny": st.integers(-(2**7), 2**7 - 1),
            "number": st.integers(-(2**31), 2**31 - 1),
            "long": st.integers(-(2**63), 2**63 - 1),
            "single": st.floats(width=32, allow_nan=False),
            "double": st.floats(allow_nan=False),
            "text": st.text(max_size=8),
            "raw": st.binary(max_size=8),
            "day": st.dates(),
            "at": ZONED_MOMENTS,
            "local": MOMENTS,
            "price": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: exact(n, 6)),
            "numbers": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
            "moments": st.lists(ZONED_MOMENTS, max_size=3),
            "prices": pairs(PRICES),
            "inner": INNERS,
            "inners": st.lists(INNERS, max_size=2),
            "by_name": pairs(INNERS),
        }.items()
    }
)
TEXT = protobuf_schema(COLUMNS, "shop.Order")
ENCODER = ProtobufRows.of(COLUMNS, TEXT, {}, "shop.Order")


def read(encoder: ProtobufRows, encoded: pa.Array) -> list[Any]:
    message = find_message(encoder.descriptors, encoder.message)
    return [message_factory.GetMessageClass(message).FromString(body) for body in encoded.to_pylist()]


def seen(value: Any, kind: pa.DataType) -> Any:
    """What Google's library has for a field, as a value of the column: none where it is not set."""
    if pa.types.is_map(kind):
        return {key: seen(item, kind.item_type) for key, item in value.items()}
    if pa.types.is_list(kind):
        return [seen(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: field_of(value, field) for field in kind}
    if pa.types.is_timestamp(kind) and kind.tz:
        assert value.nanos % 1000 == 0
        return value.seconds * 1_000_000 + value.nanos // 1000
    return value


def field_of(message: Any, field: pa.Field) -> Any:
    if not (pa.types.is_list(field.type) or pa.types.is_map(field.type)) and not message.HasField(field.name):
        return None
    return seen(getattr(message, field.name), field.type)


def wanted(value: Any, kind: pa.DataType) -> Any:
    """What a value of a column must come out as."""
    if pa.types.is_map(kind):
        return {key: wanted(item, kind.item_type) for key, item in value or ()}
    if pa.types.is_list(kind):
        return [wanted(item, kind.value_type) for item in value or ()]
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: wanted(value[field.name], field.type) for field in kind}
    if pa.types.is_timestamp(kind) and kind.tz:
        return pa.scalar(value, kind).value
    if pa.types.is_timestamp(kind):
        return value.isoformat(timespec="microseconds")
    return f"{value:f}" if isinstance(value, Decimal) else value.isoformat() if isinstance(value, date) else value


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ROWS, max_size=6), st.integers(0, 3))
def test_random_rows_are_read_back_equal_by_google(values: list[dict[str, Any]], start: int) -> None:
    rows = pa.RecordBatch.from_pylist(values, schema=COLUMNS).slice(min(start, len(values)))
    assert list(ENCODER.misfits(rows)) == []
    found = [{f.name: field_of(message, f) for f in COLUMNS} for message in read(ENCODER, ENCODER.encode(rows))]
    assert found == [{f.name: wanted(row[f.name], f.type) for f in COLUMNS} for row in rows.to_pylist()]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"numbers": [1, None]}, "numbers[] is null"),
        ({"moments": [None]}, "moments[] is null"),
        ({"prices": [("k", None)]}, "prices[] is null"),
        ({"inners": [{"a": 1, "b": [None], "c": None}]}, "inners[].b[] is null"),
        ({"by_name": [("k", None)]}, "by_name[] is null"),
    ],
)
def test_null_that_protobuf_has_no_place_for_is_found_before_it_is_written(row: dict[str, Any], told: str) -> None:
    rows = pa.RecordBatch.from_pylist([{}, row, {}], schema=COLUMNS)
    [misfit] = ENCODER.misfits(rows)
    assert misfit.rows.tolist() == [False, True, False]
    assert misfit.code == "SINK_VALUE_NULL"
    assert told in misfit.message


def test_time_outside_the_years_that_protobuf_has_is_found() -> None:
    ends = [-62_135_596_800_000_000, 253_402_300_799_999_999]
    at = pa.array([ends[0] - 1, ends[0], ends[1], ends[1] + 1, None], ZONED)
    columns = pa.schema([("at", ZONED)])
    encoder = ProtobufRows.of(columns, protobuf_schema(columns, "R"), {}, "R")
    [misfit] = encoder.misfits(pa.RecordBatch.from_arrays([at], schema=columns))
    assert misfit.rows.tolist() == [True, False, False, True, False]
    assert misfit.code == "SINK_VALUE_UNFIT"


def numbers_of(text: str, message: str = "Order") -> dict[str, int]:
    found = message_before(compiled(text, {}), message)
    assert found is not None
    return {field.name: field.number for field in found.field}


def test_numbers_stay_for_a_name_and_are_never_used_again() -> None:
    first = protobuf_schema(pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", INNER)]), "shop.Order")
    assert numbers_of(first) == {"a": 1, "b": 2, "c": 3}
    inner = pa.struct([("new", pa.bool_()), ("c", INNER.field("c").type)])
    columns = pa.schema([("z", pa.int64()), ("c", inner), ("b", pa.string())])
    second = protobuf_schema(columns, "shop.Order", message_before(compiled(first, {}), "shop.Order"))
    assert numbers_of(second) == {"z": 4, "c": 3, "b": 2}
    assert "reserved 1;" in second
    before = message_before(compiled(second, {}), "shop.Order")
    assert before is not None
    assert {f.name: f.number for f in before.nested_type[0].field} == {"new": 4, "c": 3}
    third = protobuf_schema(pa.schema([("a", pa.int64()), ("y", pa.int64())]), "shop.Order", before)
    assert numbers_of(third) == {"a": 5, "y": 6}
    assert "reserved 1, 2, 3, 4;" in third
    assert protobuf_schema(columns, "shop.Order", before) == second


def test_message_inside_a_map_keeps_its_numbers() -> None:
    def columns(*names: str) -> pa.Schema:
        return pa.schema([("m", pa.map_(pa.string(), pa.struct([(name, pa.int64()) for name in names])))])

    first = protobuf_schema(columns("a", "b"), "Order")
    second = protobuf_schema(columns("b", "c"), "Order", message_before(compiled(first, {}), "Order"))
    before = message_before(compiled(second, {}), "Order")
    assert before is not None
    assert {f.name: f.number for f in before.nested_type[0].field} == {"b": 2, "c": 3}


def test_names_of_messages_never_clash_with_fields() -> None:
    one = pa.struct([("x", pa.int64())])
    columns = pa.schema([("Foo", one), ("_1", one), ("Order", one)])
    encoder = ProtobufRows.of(columns, protobuf_schema(columns, "Order"), {}, "Order")
    rows = pa.RecordBatch.from_pylist([{name: {"x": n} for n, name in enumerate(columns.names)}], schema=columns)
    [message] = read(encoder, encoder.encode(rows))
    assert [getattr(message, name).x for name in columns.names] == [0, 1, 2]


def test_names_that_differ_in_capitals_only_are_refused() -> None:
    columns = pa.schema([("foo", pa.int64()), ("Foo", pa.int64())])
    with pytest.raises(UnfitError, match="foo and Foo"):
        ProtobufRows.of(columns, protobuf_schema(columns, "Order"), {}, "Order")


@pytest.mark.parametrize(
    ("field", "told"),
    [
        (pa.field("my-column", pa.int64()), 'called "my-column"'),
        (pa.field("x", pa.list_(pa.list_(pa.int64()))), "put a struct between"),
        (pa.field("x", pa.map_(pa.int64(), pa.int64())), "strings as keys"),
        (pa.field("x", pa.duration("s")), "no Protobuf type for duration"),
    ],
)
def test_column_that_protobuf_cannot_have_is_refused_by_name(field: pa.Field, told: str) -> None:
    with pytest.raises(UnfitError, match=told):
        protobuf_schema(pa.schema([field]), "R")


OWN = """
syntax = "proto3";
package shop;
import "google/protobuf/wrappers.proto";
import "near.proto";
message First { map<string, int32> counts = 1; message Deep { int32 x = 1; } }
message Order {
  int64 id = 1;
  oneof which { string text = 2; Near near = 3; }
  enum Kind { NEW = 0; OLD = 5; }
  Kind kind = 4;
  optional Kind other = 5;
  uint64 count = 6;
  google.protobuf.Int64Value wrapped = 7;
  repeated Kind kinds = 8;
}
"""
NEAR = 'syntax = "proto3"; package shop; message Near { optional sint32 n = 1; }'
OWN_COLUMNS = pa.schema(
    [
        ("id", pa.int32()),
        ("near", pa.struct([("n", pa.int8())])),
        ("kind", pa.string()),
        ("other", pa.string()),
        ("count", pa.int64()),
        ("wrapped", pa.int64()),
        ("kinds", pa.list_(pa.string())),
    ]
)
FITTING = {"id": 7, "near": {"n": -3}, "kind": "OLD", "other": None, "count": 9, "wrapped": 0, "kinds": ["OLD", "NEW"]}


def test_own_schema_with_references_enums_oneof_and_wrappers_is_written() -> None:
    encoder = ProtobufRows.of(OWN_COLUMNS, OWN, {"near.proto": NEAR}, "shop.Order")
    rows = pa.RecordBatch.from_pylist([FITTING, {**FITTING, "near": None, "wrapped": None}], schema=OWN_COLUMNS)
    assert list(encoder.misfits(rows)) == []
    first, second = read(encoder, encoder.encode(rows))
    assert (first.id, first.near.n, first.kind, first.count, list(first.kinds)) == (7, -3, 5, 9, [5, 0])
    assert first.HasField("wrapped")
    assert first.wrapped.value == 0
    assert not first.HasField("other")
    assert second.WhichOneof("which") is None
    assert not second.HasField("wrapped")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"id": None}, "id is null"),
        ({"kind": "ODD"}, "kind: is not one of NEW, OLD"),
        ({"kinds": ["NEW", "ODD"]}, "kinds[]: is not one of"),
        ({"count": -1}, "count: is negative"),
    ],
)
def test_row_that_the_message_cannot_hold_is_found(change: dict[str, Any], told: str) -> None:
    encoder = ProtobufRows.of(OWN_COLUMNS, OWN, {"near.proto": NEAR}, "shop.Order")
    [misfit] = encoder.misfits(pa.RecordBatch.from_pylist([FITTING, {**FITTING, **change}], schema=OWN_COLUMNS))
    assert misfit.rows.tolist() == [False, True]
    assert told in misfit.message


@pytest.mark.parametrize(
    ("name", "column", "told"),
    [
        ("shop.Order", pa.field("id", pa.string()), "id: the column is string, the message has int64"),
        ("shop.Order", pa.field("more", pa.int64()), "^the row: the message shop.Order has no field more"),
        ("shop.Order", pa.field("near", pa.struct([("m", pa.int32())])), "^near: the message .* has no field m"),
        ("shop.Nothing", pa.field("id", pa.int64()), "no message shop.Nothing; it has shop.First, shop.First.Deep"),
    ],
)
def test_own_message_that_the_columns_do_not_fit_is_refused(name: str, column: pa.Field, told: str) -> None:
    with pytest.raises(UnfitError, match=told):
        ProtobufRows.of(pa.schema([column]), OWN, {"near.proto": NEAR}, name)


def test_schema_that_protoc_refuses_is_refused_with_its_words() -> None:
    with pytest.raises(UnfitError, match=r"not valid.*near\.proto"):
        ProtobufRows.of(OWN_COLUMNS, OWN, {}, None)


def test_place_of_a_message_is_framed_as_the_registry_has_it() -> None:
    def index(name: str | None, column: pa.Field) -> bytes:
        return ProtobufRows.of(pa.schema([column]), OWN, {"near.proto": NEAR}, name).index

    assert index(None, pa.field("counts", pa.map_(pa.string(), pa.int32()))) == b"\0"
    assert index("shop.Order", pa.field("id", pa.int64())) == b"\x02\x02"
    # Behind the entry of the map, which is a message of its own in the descriptor.
    assert index("shop.First.Deep", pa.field("x", pa.int32())) in (b"\x04\x00\x00", b"\x04\x00\x02")


def test_schema_held_as_a_descriptor_is_read_like_its_text() -> None:
    texts = {"near.proto": NEAR}
    files = {file.name: file for file in FileDescriptorSet.FromString(compiled(OWN, texts)).file}
    near = base64.b64encode(files["near.proto"].SerializeToString()).decode()
    root = base64.b64encode(list(files.values())[-1].SerializeToString()).decode()
    rows = pa.RecordBatch.from_pylist([FITTING], schema=OWN_COLUMNS)
    encoded = ProtobufRows.of(OWN_COLUMNS, OWN, texts, "shop.Order").encode(rows)
    for text, reference in ((root, near), (OWN, near), (root, NEAR)):
        encoder = ProtobufRows.of(OWN_COLUMNS, text, {"near.proto": reference}, "shop.Order")
        assert encoder.encode(rows) == encoded


def test_protobuf_encoder_pickles() -> None:
    rows = pa.RecordBatch.from_pylist([{"long": 1, "text": "x"}], schema=COLUMNS)
    assert pickle.loads(pickle.dumps(ENCODER)).encode(rows) == ENCODER.encode(rows)

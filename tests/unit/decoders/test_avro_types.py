"""What each Avro type becomes, value for value, and which schemas are refused."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from tests.unit.decoders.conftest import RawBatch

from penstock.decoders.avro.decoder import AvroDecoder, avro_columns
from penstock.decoders.dropped import with_dropped
from penstock.errors import DefinitionError
from penstock.registry import ReferencedSchema, RegisteredSchema

UTC_TIME = pa.timestamp("us", tz="UTC")
MOMENT = datetime(2026, 3, 1, 12, 30, 15, 123000, tzinfo=UTC)


def record(*types: Any, name: str = "Row") -> str:
    return json.dumps(
        {"type": "record", "name": name, "fields": [{"name": f"f{at}", "type": t} for at, t in enumerate(types)]}
    )


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def fixed(size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": f"Fixed{size}", "size": size, **more}


def write(schema: str, *values: Any) -> list[bytes]:
    parsed = fastavro.parse_schema(json.loads(schema))
    found = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        found.append(out.getvalue())
    return found


ENUM = {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}
NESTED = {
    "type": "record",
    "name": "Nested",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": ["null", "string"]}],
}

TYPES = [
    ("boolean", pa.bool_(), True, True),
    ("int", pa.int32(), -(2**31), -(2**31)),
    ("long", pa.int64(), 2**63 - 1, 2**63 - 1),
    ("float", pa.float32(), 1.5, 1.5),
    ("double", pa.float64(), -1e300, -1e300),
    ("string", pa.string(), "grüße", "grüße"),
    ("bytes", pa.binary(), b"\xff\x00\xfe", b"\xff\x00\xfe"),
    (ENUM, pa.string(), "GREEN", "GREEN"),
    (fixed(12), pa.binary(), b"\xff" * 12, b"\xff" * 12),
    (fixed(16), pa.binary(), bytes(range(240, 256)), bytes(range(240, 256))),
    (fixed(5), pa.binary(), b"12345", b"12345"),
    (
        logical("string", "uuid"),
        pa.string(),
        "c0ffee00-0000-0000-0000-000000000001",
        "c0ffee00-0000-0000-0000-000000000001",
    ),
    (
        logical("bytes", "decimal", precision=20, scale=4),
        pa.decimal128(20, 4),
        Decimal("-1234.5678"),
        Decimal("-1234.5678"),
    ),
    (fixed(8, logicalType="decimal", precision=9, scale=2), pa.decimal128(9, 2), Decimal("-0.07"), Decimal("-0.07")),
    (fixed(5, logicalType="decimal", precision=9, scale=2), pa.decimal128(9, 2), Decimal("77.10"), Decimal("77.10")),
    (
        fixed(20, logicalType="decimal", precision=38, scale=0),
        pa.decimal128(38, 0),
        Decimal(10**38 - 1),
        Decimal(10**38 - 1),
    ),
    (logical("int", "date"), pa.date32(), date(1969, 12, 31), date(1969, 12, 31)),
    (logical("int", "time-millis"), pa.int32(), 86_399_999, 86_399_999),
    (logical("long", "time-micros"), pa.int64(), 86_399_999_999, 86_399_999_999),
    (logical("long", "timestamp-millis"), UTC_TIME, MOMENT, MOMENT),
    (logical("long", "timestamp-micros"), UTC_TIME, MOMENT, MOMENT),
    (logical("long", "timestamp-nanos"), pa.int64(), 1_772_368_215_123_456_789, 1_772_368_215_123_456_789),
    (
        logical("long", "local-timestamp-millis"),
        pa.timestamp("us"),
        MOMENT.replace(tzinfo=None),
        MOMENT.replace(tzinfo=None),
    ),
    (
        logical("long", "local-timestamp-micros"),
        pa.timestamp("us"),
        MOMENT.replace(tzinfo=None),
        MOMENT.replace(tzinfo=None),
    ),
    (fixed(12, logicalType="duration"), pa.binary(), b"\x01" * 12, b"\x01" * 12),
    (logical("long", "nobody-knows"), pa.int64(), 5, 5),
    (["null", "long"], pa.int64(), None, None),
    (["string", "null"], pa.string(), "x", "x"),
    (["long"], pa.int64(), 5, 5),
    (["int", "long"], pa.int64(), 2**40, 2**40),
    (["null", "float", "double"], pa.float64(), 0.5, 0.5),
    (
        ["null", "long", "string"],
        pa.struct([("member0", pa.int64()), ("member1", pa.string())]),
        "text",
        {"member0": None, "member1": "text"},
    ),
    (["null", "long", "string"], pa.struct([("member0", pa.int64()), ("member1", pa.string())]), None, None),
    (
        [ENUM, NESTED, {"type": "array", "items": "int"}],
        pa.struct(
            [
                ("member0", pa.string()),
                ("member1", pa.struct([("x", pa.int32()), ("y", pa.string())])),
                ("member2", pa.list_(pa.field("element", pa.int32()))),
            ]
        ),
        {"x": 1, "y": None},
        {"member0": None, "member1": {"x": 1, "y": None}, "member2": None},
    ),
    (NESTED, pa.struct([("x", pa.int32()), ("y", pa.string())]), {"x": 1, "y": "z"}, {"x": 1, "y": "z"}),
    (["null", NESTED], pa.struct([("x", pa.int32()), ("y", pa.string())]), None, None),
    ({"type": "array", "items": ["null", "int"]}, pa.list_(pa.field("element", pa.int32())), [1, None], [1, None]),
    ({"type": "map", "values": "bytes"}, pa.map_(pa.string(), pa.binary()), {"k": b"\xff"}, [("k", b"\xff")]),
    (["null", {"type": "map", "values": "int"}], pa.map_(pa.string(), pa.int32()), None, None),
    (
        {"type": "array", "items": {"type": "map", "values": NESTED}},
        pa.list_(pa.field("element", pa.map_(pa.string(), pa.struct([("x", pa.int32()), ("y", pa.string())])))),
        [{}, {"a": {"x": 1, "y": None}}],
        [[], [("a", {"x": 1, "y": None})]],
    ),
]


@pytest.mark.parametrize(
    ("kind", "arrow", "value", "expected"), TYPES, ids=lambda part: json.dumps(part, default=str)[:50]
)
def test_avro_type_becomes_column(
    raw_batch: RawBatch, kind: Any, arrow: pa.DataType, value: Any, expected: Any
) -> None:
    schema = record("long", kind, "string")
    split = AvroDecoder(schema, framing="none").decode(
        raw_batch(write(schema, {"f0": 1, "f1": value, "f2": "end"}) * 3)
    )
    assert split.bad.to_pylist() == []
    assert split.good.schema.field("f1").type == arrow
    assert split.good.drop_columns(["_penstock"]).to_pylist() == [{"f0": 1, "f1": expected, "f2": "end"}] * 3
    split.good.validate(full=True)


def test_avro_type_used_by_name_is_the_same_type(raw_batch: RawBatch) -> None:
    schema = json.dumps(
        {
            "type": "record",
            "name": "Row",
            "namespace": "shop",
            "fields": [
                {"name": "a", "type": NESTED},
                {"name": "b", "type": ["null", "shop.Nested"]},
                {"name": "c", "type": "Nested"},
            ],
        }
    )
    row = {"a": {"x": 1, "y": "a"}, "b": {"x": 2, "y": None}, "c": {"x": 3, "y": "c"}}
    split = AvroDecoder(schema, framing="none").decode(raw_batch(write(schema, row)))
    assert split.good.drop_columns(["_penstock"]).to_pylist() == [row]


def test_avro_fields_without_values_are_left_out(raw_batch: RawBatch) -> None:
    empty = {"type": "record", "name": "Empty", "fields": []}
    schema = record("null", "long", empty, fixed(0))
    split = AvroDecoder(schema, framing="none").decode(raw_batch([b"\x0a"]))
    assert split.good.schema.names == ["f1", "_penstock"]
    assert split.good.column("f1").to_pylist() == [5]


@pytest.mark.parametrize(
    ("schema", "message", "value", "arrow"),
    [
        ('"string"', b"\x06abc", "abc", pa.string()),
        ('"long"', b"\x02", 1, pa.int64()),
        ('["null", "int"]', b"\x02\x04", 2, pa.int32()),
        ('{"type": "array", "items": "int"}', b"\x04\x02\x04\x00", [1, 2], pa.list_(pa.field("element", pa.int32()))),
        ('{"type": "enum", "name": "E", "symbols": ["A", "B"]}', b"\x02", "B", pa.string()),
    ],
)
def test_avro_schema_that_is_no_record_becomes_one_column(
    raw_batch: RawBatch, schema: str, message: bytes, value: Any, arrow: pa.DataType
) -> None:
    split = AvroDecoder(schema, framing="none").decode(raw_batch([message]))
    assert split.good.schema.field("value").type == arrow
    assert split.good.column("value").to_pylist() == [value]


def test_avro_decoder_pickles_small_and_equal() -> None:
    decoder = AvroDecoder(record("long"), writers=(record("int"),), framing="single_object", tombstones="pass")
    assert decoder.schema.names == ["f0", "_penstock"]
    copied = pickle.loads(pickle.dumps(decoder))
    assert copied == decoder
    assert len(pickle.dumps(decoder)) < 1000


RECURSIVE = json.dumps({"type": "record", "name": "Tree", "fields": [{"name": "left", "type": ["null", "Tree"]}]})


def laughs() -> str:
    inner: Any = {"type": "record", "name": "L0", "fields": [{"name": "x", "type": "int"}]}
    for level in range(1, 30):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"L{level - 1}"}]
        inner = {"type": "record", "name": f"L{level}", "fields": fields}
    return json.dumps(inner)


REFUSED = {
    "no JSON": ("{", "no JSON"),
    "contains itself": (RECURSIVE, "field left: record Tree contains itself"),
    "unfolds without end": (laughs(), "unfolds into more than"),
    "too deep": ('{"type": "array", "items": ' * 100 + '"int"' + "}" * 100, "levels deep"),
    "far too deep": ('{"type": "array", "items": ' * 100_000 + '"int"' + "}" * 100_000, "levels deep"),
    "unknown name": (record("Nobody"), "field f0: there is no type Nobody"),
    "case": (
        '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}, {"name": "ID", "type": "int"}]}',
        "field ID: differs from id by case alone",
    ),
    "a field twice": (
        '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}, {"name": "id", "type": "int"}]}',
        "has a field twice",
    ),
    "reserved": ('{"type": "record", "name": "R", "fields": [{"name": "_penstock", "type": "int"}]}', "reserved"),
    "no columns": (record("null"), "there is no column"),
    "array of null": (record({"type": "array", "items": "null"}), "field f0[]: null has no values"),
    "39 digits": (record(logical("bytes", "decimal", precision=39, scale=0)), "more than 38 digits"),
    "union in a union": (record(["int", ["null", "string"]]), "with a union in it"),
    "union with a type twice": (record(["int", "int"]), "a type twice"),
    "empty union": (record([]), "a union of 0 types"),
    "no symbols": (record({"type": "enum", "name": "E", "symbols": []}), "needs symbols"),
    "name twice": (record(ENUM, ENUM), "is given twice"),
    "number": ("5", "a type is a name"),
}


@pytest.mark.parametrize("defect", REFUSED)
def test_avro_reader_schema_with_defect_is_refused(defect: str) -> None:
    schema, message = REFUSED[defect]
    with pytest.raises(DefinitionError) as raised:
        avro_columns(schema)
    assert raised.value.code == "AVRO_SCHEMA"
    assert message in raised.value.summary
    with pytest.raises(DefinitionError):
        AvroDecoder(schema)


@pytest.mark.parametrize(
    "writer",
    [RECURSIVE, "{", record({"type": "array", "items": "null"}), record(["null", fixed(0), "int"])],
    ids=["contains itself", "no JSON", "items without bytes", "branch without bytes"],
)
def test_avro_writer_schema_that_cannot_be_read_refuses_its_records(raw_batch: RawBatch, writer: str) -> None:
    decoder = AvroDecoder(
        '{"type": "record", "name": "R", "fields": [{"name": "new", "type": "int", "default": 1}]}',
        framing="none",
        writers=(writer,),
    )
    split = decoder.decode(raw_batch([b"\x00", b"\x02"]))
    assert split.good.num_rows == 0
    assert split.bad.column("code").to_pylist() == ["SCHEMA_UNSUPPORTED"] * 2


MALFORMED = [
    '{"type": "record", "name": "R", "fields": 5}',
    '{"type": "record", "name": "R", "fields": {"a": 1}}',
    '{"type": "record", "name": "R", "fields": [5]}',
    '{"type": "record", "name": "R", "aliases": 5, "fields": []}',
    '{"type": "record", "name": "R", "aliases": [5], "fields": []}',
    '{"type": "record", "name": "R", "namespace": 5, "fields": []}',
    '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "aliases": [[]]}]}',
    '{"type": "enum", "name": "E", "symbols": 5}',
    '{"type": "enum", "name": "E", "symbols": [[]]}',
    '{"type": "enum", "name": "E", "symbols": [1, 2]}',
    '{"type": "enum", "name": "E", "symbols": ["A"], "default": []}',
    '{"type": "fixed", "name": "F", "size": true}',
    '{"type": "fixed", "name": [], "size": 1}',
    "[" * 100_000,
]


@pytest.mark.parametrize("text", MALFORMED)
def test_avro_schema_that_is_malformed_has_a_code_wherever_it_stands(raw_batch: RawBatch, text: str) -> None:
    with pytest.raises(DefinitionError, match="AVRO_SCHEMA"):
        avro_columns(text)
    reader = '{"type": "record", "name": "R", "fields": [{"name": "new", "type": "int", "default": 1}]}'
    split = AvroDecoder(reader, framing="none", writers=(text,)).decode(raw_batch([b"\x00"]))
    assert split.bad.column("code").to_pylist() == ["SCHEMA_UNSUPPORTED"]
    registered = RegisteredSchema(7, "AVRO", reader, (ReferencedSchema("r", text),))
    refused = AvroDecoder(reader).refuses(registered)
    assert refused is None or refused.code == "SCHEMA_UNSUPPORTED"
    assert with_dropped(registered, [registered], None) == registered


@pytest.mark.parametrize("default", ["1e999", "1" + "0" * 400, "[]", '"x"', "{}"])
def test_avro_default_that_is_none_refuses_the_records_that_need_it(raw_batch: RawBatch, default: str) -> None:
    field = f'{{"name": "new", "type": ["double", "long"], "default": {default}}}'
    reader = f'{{"type": "record", "name": "R", "fields": [{field}]}}'
    decoder = AvroDecoder(reader, framing="none", writers=('{"type": "record", "name": "R", "fields": []}',))
    split = decoder.decode(raw_batch([b""]))
    assert split.good.num_rows + split.bad.num_rows == 1

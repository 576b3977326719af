"""A writer's schema read as another: defaults, aliases, promotions, unions, and what can never match."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from tests.unit.decoders.conftest import RawBatch

from penstock.decoders.avro.decoder import AvroDecoder

MOMENT = datetime(2026, 3, 1, 12, 30, 15, 123000, tzinfo=UTC)
MILLIS = int(MOMENT.timestamp() * 1000)


def record(*fields: Any, name: str = "Row", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def enum(*symbols: str, name: str = "Color", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def read(raw_batch: RawBatch, writer: Any, reader: Any, *values: Any) -> tuple[list[Any], list[tuple[str, str]]]:
    """The rows, and the code and message of each bad record."""
    parsed, messages = fastavro.parse_schema(json.loads(json.dumps(writer))), []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        messages.append(out.getvalue())
    decoder = AvroDecoder(json.dumps(reader), framing="none", writers=(json.dumps(writer),))
    split = decoder.decode(raw_batch(messages))
    split.good.validate(full=True)
    bad = zip(split.bad.column("code").to_pylist(), split.bad.column("message").to_pylist(), strict=True)
    return split.good.drop_columns(["_penstock"]).to_pylist(), list(bad)


DEFAULTS = [
    ("long", 5, 5),
    ("double", 1, 1.0),
    ("string", "x", "x"),
    ("bytes", "\u00ff\u0000", b"\xff\x00"),
    ("boolean", True, True),
    (["null", "long"], None, None),
    (["long", "null"], 7, 7),
    (["null", "long"], 7, 7),
    (["long", "string"], "s", {"member0": None, "member1": "s"}),
    (enum("A", "B"), "B", "B"),
    ({"type": "fixed", "name": "F", "size": 2}, "\u00ffa", b"\xffa"),
    ({"type": "array", "items": ["null", "int"]}, [1, None], [1, None]),
    ({"type": "map", "values": "int"}, {"k": 1}, [("k", 1)]),
    (record(field("x", "int", default=3), field("y", "string"), name="N"), {"y": "z"}, {"x": 3, "y": "z"}),
    (logical("long", "timestamp-millis"), MILLIS, MOMENT),
    (logical("long", "timestamp-micros"), MILLIS * 1000, MOMENT),
    (logical("bytes", "decimal", precision=4, scale=2), "\u0001\u0000", Decimal("2.56")),
]


@pytest.mark.parametrize(("kind", "default", "expected"), DEFAULTS, ids=lambda part: json.dumps(part, default=str)[:40])
def test_avro_field_that_the_writer_lacks_takes_its_default(
    raw_batch: RawBatch, kind: Any, default: Any, expected: Any
) -> None:
    writer = record(field("id", "long"))
    reader = record(field("new", kind, default=default), field("id", "long"))
    rows, bad = read(raw_batch, writer, reader, {"id": 1}, {"id": 2})
    assert bad == []
    assert rows == [{"new": expected, "id": 1}, {"new": expected, "id": 2}]


PROMOTIONS = [
    ("int", "long", 5, 5),
    ("int", "float", 5, 5.0),
    ("int", "double", 5, 5.0),
    ("long", "float", 2**40, float(2**40)),
    ("long", "double", 2**53 + 1, float(2**53)),
    ("float", "double", 1.5, 1.5),
    ("string", "bytes", "é", "é".encode()),
    ("bytes", "string", "é".encode(), "é"),
    ("int", ["null", "long"], 5, 5),
    (["null", "int"], ["double", "null"], None, None),
    (["null", "int"], "long", 5, 5),
    (["int", "string"], ["string", "long"], 5, {"member0": None, "member1": 5}),
    ("int", ["string", "double", "int"], 5, {"member0": None, "member1": None, "member2": 5}),
    (["null", "int", "long"], ["null", "long"], 2**40, 2**40),
    ({"type": "array", "items": "int"}, {"type": "array", "items": ["null", "double"]}, [1], [1.0]),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, {"k": 1}, [("k", 1)]),
    (enum("A", "B", "C"), enum("C", "A"), "C", "C"),
    (enum("A", "B", "C"), enum("A", default="A"), "C", "A"),
    (enum("A"), enum("A", name="Other", aliases=["Color"]), "A", "A"),
    (enum("A", namespace="one"), enum("A", namespace="two"), "A", "A"),
    (logical("long", "timestamp-millis"), logical("long", "timestamp-micros"), MOMENT, MOMENT),
    (logical("long", "timestamp-micros"), logical("long", "timestamp-millis"), MOMENT, MOMENT),
    (logical("long", "timestamp-micros"), logical("long", "timestamp-nanos"), MOMENT, MILLIS * 1_000_000),
    (logical("int", "time-millis"), logical("long", "time-micros"), 1000, 1_000_000),
    (logical("long", "timestamp-millis"), "long", MOMENT, MILLIS),
    ("long", logical("long", "timestamp-millis"), MILLIS, MOMENT),
    (
        logical("bytes", "decimal", precision=4, scale=2),
        logical("bytes", "decimal", precision=10, scale=3),
        Decimal("12.34"),
        Decimal("12.340"),
    ),
    (logical("bytes", "decimal", precision=4, scale=2), "bytes", Decimal("12.34"), b"\x04\xd2"),
    (record(field("x", "int"), name="Old"), record(field("x", "long"), name="New"), {"x": 1}, {"x": 1}),
    (
        ["null", record(field("x", "int"), name="A"), record(field("x", "string"), name="B")],
        ["null", record(field("x", "string"), name="B"), record(field("x", "long"), name="A")],
        ("A", {"x": 1}),
        {"member0": None, "member1": {"x": 1}},
    ),
]


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"), PROMOTIONS, ids=lambda part: json.dumps(part, default=str)[:40]
)
def test_avro_writer_type_is_read_as_the_readers(
    raw_batch: RawBatch, writer: Any, reader: Any, value: Any, expected: Any
) -> None:
    rows, bad = read(raw_batch, record(field("f", writer)), record(field("f", reader)), {"f": value})
    assert bad == []
    assert rows == [{"f": expected}]


def test_avro_field_is_found_by_its_alias_and_others_are_skipped(raw_batch: RawBatch) -> None:
    writer = record(field("gone", {"type": "map", "values": "string"}), field("old", "int"), field("kept", "string"))
    reader = record(field("kept", "string"), field("new", "long", aliases=["older", "old"]))
    rows, bad = read(raw_batch, writer, reader, {"gone": {"a": "b"}, "old": 5, "kept": "k"})
    assert (rows, bad) == ([{"kept": "k", "new": 5}], [])


def test_avro_nested_records_are_resolved_at_every_level(raw_batch: RawBatch) -> None:
    old = record(field("a", "int"), field("b", "int"), name="N")
    new = record(field("c", "string", default="none"), field("b", "long"), name="N")
    writer = record(field("one", old), field("many", {"type": "array", "items": "N"}), field("maybe", ["null", "N"]))
    reader = record(field("maybe", ["null", new]), field("many", {"type": "array", "items": "N"}), field("one", "N"))
    value = {"a": 1, "b": 2}
    rows, bad = read(raw_batch, writer, reader, {"one": value, "many": [value, value], "maybe": None})
    read_as = {"c": "none", "b": 2}
    assert (rows, bad) == ([{"maybe": None, "many": [read_as, read_as], "one": read_as}], [])


INCOMPATIBLE = [
    ("string", "long", "f: the writer has string, the reader long"),
    ("long", "int", "f: the writer has long, the reader int"),
    ("double", "float", "f: the writer has double, the reader float"),
    ("boolean", ["null", "int"], "f: the writer has boolean, the reader int"),
    (["int", "long"], ["null", "string", "boolean"], "f: the writer has union of int, long"),
    (
        {"type": "array", "items": "string"},
        {"type": "array", "items": "int"},
        "f[]: the writer has string, the reader int",
    ),
    ({"type": "map", "values": "string"}, {"type": "array", "items": "string"}, "f: the writer has map of string"),
    (record(field("x", "int"), name="N"), record(field("x", "string"), name="N"), "f.x: the writer has int"),
    (record(field("x", "int"), name="N"), record(field("y", "string"), name="N"), "f.y: the writer has no such field"),
    (enum("A"), enum("A", name="Other"), "f: the writer has enum Color, the reader enum Other"),
    ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 8}, "fixed F of 4 bytes"),
    (logical("int", "date"), logical("int", "time-millis"), "int (date), the reader int (time-millis)"),
    (logical("long", "timestamp-nanos"), logical("long", "timestamp-micros"), "long (timestamp-nanos)"),
    (logical("long", "timestamp-micros"), logical("long", "local-timestamp-micros"), "local-timestamp-micros"),
    (
        logical("bytes", "decimal", precision=9, scale=4),
        logical("bytes", "decimal", precision=9, scale=2),
        "bytes (decimal(9, 4)), the reader bytes (decimal(9, 2))",
    ),
]


@pytest.mark.parametrize(("writer", "reader", "message"), INCOMPATIBLE, ids=lambda part: json.dumps(part)[:40])
def test_avro_types_that_never_match_refuse_all_records(
    raw_batch: RawBatch, writer: Any, reader: Any, message: str
) -> None:
    decoder = AvroDecoder(
        json.dumps(record(field("f", reader))), framing="none", writers=(json.dumps(record(field("f", writer))),)
    )
    split = decoder.decode(raw_batch([b"\x00", b"\x02\x02"]))
    assert split.good.num_rows == 0
    assert split.bad.column("code").to_pylist() == ["SCHEMA_INCOMPATIBLE"] * 2
    assert message in split.bad.column("message")[0].as_py()


SOME_MATCH = [
    (["null", "int"], "int", [1, None, 2], [1, 2], "f: null, and the reader's int is never"),
    (["null", "int", "string"], ["null", "int"], [1, "x", None], [1, None], "f: the writer has string"),
    (enum("A", "B"), enum("A"), ["A", "B"], ["A"], "f: a symbol that the reader's enum Color does not have"),
    (
        logical("bytes", "decimal", precision=9, scale=1),
        logical("bytes", "decimal", precision=3, scale=1),
        [Decimal("99.9"), Decimal("-100.0")],
        [Decimal("99.9")],
        "f: more digits than decimal128(3, 1) holds",
    ),
]


@pytest.mark.parametrize(("writer", "reader", "values", "good", "message"), SOME_MATCH, ids=str)
def test_avro_value_that_does_not_match_is_refused_alone(
    raw_batch: RawBatch, writer: Any, reader: Any, values: list[Any], good: list[Any], message: str
) -> None:
    rows, bad = read(raw_batch, record(field("f", writer)), record(field("f", reader)), *({"f": v} for v in values))
    assert rows == [{"f": value} for value in good]
    assert [code for code, _ in bad] == ["OUT_OF_RANGE" if "digits" in message else "SCHEMA_INCOMPATIBLE"]
    assert message in bad[0][1]


def test_avro_union_below_a_null_record_is_not_judged(raw_batch: RawBatch) -> None:
    inner = record(field("u", ["int", "string"]), name="N")
    reader = record(field("f", ["null", record(field("u", "string"), name="N")]))
    rows, bad = read(raw_batch, record(field("f", ["null", inner])), reader, {"f": None}, {"f": {"u": "x"}})
    assert (rows, bad) == ([{"f": None}, {"f": {"u": "x"}}], [])


def test_avro_default_of_another_type_refuses_the_writer(raw_batch: RawBatch) -> None:
    rows, bad = read(raw_batch, record(field("id", "long")), record(field("x", "int", default="no")), {"id": 1})
    assert rows == []
    assert bad == [("SCHEMA_INCOMPATIBLE", "x: the default is no int: not an integer")]

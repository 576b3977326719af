"""Encoded values and keys as records: the framing, the columns, the refusals. No registry: the ids are given."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import DefinitionError, MissingError, TerminalError
from penstock.kafka import KafkaSettings
from penstock.kafka.topics import TopicFacts
from penstock.model import COORDINATES_FIELD
from penstock.registry import RegistrySettings
from penstock.sinks.kafka.encode.avro import AvroRows, avro_schema, avro_type
from penstock.sinks.kafka.encode.encoding import Encoder, Encoders, Encoding, Encodings
from penstock.sinks.kafka.encode.json_rows import JsonRows, json_schema
from penstock.sinks.kafka.encode.shapes import UnfitError
from penstock.sinks.kafka.fitting import TopicCache
from penstock.sinks.kafka.records import RowRecords

WHEN = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string(), nullable=False)])
VALUE = Encoder("value", COLUMNS, True, b"\0\0\0\1\2", AvroRows.of(COLUMNS, avro_schema(COLUMNS, "pipeline.Out")))
ID = pa.schema([COLUMNS.field("id")])
KEY = Encoder("key", ID, False, b"\0\0\0\0\x07", AvroRows.of(ID, avro_type(ID.field(0), "OutKey")))
MAKER = RowRecords("out", "clean", encoders=Encoders(VALUE, KEY))


def rows_of(**columns: pa.Array) -> pa.RecordBatch:
    count = len(next(iter(columns.values())))
    places = [{"topic": "orders", "partition": 1, "offset": 10 + n, "timestamp": WHEN} for n in range(count)]
    return pa.RecordBatch.from_pydict({**columns, "_penstock": pa.array(places, COORDINATES_FIELD.type)})


def test_record_has_the_framed_bytes_of_its_columns_and_nothing_computed() -> None:
    rows = rows_of(note=pa.array(["x", "yy"]), id=pa.array([1, None]), _penstock_delete=pa.array([True, None]))
    records = MAKER.make(rows)
    assert records.column("value").to_pylist() == [b"\0\0\0\1\2\2\2\2x", b"\0\0\0\1\2\0\4yy"]
    assert records.column("key").to_pylist() == [b"\0\0\0\0\x07\2", None]


def test_row_that_cannot_be_encoded_is_refused_by_its_place_and_the_others_go_on() -> None:
    rows = rows_of(id=pa.array([1, 2, 3]), note=pa.array(["a", None, "c"]))
    good, refused = MAKER.screen(rows)
    assert good.column("id").to_pylist() == [1, 3]
    [refusal] = refused
    assert (refusal.record.topic, refusal.record.partition, refusal.record.start) == ("orders", 1, 11)
    assert refusal.code == "SINK_VALUE_NULL"
    assert refusal.message == "sink out: the value: note is null, and the schema has no null there"


def test_batch_without_any_row_that_can_be_encoded_sends_nothing() -> None:
    good, refused = MAKER.screen(rows_of(id=pa.array([1]), note=pa.array([None], pa.string())))
    book = TopicCache("out", KafkaSettings("nowhere:1"), "clean", facts={"clean": TopicFacts("clean", 1, 1_000_000)})
    records, out = book.fit(good, MAKER.make(good), MAKER)
    assert (records.num_rows, out, len(refused)) == (0, [], 1)


def test_column_that_the_schema_was_made_for_and_is_not_there_is_null() -> None:
    assert MAKER.make(rows_of(note=pa.array(["x"]))).column("value").to_pylist() == [b"\0\0\0\1\2\0\2x"]


def test_column_that_the_schema_was_not_made_for_stops_and_is_not_lost() -> None:
    with pytest.raises(TerminalError, match="SINK_SCHEMA_MISMATCH"):
        MAKER.screen(rows_of(id=pa.array([1]), note=pa.array(["x"]), more=pa.array([1])))


def test_encoders_pickle_with_their_maker() -> None:
    rows = rows_of(id=pa.array([1]), note=pa.array(["x"]))
    assert pickle.loads(pickle.dumps(MAKER)).make(rows) == MAKER.make(rows)


@pytest.mark.parametrize(
    ("columns", "schema", "reason"),
    [(("id", "city"), COLUMNS, 'value: no column "city" in the rows'), (None, pa.schema([]), "value: no columns")],
)
def test_columns_that_the_rows_do_not_have_are_named(
    columns: tuple[str, ...] | None, schema: pa.Schema, reason: str
) -> None:
    encoding = Encoding("avro", RegistrySettings("http://nowhere:1"), columns=columns)
    with pytest.raises(MissingError, match="SINK_SCHEMA_MISMATCH") as raised:
        Encodings("p", "out", "clean", value=encoding).check(schema)
    assert raised.value.summary.endswith(reason)


def test_topic_for_each_row_needs_a_subject() -> None:
    encoding = Encoding("avro", RegistrySettings("http://nowhere:1"))
    with pytest.raises(DefinitionError, match="SINK_SUBJECT_MISSING"):
        Encodings("p", "out", None, value=encoding).check(COLUMNS)


JSON_COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.decimal128(5, 2)),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("raw", pa.binary()),
        pa.field("ratio", pa.float64(), nullable=False),
        pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
        pa.field("by_name", pa.map_(pa.string(), pa.bool_())),
        pa.field("inner", pa.struct([pa.field("x", pa.int8())])),
    ]
)


def test_json_schema_has_a_closed_property_for_each_column() -> None:
    schema = json.loads(json_schema(JSON_COLUMNS, "shop.Order"))
    assert schema["title"] == "Order"
    assert (schema["required"], schema["additionalProperties"]) == (["id", "ratio"], False)
    assert schema["properties"] == {
        "id": {"type": "integer"},
        "price": {"type": ["number", "null"]},
        "day": {"type": ["string", "null"], "format": "date"},
        "at": {"type": ["string", "null"], "format": "date-time"},
        "raw": {"type": ["string", "null"], "contentEncoding": "base64"},
        "ratio": {"type": ["number", "null"]},
        "tags": {"type": ["array", "null"], "items": {"type": "string"}},
        "by_name": {"type": ["object", "null"], "additionalProperties": {"type": ["boolean", "null"]}},
        "inner": {
            "type": ["object", "null"],
            "properties": {"x": {"type": ["integer", "null"]}},
            "additionalProperties": False,
        },
    }


def test_json_rows_are_the_rows_as_json_and_a_forbidden_null_is_found() -> None:
    encoder = JsonRows.of(JSON_COLUMNS, json_schema(JSON_COLUMNS, "Order"))
    row: dict[str, Any] = {"id": 1, "price": Decimal("1.50"), "day": date(2026, 1, 1), "at": WHEN, "raw": b"\xff"}
    row |= {"ratio": float("nan"), "tags": ["a"], "by_name": [("k", True)], "inner": {"x": 1}}
    loose = pa.schema([field.with_nullable(True) for field in JSON_COLUMNS])
    rows = pa.RecordBatch.from_pylist([row, {**row, "id": None}], schema=loose)
    [misfit] = encoder.misfits(rows)
    assert misfit.rows.tolist() == [False, True]
    assert json.loads(encoder.encode(rows).to_pylist()[0]) == {
        "id": 1,
        "price": 1.5,
        "day": "2026-01-01",
        "at": "2026-01-01T00:00:00.000000Z",
        "raw": "/w==",
        "ratio": None,
        "tags": ["a"],
        "by_name": {"k": True},
        "inner": {"x": 1},
    }


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"properties": {"id": {}}}, "no property note"),
        ({"properties": {"id": {}, "note": {}}, "required": ["more"]}, "requires more"),
    ],
)
def test_json_schema_that_the_columns_do_not_fit_is_refused(schema: dict[str, Any], told: str) -> None:
    with pytest.raises(UnfitError, match=told):
        JsonRows.of(COLUMNS, json.dumps(schema))

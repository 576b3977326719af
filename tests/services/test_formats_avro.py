"""Avro through whole pipelines: every type, references, keys, subjects and framings, written by what is not ours."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, record_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from fastavro.schema import fingerprint, to_parsing_canonical_form
from tests import orders
from tests.orders import drain
from tests.producers import RegistryProducer
from tests.sessions import LANES_LONG
from tests.tables import read_table

pytestmark = pytest.mark.services
Write = Callable[..., Path]


def record(name: str, *fields: tuple[Any, ...]) -> dict[str, Any]:
    """Each field is a name, a type and, where it has one, a default."""
    listed = [{"name": n, "type": t, **({"default": default[0]} if default else {})} for n, t, *default in fields]
    return {"type": "record", "name": name, "namespace": "shop", "fields": listed}


def logical(kind: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


@pytest.fixture(scope="module")
def producer(topics: Any, registry: Any) -> RegistryProducer:
    return RegistryProducer(topics.brokers, registry.url)


def avro(registry: Any, **more: Any) -> dict[str, Any]:
    return {"format": "avro", "registry": {"url": registry.url}, **more}


rows_of = partial(orders.rows_of, by="id")


PLACE = record("Place", ("street", "string"), ("no", ["null", "int"]))
ALL_TYPES = record(
    "All",
    ("id", "long"),
    ("nothing", "null"),
    ("flag", "boolean"),
    ("small", "int"),
    ("ratio", "float"),
    ("amount", "double"),
    ("text", "string"),
    ("raw", "bytes"),
    ("price", logical("bytes", "decimal", precision=20, scale=4)),
    ("fixed_price", logical("fixed", "decimal", precision=38, scale=10, name="Price", size=16)),
    ("day", logical("int", "date")),
    ("time_ms", logical("int", "time-millis")),
    ("time_us", logical("long", "time-micros")),
    ("at_ms", logical("long", "timestamp-millis")),
    ("at_us", logical("long", "timestamp-micros")),
    ("local_ms", logical("long", "local-timestamp-millis")),
    ("local_us", logical("long", "local-timestamp-micros")),
    ("token", logical("string", "uuid")),
    ("status", {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID"]}),
    ("code", {"type": "fixed", "name": "Code", "size": 3}),
    ("place", PLACE),
    ("maybe_place", ["null", "Place"]),
    ("last", ["string", "null"]),
    ("number", ["int", "long"]),
    ("several", ["null", "long", "string", "Place"]),
    ("tags", {"type": "array", "items": "string"}),
    ("grid", {"type": "array", "items": {"type": "array", "items": ["null", "int"]}}),
    ("places", {"type": "array", "items": "Place"}),
    ("labels", {"type": "map", "values": "long"}),
    ("sites", {"type": "map", "values": ["null", "Place"]}),
)
FULL = {
    "id": 2**63 - 1,
    "nothing": None,
    "flag": True,
    "small": -(2**31),
    "ratio": 0.5,
    "amount": 5e-324,
    "text": "Ö \U0001f600 \0",
    "raw": b"\0\xff",
    "price": Decimal("-9999999999999999.9999"),
    "fixed_price": Decimal("1234567890123456789012345678.0123456789"),
    "day": date(1, 1, 1),
    "time_ms": time(23, 59, 59, 999_000),
    "time_us": time(23, 59, 59, 999_999),
    "at_ms": datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC),
    "at_us": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    "local_ms": datetime(2026, 1, 2, 3, 4, 5, 678_000),
    "local_us": datetime(1969, 12, 31, 23, 59, 59, 999_999),
    "token": uuid.UUID(int=7),
    "status": "PAID",
    "code": b"abc",
    "place": {"street": "Ring", "no": 1},
    "maybe_place": {"street": "", "no": None},
    "last": "x",
    "number": 2**40,
    "several": {"street": "Weg", "no": 2},
    "tags": ["a", ""],
    "grid": [[1, None], []],
    "places": [{"street": "A", "no": 3}],
    "labels": {"a": 1},
    "sites": {"here": {"street": "B", "no": None}, "there": None},
}
EMPTY = FULL | {
    "id": 0,
    "flag": False,
    "maybe_place": None,
    "last": None,
    "number": 1,
    "several": 5,
    "tags": [],
    "grid": [],
    "places": [],
    "labels": {},
    "sites": {},
}


def as_read(row: dict[str, Any]) -> dict[str, Any]:
    """The row as the columns have it: see the table of types."""
    members = [None, None, None]
    members[2 if isinstance(row["several"], dict) else 0] = row["several"]
    return {name: value for name, value in row.items() if name != "nothing"} | {
        "time_ms": 86_399_999,
        "time_us": 86_399_999_999,
        "token": str(row["token"]),
        "several": dict(zip(("member0", "member1", "member2"), members, strict=True)),
        "labels": list(row["labels"].items()),
        "sites": list(row["sites"].items()),
    }


@LANES_LONG
def test_every_avro_type_comes_out_equal(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write, lane: str
) -> None:
    topic = topics.create(1)
    producer.avro(topic, ALL_TYPES, [EMPTY, FULL])
    file = pipeline_file(topic, lane=lane, decode=avro(registry), name=f"all-{topic}")
    assert drain(file, session).rows_out == 2
    assert rows_of(file) == [as_read(EMPTY), as_read(FULL)]


def test_schema_that_refers_to_another_subject_is_read(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write
) -> None:
    topic, subject = topics.create(1), registry.subject("place")
    producer.client.register_schema(subject, Schema(json.dumps(PLACE), "AVRO"))
    order = record("Order", ("id", "long"), ("at", "Place"), ("old", {"type": "array", "items": "shop.Place"}))
    rows = [{"id": 1, "at": {"street": "Ring", "no": 1}, "old": [{"street": "Weg", "no": None}]}]
    references = [SchemaReference("shop.Place", subject, 1)]
    producer.avro(topic, Schema(json.dumps(order), "AVRO", references), rows)
    file = pipeline_file(topic, decode=avro(registry), name=f"reference-{topic}")
    drain(file, session)
    assert rows_of(file) == rows


def test_keys_are_the_type_that_their_schema_says(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write
) -> None:
    value = record("Value", ("id", "long"))
    keys: dict[str, tuple[Any, list[Any]]] = {
        "text": ("string", ["Ö", ""]),
        "number": ("long", [-1, 2**63 - 1]),
        "parts": (PLACE, [{"street": "Ring", "no": 1}, {"street": "Weg", "no": None}]),
    }
    names = {kind: topics.create(1, prefix=kind) for kind in keys}
    for kind, (schema, values) in keys.items():
        producer.avro(names[kind], value, [{"id": 0}, {"id": 1}], schema, values)
    decode = avro(registry, key=avro(registry, column="its_key"))
    file = pipeline_file(
        names["text"],
        name=f"keys-{names['text']}",
        source={"topics": list(names.values())},
        decode={"by_topic": dict.fromkeys(names.values(), decode)},
        routes=[{"topics": [topic], "sinks": [kind]} for kind, topic in names.items()],
        sinks=[{"name": kind, "type": "delta", "path": f"lake/{kind}"} for kind in keys],
    )
    assert drain(file, session).rows_out == 6
    for kind, (_, values) in keys.items():
        assert [row["its_key"] for row in rows_of(file, f"lake/{kind}")] == values


def test_subject_of_the_records_name_is_read_where_the_file_says_so(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    order = record(f"Order_{topic.replace('-', '_')}", ("id", "long"))
    strategy = {"subject.name.strategy": record_subject_name_strategy}
    encode = AvroSerializer(producer.client, json.dumps(order), conf=strategy)
    for number in range(3):
        producer.send(topic, encode({"id": number}, SerializationContext(topic, MessageField.VALUE)))
    producer.flush()
    file = pipeline_file(topic, decode=avro(registry, subject=f"shop.{order['name']}"), name=f"named-{topic}")
    assert drain(file, session).rows_out == 3
    assert rows_of(file) == [{"id": 0}, {"id": 1}, {"id": 2}]


def test_fixed_version_and_a_file_each_read_what_other_versions_wrote(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write, tmp_path: Path
) -> None:
    topic = topics.create(1)
    producer.avro(topic, record("Order", ("id", "int"), ("name", "string")), [{"id": 1, "name": "Ann"}])
    later = record("Order", ("id", "int"), ("name", "string"), ("city", "string", "?"))
    producer.avro(topic, later, [{"id": 2, "name": "Bob", "city": "Ulm"}])
    file = pipeline_file(topic, decode=avro(registry, version=1), name=f"fixed-{topic}")
    drain(file, session)
    assert rows_of(file) == [{"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}]
    reader = record(
        "Order", ("id", "long"), ("customer", "string"), ("city", ["null", "string"], None), ("n", "int", 7)
    )
    reader["fields"][1]["aliases"] = ["name"]
    folder = tmp_path / "by_file"
    folder.mkdir()
    (folder / "order.avsc").write_text(json.dumps(reader))
    decode = avro(registry, schema_file="order.avsc")
    file = pipeline_file(topic, folder=folder, decode=decode, name=f"file-{topic}")
    drain(file, session)
    assert rows_of(file) == [
        {"id": 1, "customer": "Ann", "city": None, "n": 7},
        {"id": 2, "customer": "Bob", "city": "Ulm", "n": 7},
    ]


def test_records_without_a_registry_are_read_by_files(
    session: Any, topics: Any, pipeline_file: Write, tmp_path: Path
) -> None:
    old, new = record("Order", ("id", "int")), record("Order", ("id", "long"), ("city", ["null", "string"], None))
    for name, schema in (("old", old), ("new", new)):
        (tmp_path / f"{name}.avsc").write_text(json.dumps(schema))
    plain, single = topics.create(1, prefix="plain"), topics.create(1, prefix="single")
    topics.send(plain, [_written(new, {"id": n, "city": None}) for n in range(3)])
    stranger = _single(record("Order", ("id", "float")), {"id": 1.0})
    topics.send(single, [_single(old, {"id": 1}), _single(new, {"id": 2**40, "city": "Ulm"}), stranger])
    file = pipeline_file(
        plain,
        name=f"files-{plain}",
        source={"topics": [plain, single]},
        decode={
            "by_topic": {
                plain: {"format": "avro", "schema_file": "new.avsc"},
                single: {
                    "format": "avro",
                    "schema_file": "new.avsc",
                    "framing": "single_object",
                    "writer_files": ["old.avsc"],
                },
            }
        },
        routes=[{"topics": [plain], "sinks": ["plain"]}, {"topics": [single], "sinks": ["single"]}],
        sinks=[{"name": name, "type": "delta", "path": f"lake/{name}"} for name in ("plain", "single")],
    )
    assert drain(file, session).rows_out == 5
    assert rows_of(file, "lake/plain") == [{"id": n, "city": None} for n in range(3)]
    assert rows_of(file, "lake/single") == [{"id": 1, "city": None}, {"id": 2**40, "city": "Ulm"}]
    [bad] = read_table(file.parent / "lake/quarantine").to_pylist()
    assert (bad["code"], bad["value"]) == ("WRONG_FINGERPRINT", stranger)


def _written(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(dict(schema)), row)
    return body.getvalue()


def _single(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    mark = bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
    return b"\xc3\x01" + mark + _written(schema, row)

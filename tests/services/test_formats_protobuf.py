"""Protobuf through whole pipelines: every type, imports, indexes, versions and files, written by what is not ours."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests import orders
from tests.orders import drain
from tests.producers import RegistryProducer
from tests.protos import descriptor_set, message_classes
from tests.sessions import LANES_LONG
from tests.tables import read_table

pytestmark = pytest.mark.services
Write = Callable[..., Path]
AT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)

ALL_TYPES = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
enum Status { NEW = 0; PAID = 1; }
message Place { string street = 1; optional int32 no = 2; }
message All {
  message Item { string sku = 1; Place place = 2; }
  int64 id = 1;
  int32 small = 2;
  uint32 unsigned = 3;
  uint64 large = 4;
  sint64 zigzag = 5;
  fixed64 fixed = 6;
  sfixed32 sfixed = 7;
  float ratio = 8;
  double amount = 9;
  bool flag = 10;
  string text = 11;
  bytes raw = 12;
  Status status = 13;
  Place place = 14;
  optional string maybe = 15;
  repeated int32 numbers = 16;
  repeated Item items = 17;
  map<string, int64> labels = 18;
  map<int32, Place> sites = 19;
  oneof pay { string card = 20; int64 cash = 21; Place bank = 22; }
  google.protobuf.Timestamp at = 23;
  google.protobuf.Duration took = 24;
  google.protobuf.Int64Value points = 25;
  google.protobuf.StringValue note = 26;
  google.protobuf.Struct extra = 27;
  repeated Status steps = 28;
}
"""
DEFAULTS = {
    "id": 0,
    "small": 0,
    "unsigned": 0,
    "large": Decimal(0),
    "zigzag": 0,
    "fixed": Decimal(0),
    "sfixed": 0,
    "ratio": 0.0,
    "amount": 0.0,
    "flag": False,
    "text": "",
    "raw": b"",
    "status": "NEW",
    "place": None,
    "maybe": None,
    "numbers": [],
    "items": [],
    "labels": [],
    "sites": [],
    "card": None,
    "cash": None,
    "bank": None,
    "at": None,
    "took": None,
    "points": None,
    "note": None,
    "extra": None,
    "steps": [],
}
FULL = DEFAULTS | {
    "id": 2**63 - 1,
    "small": -1,
    "unsigned": 2**32 - 1,
    "large": Decimal(2**64 - 1),
    "zigzag": -(2**63),
    "fixed": Decimal(2**63),
    "sfixed": -(2**31),
    "ratio": 0.5,
    "amount": 5e-324,
    "flag": True,
    "text": "Ö \U0001f600",
    "raw": b"\0\xff",
    "status": "PAID",
    "place": {"street": "Ring", "no": 1},
    "maybe": "",
    "numbers": [1, -1, 0],
    "items": [{"sku": "a", "place": {"street": "Weg", "no": None}}, {"sku": "", "place": None}],
    "labels": [("a", 1)],
    "sites": [(-1, {"street": "B", "no": 0})],
    "bank": {"street": "", "no": 2},
    "at": AT,
    "took": {"seconds": 3, "nanos": 500_000_000},
    "points": 0,
    "note": "n",
    "extra": '{"a":[1,null,{"b":true}],"c":"ü"}',
    "steps": ["PAID", "NEW"],
}


@pytest.fixture(scope="module")
def producer(topics: Any, registry: Any) -> RegistryProducer:
    return RegistryProducer(topics.brokers, registry.url)


def protobuf(registry: Any, message: str, **more: Any) -> dict[str, Any]:
    return {"format": "protobuf", "registry": {"url": registry.url}, "message": message, **more}


rows_of = partial(orders.rows_of, by="id")


def bad_of(file: Path) -> dict[bytes, str]:
    found = read_table(file.parent / "lake/quarantine").to_pylist()
    return {row["value"]: row["code"] for row in found}


def encoded(producer: RegistryProducer, topic: str, message: Any) -> bytes:
    encode = ProtobufSerializer(type(message), producer.client, {"use.deprecated.format": False})
    found = encode(message, SerializationContext(topic, MessageField.VALUE))
    assert found is not None
    return found


def full_message(classes: dict[str, Any]) -> Any:
    make, place = classes["shop.All"], classes["shop.Place"]
    message = make(
        id=2**63 - 1,
        small=-1,
        unsigned=2**32 - 1,
        large=2**64 - 1,
        zigzag=-(2**63),
        fixed=2**63,
        sfixed=-(2**31),
        ratio=0.5,
        amount=5e-324,
        flag=True,
        text="Ö \U0001f600",
        raw=b"\0\xff",
        status=1,
        place=place(street="Ring", no=1),
        maybe="",
        numbers=[1, -1, 0],
        items=[make.Item(sku="a", place=place(street="Weg")), make.Item()],
        labels={"a": 1},
        bank=place(no=2),
        steps=[1, 0],
    )
    message.sites[-1].CopyFrom(place(street="B", no=0))
    message.at.FromDatetime(AT)
    message.took.FromTimedelta(timedelta(seconds=3.5))
    message.points.value, message.note.value = 0, "n"
    message.points.SetInParent()
    message.extra.update({"a": [1, None, {"b": True}], "c": "ü"})
    return message


@LANES_LONG
def test_every_protobuf_type_comes_out_equal(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write, lane: str
) -> None:
    topic = topics.create(1)
    classes = message_classes({"all.proto": ALL_TYPES})
    producer.protobuf(topic, classes["shop.All"], [classes["shop.All"](), full_message(classes)])
    file = pipeline_file(topic, lane=lane, decode=protobuf(registry, "shop.All"), name=f"all-{topic}")
    assert drain(file, session).rows_out == 2
    assert rows_of(file) == [DEFAULTS, FULL]


def test_proto2_has_its_defaults_and_refuses_what_lacks_a_required_field(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    text = """
    syntax = "proto2";
    package shop;
    message Old {
      enum Status { UNKNOWN = 3; PAID = 1; }
      required int64 id = 1;
      optional string name = 2 [default = "nobody"];
      optional Status status = 3 [default = PAID];
      optional int32 count = 4;
      repeated int32 numbers = 5 [packed = true];
    }
    """
    old = message_classes({"old.proto": text})["shop.Old"]
    producer.protobuf(topic, old, [old(id=1), old(id=2, name="", status=3, count=0, numbers=[1, 2])])
    lacking = encoded(producer, topic, old(id=3))[:-2]
    producer.send(topic, lacking)
    producer.flush()
    file = pipeline_file(topic, decode=protobuf(registry, "shop.Old"), name=f"proto2-{topic}")
    drain(file, session)
    assert rows_of(file) == [
        {"id": 1, "name": "nobody", "status": "PAID", "count": None, "numbers": []},
        {"id": 2, "name": "", "status": "UNKNOWN", "count": 0, "numbers": [1, 2]},
    ]
    assert bad_of(file) == {lacking: "MISSING_FIELD"}


def test_imports_are_read_by_the_schemas_references(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write
) -> None:
    topic = topics.create(1)
    texts = {
        "money.proto": 'syntax = "proto3"; package money; message Money { int64 cents = 1; string unit = 2; }',
        "order.proto": """
        syntax = "proto3";
        package shop;
        import "money.proto";
        message Order { int64 id = 1; money.Money total = 2; repeated money.Money parts = 3; }
        """,
    }
    # The serializer registers an import under the name of its file.
    named = {f"{topic}-{name}": text.replace("money.proto", f"{topic}-money.proto") for name, text in texts.items()}
    classes = message_classes(named)
    money = classes["money.Money"](cents=5, unit="EUR")
    producer.protobuf(topic, classes["shop.Order"], [classes["shop.Order"](id=1, total=money, parts=[money, money])])
    assert producer.client.get_latest_version(f"{topic}-value").schema.references
    file = pipeline_file(topic, decode=protobuf(registry, "shop.Order"), name=f"imports-{topic}")
    drain(file, session)
    total = {"cents": 5, "unit": "EUR"}
    assert rows_of(file) == [{"id": 1, "total": total, "parts": [total, total]}]


def test_indexes_tell_which_message_of_the_file_the_bytes_are(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write, tmp_path: Path
) -> None:
    topic = topics.create(1)
    text = """
    syntax = "proto3";
    package shop;
    message First { int64 id = 1; }
    message Second { message Inner { int64 id = 1; } message Other { int64 id = 1; Inner inner = 2; } int64 id = 3; }
    """
    classes = message_classes({"several.proto": text})
    values = {name: encoded(producer, topic, kind(id=7)) for name, kind in classes.items()}
    cut = values["shop.Second.Other"][:-1]
    strange = values["shop.First"][:5] + b"\x02\x08" + values["shop.First"][6:]
    for value in (*values.values(), cut, strange):
        producer.send(topic, value)
    producer.flush()
    for number, wanted in enumerate(("shop.Second", "shop.Second.Other")):
        folder = tmp_path / str(number)
        decode = protobuf(registry, wanted)
        file = pipeline_file(topic, folder=folder, decode=decode, name=f"index-{number}-{topic}")
        assert drain(file, session).rows_out == 1
        assert rows_of(file)[0]["id"] == 7
        wrong = [value for name, value in values.items() if name != wanted]
        expected = dict.fromkeys([*wrong, cut, strange], "WRONG_MESSAGE_INDEX")
        if wanted == "shop.Second.Other":
            expected[cut] = "TRUNCATED"
        assert bad_of(file) == expected


def test_three_versions_in_one_batch_are_read_by_the_newest_and_by_the_first(
    session: Any, topics: Any, registry: Any, producer: RegistryProducer, pipeline_file: Write, tmp_path: Path
) -> None:
    topic = topics.create(1)
    fields = ["int64 id = 1;", "string city = 2;", "optional int32 count = 3;"]
    for number in (1, 2, 3, 1):
        body = " ".join(fields[:number])
        text = f'syntax = "proto3"; package shop; message Order {{ {body} }}'
        order = message_classes({"order.proto": text})["shop.Order"]
        given = {"id": number, "city": "Ulm", "count": 0}
        message = order(**dict(list(given.items())[:number]))
        producer.protobuf(topic, order, [message])
    file = pipeline_file(topic, decode=protobuf(registry, "shop.Order"), name=f"versions-{topic}")
    assert drain(file, session).rows_out == 4
    assert rows_of(file) == [
        {"id": 1, "city": "", "count": None},
        {"id": 1, "city": "", "count": None},
        {"id": 2, "city": "Ulm", "count": None},
        {"id": 3, "city": "Ulm", "count": 0},
    ]
    first = protobuf(registry, "shop.Order", version=1)
    file = pipeline_file(topic, folder=tmp_path / "first", decode=first, name=f"first-{topic}")
    assert drain(file, session).rows_out == 4
    assert rows_of(file) == [{"id": 1}, {"id": 1}, {"id": 2}, {"id": 3}]


def test_messages_without_a_registry_are_read_by_a_descriptor_file(
    session: Any, topics: Any, pipeline_file: Write, tmp_path: Path
) -> None:
    topic = topics.create(1)
    (tmp_path / "all.bin").write_bytes(descriptor_set({"all.proto": ALL_TYPES}))
    classes = message_classes({"all.proto": ALL_TYPES})
    whole = full_message(classes).SerializeToString()
    topics.send(topic, [b"", whole, whole[:-1]])
    decode = {"format": "protobuf", "descriptor_file": "all.bin", "message": "shop.All"}
    file = pipeline_file(topic, decode=decode, name=f"descriptors-{topic}")
    assert drain(file, session).rows_out == 2
    assert rows_of(file) == [DEFAULTS, FULL]
    assert bad_of(file) == {whole[:-1]: "TRUNCATED"}

"""Every kind of Protobuf field, and what it becomes."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from google.protobuf import struct_pb2
from tests.unit.decoders.protobuf_messages import classes, decode, descriptors

from penstock.decoders.protobuf.decoder import ProtobufDecoder
from penstock.decoders.protobuf.types import message_of
from penstock.errors import DefinitionError

SCALARS = """
syntax = "proto3";
message M {
  int32 a = 1; sint32 b = 2; sfixed32 c = 3; int64 d = 4; sint64 e = 5; sfixed64 f = 6; uint32 g = 7; fixed32 h = 8;
  uint64 i = 9; fixed64 j = 10; float k = 11; double l = 12; bool m = 13; string n = 14; bytes o = 15;
}
"""
KNOWN = """
syntax = "proto3";
import "google/protobuf/any.proto"; import "google/protobuf/duration.proto"; import "google/protobuf/empty.proto";
import "google/protobuf/field_mask.proto"; import "google/protobuf/struct.proto"; import "google/type/date.proto";
import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
message M {
  google.protobuf.Timestamp at = 1; google.protobuf.Duration took = 2; google.protobuf.Int32Value i = 3;
  google.protobuf.UInt64Value u = 4; google.protobuf.StringValue s = 5; google.protobuf.Struct object = 6;
  google.protobuf.Value any_json = 7; google.protobuf.ListValue list = 8; google.protobuf.Any any = 9;
  google.protobuf.Empty empty = 10; google.protobuf.FieldMask mask = 11; google.type.Date day = 12;
  repeated google.protobuf.Timestamp times = 13; repeated google.protobuf.BoolValue flags = 14;
  map<string, google.protobuf.Value> values = 15; map<int32, google.protobuf.Empty> empties = 16;
  repeated google.protobuf.Empty nothings = 17;
}
"""
PROTO2 = """
syntax = "proto2";
enum E { Z = 0; A = 1; B = 2; }
message S { required int32 x = 1; optional string y = 2 [default = "why"]; }
message M {
  optional int32 plain = 1; optional int32 seven = 2 [default = 7]; optional E e = 3 [default = B];
  optional uint64 big = 4 [default = 18446744073709551615]; optional bool yes = 5 [default = true];
  optional bytes raw = 6 [default = "q\\001"]; repeated E many = 7; optional S s = 8;
  repeated int32 packed = 9 [packed = true]; map<string, E> named = 10; optional E bare = 11;
}
"""


def test_scalars_have_the_types_that_hold_all_their_values(raw_batch):
    most = {"a": -(2**31), "b": -(2**31), "c": 2**31 - 1, "d": -(2**63), "e": -(2**63), "f": 2**63 - 1}
    most |= {"g": 2**32 - 1, "h": 2**32 - 1, "i": 2**64 - 1, "j": 2**64 - 1, "k": 0.5, "l": 1e300, "m": True}
    most |= {"n": "é\0", "o": b"\xff\0"}
    message = classes(descriptors(SCALARS))["M"](**most)

    rows = decode(raw_batch, SCALARS, "M", [message.SerializeToString(), b""])

    i32, i64, u64 = pa.int32(), pa.int64(), pa.decimal128(20, 0)
    kinds = [i32, i32, i32, i64, i64, i64, i64, i64, u64, u64, pa.float32(), pa.float64(), pa.bool_()]
    assert rows.schema.types[:-1] == [*kinds, pa.string(), pa.binary()]
    first, second = rows.drop_columns(["_penstock"]).to_pylist()
    assert first == most
    assert second == dict.fromkeys("abcdefghijkl", 0) | {"m": False, "n": "", "o": b""}


def test_well_known_types_become_what_the_table_of_types_says(raw_batch):
    message = classes(descriptors(KNOWN))["M"]()
    message.at.seconds, message.at.nanos = -1, 1999
    message.took.seconds, message.took.nanos = -5, -7
    message.i.value = 0
    message.u.value = 2**64 - 1
    message.s.value = "s"
    message.object.update({"b": 1, "a": [1.5, None, {"c": "é"}]})
    message.any_json.string_value = "text"
    message.list.extend([True, 2])
    message.any.type_url, message.any.value = "t/x", b"\x01"
    message.empty.SetInParent()
    message.mask.paths.append("a.b")
    message.day.year = 2026
    message.times.add().seconds = 1
    message.flags.add().value = True
    message.flags.add()
    message.values["k"].null_value = struct_pb2.NULL_VALUE
    message.empties[3].SetInParent()
    message.nothings.add()

    first, absent = decode(raw_batch, KNOWN, "M", [message.SerializeToString(), b""]).to_pylist()

    del first["_penstock"], absent["_penstock"]
    assert first == {
        "at": datetime(1969, 12, 31, 23, 59, 59, 1, UTC),
        "took": {"seconds": -5, "nanos": -7},
        "i": 0,
        "u": Decimal(2**64 - 1),
        "s": "s",
        "object": '{"a":[1.5,null,{"c":"é"}],"b":1}',
        "any_json": '"text"',
        "list": "[true,2]",
        "any": {"type_url": "t/x", "value": b"\x01"},
        "empty": True,
        "mask": {"paths": ["a.b"]},
        "day": {"year": 2026, "month": 0, "day": 0},
        "times": [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)],
        "flags": [True, False],
        "values": [("k", "null")],
        "empties": [(3, True)],
        "nothings": [True],
    }
    assert {name for name, value in absent.items() if value == []} == {
        "times",
        "flags",
        "values",
        "empties",
        "nothings",
    }
    assert all(value is None or value == [] for value in absent.values())


def test_proto2_fields_that_are_absent_have_their_own_default_or_null(raw_batch):
    message = classes(descriptors(PROTO2))["M"]()
    message.s.x = 3

    [row] = decode(raw_batch, PROTO2, "M", [message.SerializeToString()]).to_pylist()

    assert (row["plain"], row["seven"], row["e"], row["big"]) == (None, 7, "B", Decimal(2**64 - 1))
    assert (row["yes"], row["raw"], row["bare"], row["s"]) == (True, b"q\x01", None, {"x": 3, "y": "why"})
    assert (row["many"], row["packed"], row["named"]) == ([], [], [])


def test_closed_enum_forgets_numbers_without_a_name_and_an_open_one_shows_them(raw_batch):
    closed = bytes([3 << 3, 1, 3 << 3, 9, 7 << 3, 1, 7 << 3, 9, 7 << 3, 2, 11 << 3, 9])
    text = 'syntax = "proto3"; enum E { Z = 0; A = 1; } message M { E e = 1; repeated E many = 2; optional E o = 3; }'

    [row] = decode(raw_batch, PROTO2, "M", [closed]).to_pylist()
    [other] = decode(raw_batch, text, "M", [bytes([8, 9, 18, 2, 1, 9])]).to_pylist()

    assert (row["e"], row["many"], row["bare"]) == ("A", ["A", "B"], None)
    assert (other["e"], other["many"], other["o"]) == ("9", ["A", "9"], None)


NESTED = """
syntax = "proto3";
message In { int32 x = 1; repeated int32 r = 2; oneof o { int32 p = 3; string q = 4; } map<int32, In2> m = 5; }
message In2 { optional bool b = 1; }
message M { In one = 1; repeated In many = 2; map<string, In> named = 3; map<bool, bytes> flags = 4; int32 last = 5; }
"""


def test_nested_repeated_and_map_fields_keep_their_rows_apart(raw_batch):
    made = classes(descriptors(NESTED))["M"]
    messages = [made(), made(), made(last=3)]
    messages[1].one.x = 1
    messages[1].many.add().p = 0
    messages[1].many.add().r.extend([1, 2])
    messages[1].named["k"].m[4].b = True
    messages[1].named["l"].SetInParent()
    messages[2].flags[True] = b"t"

    rows = decode(raw_batch, NESTED, "M", [message.SerializeToString() for message in messages]).to_pylist()

    nothing = {"x": 0, "r": [], "p": None, "q": None, "m": []}
    assert [row["one"] for row in rows] == [None, nothing | {"x": 1}, None]
    assert [row["many"] for row in rows] == [[], [nothing | {"p": 0}, nothing | {"r": [1, 2]}], []]
    assert dict(rows[1]["named"]) == {"k": nothing | {"m": [(4, {"b": True})]}, "l": nothing}
    assert [row["flags"] for row in rows] == [[], [], [(True, b"t")]]
    assert [row["last"] for row in rows] == [0, 0, 3]


@pytest.mark.parametrize(
    ("encoded", "column", "value"),
    [
        (b"\x28\x01\x28\x02", "last", 2),
        (b"\x0a\x02\x08\x05\x0a\x04\x12\x02\x06\x07", "one", {"x": 5, "r": [6, 7], "p": None, "q": None, "m": []}),
        (b"\x0a\x03\x22\x01z\x0a\x02\x18\x01", "one", {"x": 0, "r": [], "p": 1, "q": None, "m": []}),
        (b"\x0a\x06\x10\x01\x12\x02\x02\x03", "one", {"x": 0, "r": [1, 2, 3], "p": None, "q": None, "m": []}),
        (b"\x22\x04\x08\x01\x12\x00\x22\x05\x08\x01\x12\x01z", "flags", [(True, b"z")]),
        (b"\x22\x00", "flags", [(False, b"")]),
        (b"\x2a\x01\x05\x28\x06", "last", 6),
        (b"\x9b\x06\x08\x01\x9b\x06\x9c\x06\x9c\x06\x28\x07", "last", 7),
    ],
    ids=["last", "merged", "oneof", "packed", "key twice", "empty entry", "other wire type", "unknown groups"],
)
def test_bytes_that_say_a_thing_twice_or_unknown_things_are_read_by_the_rules(raw_batch, encoded, column, value):
    rows = decode(raw_batch, NESTED, "M", [b"\x28\x01", encoded, b"\x28\x03"])

    assert rows.column(column).to_pylist()[1] == value
    assert rows.column("last").to_pylist()[::2] == [1, 3]


def test_struct_that_comes_in_two_pieces_is_merged(raw_batch):
    made = classes(descriptors(KNOWN))["M"]
    pieces = [made(), made()]
    pieces[0].object["a"] = 1
    pieces[1].object["b"] = 2

    rows = decode(raw_batch, KNOWN, "M", [b"".join(piece.SerializeToString() for piece in pieces)])

    assert rows.column("object").to_pylist() == ['{"a":1,"b":2}']


def test_groups_are_read_one_by_one_and_said_once(raw_batch):
    text = """syntax = "proto2"; package g;
        message M { optional int32 x = 1; repeated group G = 2 { optional int32 y = 3; } }"""
    message = classes(descriptors(text))["M"](x=1)
    message.g.add().y = 5
    message.g.add()

    [row] = decode(raw_batch, text, "g.M", [message.SerializeToString()]).to_pylist()
    decoder = ProtobufDecoder(descriptors(text), "g.M")

    assert (row["x"], row["g"]) == (1, [{"y": 5}, {"y": None}])
    assert decoder.notices() == ["g.M is decoded message by message: g.M.g is a group"]
    assert decoder.notices() == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("message M { int32 x = 1; M again = 2; }", "PROTOBUF_RECURSIVE"),
        (
            "message M { A a = 1; } message A { map<string, B> b = 1; } message B { repeated A a = 1; }",
            "PROTOBUF_RECURSIVE",
        ),
        ("message M {}", "PROTOBUF_EMPTY"),
        ("message Other { int32 x = 1; }", "PROTOBUF_MESSAGE"),
        ("message M { int32 x = 1 [json_name = 'a']; int32 X = 2 [json_name = 'b']; }", "DECODE_COLUMN"),
        ("message M { int32 _penstock = 1; }", "DECODE_COLUMN"),
        (
            "message M { M1 a = 1; M1 b = 2; M1 c = 3; M1 d = 4; }"
            + "".join(
                f"message M{n} {{ {' '.join(f'M{n + 1} f{k} = {k};' for k in range(1, 9))} }}" for n in range(1, 5)
            )
            + "message M5 { int32 x = 1; }",
            "PROTOBUF_TOO_WIDE",
        ),
        (
            "message M { M1 a = 1; }"
            + "".join(f"message M{n} {{ M{n + 1} a = 1; }}" for n in range(1, 31))
            + "message M31 { int32 x = 1; }",
            "PROTOBUF_TOO_DEEP",
        ),
    ],
)
def test_message_without_columns_of_its_own_is_refused_at_once(text, code):
    with pytest.raises(DefinitionError) as caught:
        ProtobufDecoder(descriptors(f'syntax = "proto3"; {text}'), "M")
    assert caught.value.code == code


def test_recursive_refusal_names_the_way_through(raw_batch):
    with pytest.raises(DefinitionError) as caught:
        message_of(descriptors('syntax = "proto3"; package p; message A { B b = 1; } message B { A a = 1; }'), "p.A")
    assert caught.value.context["through"] == "p.A -> p.B -> p.A"

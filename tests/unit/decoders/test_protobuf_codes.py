"""Bad messages: each with its code, each alone, and none that takes memory before it is refused."""

from __future__ import annotations

import pickle
import resource

import pyarrow as pa
import pytest
from tests.unit.decoders.protobuf_messages import ORDERS, classes, descriptors

from penstock.decoders.protobuf.decoder import ProtobufDecoder
from penstock.decoders.protobuf.wire import MAX_CELLS, read_indexes
from penstock.model import BAD_SCHEMA

HEADER = b"\0\0\0\0\x01"
SECOND = b"\x02\x02"
MADE = classes(descriptors(ORDERS))
DECODER = ProtobufDecoder(descriptors(ORDERS), "shop.Order")


def framed(body: bytes, indexes: bytes = SECOND) -> bytes:
    return HEADER + indexes + body


def offsets(rows: pa.RecordBatch) -> list[int]:
    return [row["offset"] for row in rows.column("_penstock").to_pylist()]


@pytest.mark.parametrize(
    ("value", "code", "words"),
    [
        (None, "TOMBSTONE", ""),
        (b"", "SHORT_MESSAGE", ""),
        (b"\0\0\0\1", "SHORT_MESSAGE", ""),
        (b"\x08\x01\x10\x01\x18\x01", "WRONG_MAGIC", ""),
        (framed(b"x" * 600), "MESSAGE_TOO_LARGE", ""),
        (HEADER, "TRUNCATED", "message indexes"),
        (HEADER + b"\x04\x02", "TRUNCATED", "message indexes"),
        (HEADER + b"\x01", "WRONG_MESSAGE_INDEX", "-1 levels"),
        (HEADER + b"\xfe\x01", "WRONG_MESSAGE_INDEX", "127 levels"),
        (HEADER + b"\xff" * 12, "WRONG_MESSAGE_INDEX", "more than 10 bytes"),
        (framed(b"", b"\0"), "WRONG_MESSAGE_INDEX", "[0] is not shop.Order"),
        (framed(b"", b"\x02\x08"), "WRONG_MESSAGE_INDEX", "[4]"),
        (framed(b"\x08"), "TRUNCATED", "id: the bytes end inside a number"),
        (framed(b"\x12\x05ab"), "TRUNCATED", "name: 5 bytes should follow, and 2 do"),
        (framed(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "TRUNCATED", "name"),
        (framed(b"\x32\x03\x0a\x05a"), "TRUNCATED", "address.city: 5 bytes"),
        (framed(b"\x19\0\0"), "TRUNCATED", "amount"),
        (framed(b"\x9b\x06\x08\x01"), "TRUNCATED", "group"),
        (framed(b"\x00\x01"), "MALFORMED_PROTOBUF", "number 0"),
        (framed(b"\x0e"), "MALFORMED_PROTOBUF", "wire type 6"),
        (framed(b"\x9c\x06"), "MALFORMED_PROTOBUF", "group 99"),
        (framed(b"\x9b\x06\xa4\x06"), "MALFORMED_PROTOBUF", "group 100"),
        (framed(b"\x62\x05\0\0\0\0\1"), "MALFORMED_PROTOBUF", "prices: 5 bytes of packed items"),
        (framed(b"\x08" + b"\xff" * 10 + b"\x01"), "MALFORMED_PROTOBUF", "id: a number of more than 10 bytes"),
        (framed(b"\x88\x80\x80\x80\x80\x00\x05"), "MALFORMED_PROTOBUF", "more than 5 bytes"),
        (framed(b"\x12\x01\xff"), "INVALID_UTF8", "name"),
        (framed(b"\x3a\x01a\x3a\x01\xff"), "INVALID_UTF8", "tags"),
        (framed(b"\x42\x03\x0a\x01\xff"), "INVALID_UTF8", "counts.key"),
        (framed(b"\x9b\x06" * 101 + b"\x9c\x06" * 101), "TOO_DEEP", "over 100 levels"),
        (framed(b"\x22\x0b\x08" + b"\xff" * 8 + b"\x7f\x00"), "MALFORMED_PROTOBUF", "at: no field has the number 0"),
        (framed(b"\x22\x0a\x08" + b"\xff" * 8 + b"\x7f"), "OUT_OF_RANGE", "at: expected a Timestamp, found seconds"),
        (framed(b"\x22\x06\x10\x80\x94\xeb\xdc\x03"), "OUT_OF_RANGE", "at: expected a Timestamp, found nanos"),
    ],
)
def test_bad_message_costs_only_itself_and_says_what_is_wrong(raw_batch, value, code, words):
    good = [framed(MADE["Order"](id=n).SerializeToString()) for n in (1, 3)]
    raw = raw_batch([good[0], value, good[1]])

    split = ProtobufDecoder(descriptors(ORDERS), "shop.Order", max_bytes=500).decode(raw)

    assert split.good.column("id").to_pylist() == [1, 3]
    assert offsets(split.good) == [1000, 1002]
    assert split.bad.schema == BAD_SCHEMA
    assert split.bad.column("code").to_pylist() == [code]
    assert words in split.bad.column("message")[0].as_py()
    assert split.bad.select(raw.schema.names) == raw.slice(1, 1)


def test_proto2_refuses_missing_required_fields_and_strings_that_are_not_utf8(raw_batch):
    text = """syntax = "proto2"; message S { required int32 x = 1; }
        message M { required int32 id = 1; optional string s = 2; map<string, int32> m = 3; repeated S many = 4; }"""
    bad = [b"", b"\x08\x01\x12\x01\xff", b"\x08\x01\x1a\x03\x0a\x01\xff", b"\x08\x01\x22\x02\x08\x01\x22\x00"]
    decoder = ProtobufDecoder(descriptors(text), "M", framing="none")

    split = decoder.decode(raw_batch([b"\x08\x05", *bad, b"\x08\x06"]))

    assert split.good.column("id").to_pylist() == [5, 6]
    assert list(zip(split.bad.column("code").to_pylist(), split.bad.column("message").to_pylist(), strict=True)) == [
        ("MISSING_FIELD", "id: the field is required, and it is not there"),
        ("INVALID_UTF8", "s: the bytes of the string are not UTF-8"),
        ("INVALID_UTF8", "m[key]: the bytes of the string are not UTF-8"),
        ("MISSING_FIELD", "many[1].x: the field is required, and it is not there"),
    ]


def test_message_without_bytes_is_all_defaults(raw_batch):
    split = DECODER.decode(raw_batch([framed(b"")]))

    [row] = split.good.to_pylist()
    assert (row["id"], row["status"], row["address"], row["tags"], row["card"]) == (0, "NEW", None, [], None)


def test_dense_bad_messages_leave_every_good_one(raw_batch):
    good = framed(MADE["Order"](id=7, name="n").SerializeToString())
    values = [good if n % 3 else good[:-1] for n in range(20_000)]

    split = DECODER.decode(raw_batch(values))

    assert offsets(split.good) == [1000 + n for n in range(20_000) if n % 3]
    assert set(split.bad.column("code").to_pylist()) == {"TRUNCATED"}
    assert split.good.num_rows + split.bad.num_rows == 20_000


def test_suspects_among_many_are_read_in_their_place(raw_batch):
    plain, twice = MADE["Order"](id=1, card="c"), MADE["Order"](id=2, cash=5)
    values = [framed(plain.SerializeToString()) for _ in range(1000)]
    values[500] = framed(plain.SerializeToString() + twice.SerializeToString())

    rows = DECODER.decode(raw_batch(values)).good.to_pylist()

    assert [(row["id"], row["card"], row["cash"]) for row in rows[499:502]] == [
        (1, "c", None),
        (2, None, 5),
        (1, "c", None),
    ]
    assert [row["_penstock"]["offset"] for row in rows] == list(range(1000, 2000))


WIDE = (
    'syntax = "proto3"; message W { ' + " ".join(f"int64 f{n} = {n};" for n in range(1, 101)) + " }"
    " message M { repeated W w = 1; repeated int32 packed = 2; map<int32, W> m = 3; int32 id = 4; }"
)


@pytest.mark.parametrize(
    "bomb",
    [b"\x0a\x00" * 4_000_000, b"\x12\x80\x80\x80\x04" + b"\x01" * (8 << 20), b"\x1a\x00" * 4_000_000],
    ids=["messages", "packed", "entries"],
)
def test_collection_bomb_is_refused_before_memory_is_taken(raw_batch, bomb):
    decoder = ProtobufDecoder(descriptors(WIDE), "M", framing="none")
    raw = raw_batch([b"\x20\x01", bomb, b"\x20\x03"])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    split = decoder.decode(raw)

    assert split.bad.column("code").to_pylist() == ["TOO_MANY_ITEMS"]
    assert str(MAX_CELLS) in split.bad.column("message")[0].as_py()
    assert split.good.column("id").to_pylist() == [1, 3]
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 100


def test_large_message_within_the_limit_is_read(raw_batch):
    message = classes(descriptors(WIDE))["M"](packed=range(300_000))
    message.w.add().f100 = 5

    rows = ProtobufDecoder(descriptors(WIDE), "M", framing="none").decode(raw_batch([message.SerializeToString()])).good

    assert rows.column("packed").to_pylist() == [list(range(300_000))]
    assert rows.column("w")[0].as_py()[0]["f100"] == 5


@pytest.mark.parametrize(("tombstones", "ids"), [("pass", [1, None, 3]), ("drop", [1, 3])])
def test_tombstone_passed_on_or_dropped_leaves_its_neighbours(raw_batch, tombstones, ids):
    raw = raw_batch([framed(b"\x08\x01"), None, framed(b"\x08\x03")])

    split = ProtobufDecoder(descriptors(ORDERS), "shop.Order", tombstones=tombstones).decode(raw)

    assert split.good.column("id").to_pylist() == ids
    assert split.bad.num_rows == 0


def test_message_as_deep_as_the_limit_is_read_in_a_block_of_many(raw_batch):
    deep = b"\x9b\x06" * 100 + b"\x9c\x06" * 100

    split = DECODER.decode(raw_batch([framed(b"\x08\x01"), framed(deep + b"\x08\x02"), framed(b"\x08\x03")]))

    assert split.good.column("id").to_pylist() == [1, 2, 3]


def test_batch_without_records_gives_the_schema(raw_batch):
    assert DECODER.decode(raw_batch([])).good.schema == DECODER.schema


def test_many_kinds_of_indexes_in_one_batch_are_told_apart(raw_batch):
    kinds = [bytes([2, 2 * index]) for index in range(40)]
    raw = raw_batch([framed(b"\x08\x05", kind) for kind in [*kinds, b"\x02\x02", *reversed(kinds)]])

    split = DECODER.decode(raw)

    assert offsets(split.good) == [1001, 1040, 1079]
    assert set(split.bad.column("code").to_pylist()) == {"WRONG_MESSAGE_INDEX"}
    assert split.bad.num_rows == 78


def test_indexes_are_zigzag_varints_and_a_lone_zero_is_the_first():
    assert read_indexes(b"\0rest") == ((0,), 1)
    assert read_indexes(b"\x02\x00") == ((0,), 2)
    assert read_indexes(b"\x04\x02\x04") == ((1, 2), 3)
    assert read_indexes(b"\x02\xac\x02") == ((150,), 3)


def test_protobuf_decoder_survives_pickling_and_stays_small(raw_batch):
    DECODER.decode(raw_batch([framed(b"\x08\x05")]))
    sent = pickle.dumps(DECODER)

    assert pickle.loads(sent) == DECODER
    assert len(sent) < 3000
    assert pickle.loads(sent).decode(raw_batch([framed(b"\x08\x05")])).good.column("id").to_pylist() == [5]

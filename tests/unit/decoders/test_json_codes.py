"""Every way a JSON record can be bad: its code, its message, and what else becomes of the batch."""

from __future__ import annotations

import json
import time
import tracemalloc

import pyarrow as pa
import pytest

from penstock.decoders import JsonDecoder
from penstock.decoders.json.reason import MAX_DEPTH, JsonReference, nesting_depth
from penstock.decoders.refusal import RefusedError
from penstock.model import BAD_SCHEMA, RAW_SCHEMA

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("buyer", pa.struct([pa.field("zip", pa.int32(), nullable=False), pa.field("city", pa.string())])),
        pa.field("lines", pa.list_(pa.field("item", pa.struct([pa.field("sku", pa.string(), nullable=False)])))),
    ]
)

BAD = [
    (None, "TOMBSTONE", "the record has no value"),
    (b'{"id":1,"name":"' + b"x" * 70000 + b'"}', "MESSAGE_TOO_LARGE", "70018 bytes, and the limit is 65536"),
    (b'{"id":1,"name":"\xff"}', "INVALID_UTF8", "byte 0xff at position 16"),
    (b"", "EMPTY_MESSAGE", "the message is empty"),
    (b" \r\n\t", "EMPTY_MESSAGE", "the message is only blanks"),
    (b'{"id":1', "MALFORMED_JSON", "Expecting ',' delimiter at character 7, near '{\"id\":1'"),
    (b'{"id":1,}', "MALFORMED_JSON", None),
    (b'{"id":01}', "MALFORMED_JSON", None),
    (b'{"id":+1}', "MALFORMED_JSON", None),
    (b'{"id":1}\x00}', "TRAILING_DATA", None),
    (b'{"id":1,\x00"x":2}', "MALFORMED_JSON", None),
    (b'{"id":1/* one */}', "MALFORMED_JSON", None),
    (b"{'id':1}", "MALFORMED_JSON", None),
    (b'{"id":1,"name":"a\nb"}', "MALFORMED_JSON", None),
    (b'{"id":1,"name":"\\ud800"}', "MALFORMED_JSON", "an escaped surrogate stands alone in a string"),
    (b'{"id":1,"other":"\\udc00"}', "MALFORMED_JSON", "an escaped surrogate stands alone in a string"),
    (b'{"id":1,"amount":NaN}', "MALFORMED_JSON", None),
    (b'{"id":1,"amount":-Inf}', "MALFORMED_JSON", None),
    (b'\xef\xbb\xbf{"id":1}', "MALFORMED_JSON", None),
    (b"hello", "MALFORMED_JSON", None),
    (b"[1]", "NOT_AN_OBJECT", "the message is JSON, but not an object"),
    (b"null", "NOT_AN_OBJECT", None),
    (b"[" * 100 + b"]" * 100, "NOT_AN_OBJECT", None),
    (b'{"id":1}{"id":2}', "TRAILING_DATA", "more text after the object, from character 8"),
    (b'{"id":1}\n{"id":2}', "TRAILING_DATA", None),
    (b'{"id":1},"zz":{}', "TRAILING_DATA", None),
    (b'{"id":1} null {"id":2}', "TRAILING_DATA", None),
    (b"[" * 30000, "TOO_DEEP", f"nested 30000 levels deep, and the limit is {MAX_DEPTH}"),
    (b'{"id":1,"x":' + b"[" * 4000 + b"]" * 4000 + b"}", "TOO_DEEP", None),
    (b'{"id":"1"}', "WRONG_TYPE", "id: expected BIGINT, found a string"),
    (b'{"id":1.0}', "WRONG_TYPE", "id: expected BIGINT, found a number with a fraction or an exponent"),
    (b'{"id":true}', "WRONG_TYPE", "id: expected BIGINT, found a boolean"),
    (b'{"id":1,"name":5}', "WRONG_TYPE", "name: expected STRING, found a number"),
    (b'{"id":1,"amount":"12.5"}', "WRONG_TYPE", "amount: expected DOUBLE, found a string"),
    (b'{"id":1,"at":1700000000}', "WRONG_TYPE", "at: expected TIMESTAMP, found a number"),
    (b'{"id":1,"at":"yesterday"}', "WRONG_TYPE", None),
    (b'{"id":1,"buyer":[]}', "WRONG_TYPE", "buyer: expected STRUCT, found an array"),
    (b'{"id":1,"buyer":{"zip":"x"}}', "WRONG_TYPE", "buyer.zip: expected INT, found a string"),
    (b'{"id":1,"lines":[{"sku":"a"},{"sku":{}}]}', "WRONG_TYPE", "lines[1].sku: expected STRING, found an object"),
    (b'{"id":9223372036854775808}', "OUT_OF_RANGE", "id: the number does not fit BIGINT"),
    (b'{"id":1,"amount":1e400}', "OUT_OF_RANGE", "amount: the number does not fit DOUBLE"),
    (b'{"id":1,"amount":' + b"9" * 400 + b"}", "OUT_OF_RANGE", None),
    (b'{"id":1,"at":"2026-02-30T00:00:00Z"}', "OUT_OF_RANGE", "at: the string is no possible TIMESTAMP"),
    (b'{"id":1,"at":"0000-01-01T00:00:00Z"}', "OUT_OF_RANGE", None),
    (b'{"id":1,"at":"9999-12-31T23:59:59-05:00"}', "OUT_OF_RANGE", None),
    (b"{}", "MISSING_FIELD", "id: expected BIGINT NOT NULL, found no such field"),
    (b'{"id":null}', "MISSING_FIELD", "id: expected BIGINT NOT NULL, found null"),
    (b'{"id":1,"buyer":{"city":"x"}}', "MISSING_FIELD", "buyer.zip: expected INT NOT NULL, found no such field"),
    (b'{"id":1,"lines":[{"sku":"a"},{}]}', "MISSING_FIELD", None),
    (b'{"id":1,"id":1}', "DUPLICATE_FIELD", "id: the field is given twice"),
    (b'{"id":1,"\\u0069d":2}', "DUPLICATE_FIELD", None),
    (b'{"id":1,"buyer":{"zip":1,"zip":1}}', "DUPLICATE_FIELD", "buyer.zip: the field is given twice"),
]


def good(number: int) -> bytes:
    return json.dumps({"id": number, "name": f"n{number}", "amount": number / 4}).encode()


@pytest.mark.parametrize(("value", "code", "message"), BAD)
def test_bad_record_among_good_ones_has_its_reason_and_its_neighbours_survive(raw_batch, value, code, message):
    raw = raw_batch([good(0), good(1), value, good(3)])

    split = JsonDecoder(COLUMNS, max_bytes=65536).decode(raw)

    assert split.bad.schema == BAD_SCHEMA
    assert split.bad.column("stage").to_pylist() == ["decode"]
    assert split.bad.column("code").to_pylist() == [code]
    if message is not None:
        assert split.bad.column("message").to_pylist() == [message]
    assert split.bad.select(RAW_SCHEMA.names).to_pylist() == raw.slice(2, 1).to_pylist()
    assert split.good.column("id").to_pylist() == [0, 1, 3]
    assert [row["offset"] for row in split.good.column("_penstock").to_pylist()] == [1000, 1001, 1003]


def test_all_kinds_of_bad_records_at_once_are_each_refused_in_order(raw_batch):
    values = [part for index, (bad, _, _) in enumerate(BAD) for part in (good(index), bad)]

    split = JsonDecoder(COLUMNS, max_bytes=65536).decode(raw_batch(values))

    assert split.bad.column("code").to_pylist() == [code for _, code, _ in BAD]
    assert split.bad.column("value").to_pylist() == [value for value, _, _ in BAD]
    assert split.good.column("id").to_pylist() == list(range(len(BAD)))


def test_messages_of_bad_records_never_hold_a_field_value(raw_batch):
    secret = "hunter2-hunter2-hunter2"
    values = [
        json.dumps({"id": secret}),
        json.dumps({"id": 1, "at": secret}),
        json.dumps({"id": 1, "buyer": secret}),
        json.dumps({"id": 1, "lines": [secret]}),
    ]

    split = JsonDecoder(COLUMNS).decode(raw_batch([value.encode() for value in values]))

    assert split.bad.num_rows == 4
    assert not any(secret in message for message in split.bad.column("message").to_pylist())


def test_unknown_field_with_quarantine_is_refused_at_every_level(raw_batch):
    values = [b'{"id":1}', b'{"id":1,"colour":2}', b'{"id":1,"buyer":{"zip":1,"street":null}}']

    split = JsonDecoder(COLUMNS, extra_fields="quarantine").decode(raw_batch(values))

    assert split.good.num_rows == 1
    assert split.bad.column("code").to_pylist() == ["UNKNOWN_FIELD"] * 2
    assert split.bad.column("message").to_pylist() == [
        "colour: the schema has no such field",
        "buyer.street: the schema has no such field",
    ]


NOT_FINITE = [
    b'{"id":1,"x":NaN}',
    b'{"id":2,"x":[1, -Inf]}',
    b'{"id":3,"x":{"y" :\n-Infinity}}',
    b'{"id":4,"x":Infinity}',
    b'{"id":5,"x":[-NaN,0]}',
    b'{"id":6,"x":[{"y":[Inf]}]}',
    b'{"id":7,"amount":Infinity}',
]
FINITE = [b'{"id":8,"x":1e999,"x":"Inf"}', b'{"id":9,"x":"a, NaN","Inf":": -Infinity"}', b'{"id":10,"Infos":null}']


@pytest.mark.parametrize("extra_fields", ["ignore", "keep"])
@pytest.mark.parametrize("first", [[], [b"{}"] * 40], ids=["in a block", "beside bad ones"])
def test_not_finite_words_are_malformed_in_fields_outside_the_schema_too(raw_batch, extra_fields, first):
    split = JsonDecoder(COLUMNS, extra_fields=extra_fields).decode(raw_batch([*first, *NOT_FINITE, *FINITE]))

    # Kept fields may not come twice.
    assert split.good.column("id").to_pylist() == ([8, 9, 10] if extra_fields == "ignore" else [9, 10])
    bad = split.bad.slice(len(first)).to_pylist()
    assert [(row["code"], row["value"]) for row in bad[: len(NOT_FINITE)]] == [
        ("MALFORMED_JSON", value) for value in NOT_FINITE
    ]
    assert bad[0]["message"] == "NaN at character 12, which JSON does not have"


def test_deep_value_under_the_limit_is_good_in_a_block_and_alone(raw_batch):
    deep = b'{"id":7,"x":' + b"[" * 3900 + b"]" * 3900 + b"}"

    assert JsonDecoder(COLUMNS).decode(raw_batch([deep])).good.num_rows == 1
    assert JsonDecoder(COLUMNS).decode(raw_batch([deep, b"{}", b'{"id":1.0}'])).good.num_rows == 1


@pytest.mark.parametrize("number", [b"9" * 5_000_000, b'"' + b"0" * 5_000_000 + b'"', b"1." + b"0" * 1_000])
def test_decimal_longer_than_any_needs_is_refused_before_it_is_converted(number):
    columns = pa.schema([pa.field("price", pa.decimal128(38, 2))])
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError, match="OUT_OF_RANGE"):
            JsonReference(columns, "ignore").read(f'{{"price":{number.decode()}}}')
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * len(number) + 1_000_000


@pytest.mark.parametrize("end", ["", "\\", "\\\\", '"'])
def test_depth_of_a_message_full_of_escapes_is_found_in_one_pass(end):
    began = time.process_time()
    assert nesting_depth("[" * 101 + '"' + '\\"' * 500_000 + end) == 101
    assert time.process_time() - began < 10, "from each quote anew it would be minutes"

"""Whole batches through the JSON decoder: alignment, order, density of bad records, settings, pickling."""

from __future__ import annotations

import json
import pickle
import random

import pyarrow as pa
import pytest

from penstock.decoders import JsonDecoder
from penstock.decoders.json.decoder import JsonFormat

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def message(number: int) -> bytes:
    return json.dumps({"id": number, "name": f"n{number}", "other": [number]}).encode()


def offsets(rows: pa.RecordBatch) -> list[int]:
    return [row["offset"] for row in rows.column("_penstock").to_pylist()]


def test_two_objects_beside_an_empty_message_do_not_cancel_out(raw_batch):
    values = [message(0), message(1) + message(2), b"", message(3), b'{"id":4', b',"name":"x"}', message(6)]

    split = JsonDecoder(COLUMNS).decode(raw_batch(values))

    assert split.good.column("id").to_pylist() == [0, 3, 6]
    assert offsets(split.good) == [1000, 1003, 1006]
    assert split.bad.column("code").to_pylist() == [
        "TRAILING_DATA",
        "EMPTY_MESSAGE",
        "MALFORMED_JSON",
        "MALFORMED_JSON",
    ]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (b'{"id":1,"name":"}', b'{"}'),
        (b'{"id":1,"x":{}', b"{}}"),
        (b'{"id":1,"x":[{}', b"{}]}"),
        (b'{"id":1}{"id":2}', b'{"id":3}\x00}'),
        (b'{"id":1} {"id":2,"x":{}', b'{"y":1}}'),
    ],
)
def test_messages_that_would_merge_across_a_boundary_are_both_refused(raw_batch, left, right):
    # The doubled message makes up for the row that a merge would lose.
    values = [message(0), left, right, message(3) + message(4), message(5)]

    split = JsonDecoder(COLUMNS).decode(raw_batch(values))

    assert split.good.column("id").to_pylist() == [0, 5]
    assert split.bad.column("offset").to_pylist() == [1001, 1002, 1003]


def test_many_doubled_messages_before_a_broken_one_are_each_refused(raw_batch):
    # Arrow names the broken message by the count of objects, a row far behind the end of the block.
    values = [message(0), *[message(1) + message(2)] * 60, b'{"id":1,}', message(3)]

    split = JsonDecoder(COLUMNS).decode(raw_batch(values))

    assert split.good.column("id").to_pylist() == [0, 3]
    assert split.bad.column("code").to_pylist() == ["TRAILING_DATA"] * 60 + ["MALFORMED_JSON"]


def test_pretty_printed_and_blank_padded_messages_are_good(raw_batch):
    pretty = json.dumps({"id": 1, "name": "a\nb"}, indent=2).encode()

    split = JsonDecoder(COLUMNS).decode(raw_batch([pretty, b" \n" + message(2) + b"\r\n", pretty]))

    assert split.good.column("id").to_pylist() == [1, 2, 1]
    assert split.good.column("name").to_pylist() == ["a\nb", "n2", "a\nb"]


@pytest.mark.parametrize("bad", [b'{"id":1,}', b'{"id":1.5}', b'{"id":null}', b"\xff", b"", None])
@pytest.mark.parametrize("share", [0.0002, 0.05, 1.0])
def test_batch_with_a_share_of_bad_records_keeps_every_good_one_in_order(raw_batch, bad, share):
    chance = random.Random(7)
    values = [bad if chance.random() < share else message(number) for number in range(12_000)]

    split = JsonDecoder(COLUMNS).decode(raw_batch(values))

    expected = [number for number, value in enumerate(values) if value is not bad]
    assert split.good.column("id").to_pylist() == expected
    assert offsets(split.good) == [1000 + number for number in expected]
    assert split.bad.num_rows == 12_000 - len(expected)
    assert split.bad.column("value").to_pylist() == [bad] * split.bad.num_rows


@pytest.mark.parametrize("bad", [b'{"id":1,}', b'{"id":1.5}'])
def test_one_bad_record_in_a_large_batch_costs_few_extra_reads(raw_batch, monkeypatch, bad):
    read_rows = []
    read = JsonFormat.read_block

    def counting(self, messages):
        read_rows.append(len(messages))
        return read(self, messages)

    monkeypatch.setattr(JsonFormat, "read_block", counting)
    values = [message(number) for number in range(40_000)]
    values[21_000] = bad

    JsonDecoder(COLUMNS).decode(raw_batch(values))

    assert sum(read_rows) < 40_000 + 5 * 8192


def test_large_messages_are_read_in_blocks_of_bounded_size(raw_batch, monkeypatch):
    monkeypatch.setattr(JsonFormat, "block_bytes", 10_000)
    values = [json.dumps({"id": number, "name": "x" * 3000}).encode() for number in range(50)]

    split = JsonDecoder(COLUMNS).decode(raw_batch(values))

    assert split.good.column("id").to_pylist() == list(range(50))


def test_slice_of_a_larger_batch_is_decoded_alone(raw_batch):
    raw = raw_batch([b"bad", message(1), b"{}", message(3), b"bad"]).slice(1, 3)

    split = JsonDecoder(COLUMNS).decode(raw)

    assert split.good.column("id").to_pylist() == [1, 3]
    assert offsets(split.good) == [1001, 1003]
    assert split.bad.column("offset").to_pylist() == [1002]


def test_empty_batch_gives_an_empty_split_in_the_schema(raw_batch):
    decoder = JsonDecoder(COLUMNS, extra_fields="keep")

    split = decoder.decode(raw_batch([]))

    assert split.good.schema == decoder.schema
    assert (split.good.num_rows, split.bad.num_rows) == (0, 0)


def test_extra_fields_kept_are_texts_or_compact_json_and_null_where_none(raw_batch):
    extras = b'{"id":1,"s":"a\\"b","n":1.50,"e":1E5,"z":null,"o":{"k": [1, "\xc3\xa4", true]}}'
    plain = b'{"id":2,"name":"x"}'
    decoder = JsonDecoder(COLUMNS, extra_fields="keep", extra_column="rest")

    split = decoder.decode(raw_batch([plain, extras, plain, b'{"id":3,"q":1,"q":2}']))

    assert split.good.schema == decoder.schema
    assert decoder.schema.names == ["id", "name", "rest", "_penstock"]
    assert split.good.column("rest").to_pylist() == [
        None,
        [("s", 'a"b'), ("n", "1.50"), ("e", "1E5"), ("z", None), ("o", '{"k":[1,"ä",true]}')],
        None,
    ]
    assert split.bad.column("code").to_pylist() == ["DUPLICATE_FIELD"]


def test_extra_field_nested_too_deep_to_keep_is_refused(raw_batch):
    deep = b'{"id":1,"x":' + b"[" * 3000 + b"]" * 3000 + b"}"

    split = JsonDecoder(COLUMNS, extra_fields="keep").decode(raw_batch([deep, b'{"id":2}']))

    assert split.good.column("id").to_pylist() == [2]
    assert split.bad.column("code").to_pylist() == ["TOO_DEEP"]


def test_tombstones_passed_on_are_rows_of_nulls_in_their_place(raw_batch):
    decoder = JsonDecoder(COLUMNS, tombstones="pass")

    split = decoder.decode(raw_batch([None, message(1), None, b'{"id":null}']))

    assert split.good.schema == decoder.schema
    assert split.good.column("id").to_pylist() == [None, 1, None]
    assert offsets(split.good) == [1000, 1001, 1002]
    assert split.bad.column("code").to_pylist() == ["MISSING_FIELD"]


def test_tombstones_dropped_leave_no_trace(raw_batch):
    split = JsonDecoder(COLUMNS, tombstones="drop").decode(raw_batch([None, message(1), None]))

    assert offsets(split.good) == [1001]
    assert split.bad.num_rows == 0


def test_decoder_after_use_pickles_small_and_works_again(raw_batch):
    decoder = JsonDecoder(COLUMNS, extra_fields="keep", tombstones="pass", max_bytes=100)
    raw = raw_batch([message(1), None, b"x" * 101])
    before = decoder.decode(raw)

    body = pickle.dumps(decoder)
    after = pickle.loads(body).decode(raw)

    assert len(body) < 2000
    assert after.good.equals(before.good)
    assert after.bad.equals(before.bad)

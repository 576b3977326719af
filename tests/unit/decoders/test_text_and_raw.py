from __future__ import annotations

import pickle

import pytest

from penstock.decoders import RawDecoder, TextDecoder

VALUES = [b"one\ntwo", None, b"", b"\xff", b"x" * 11, "größe".encode(), None]


@pytest.mark.parametrize(
    ("tombstones", "texts", "good_offsets", "codes"),
    [
        (
            "quarantine",
            ["one\ntwo", "", "größe"],
            [1000, 1002, 1005],
            ["TOMBSTONE", "INVALID_UTF8", "MESSAGE_TOO_LARGE", "TOMBSTONE"],
        ),
        (
            "pass",
            ["one\ntwo", None, "", "größe", None],
            [1000, 1001, 1002, 1005, 1006],
            ["INVALID_UTF8", "MESSAGE_TOO_LARGE"],
        ),
        ("drop", ["one\ntwo", "", "größe"], [1000, 1002, 1005], ["INVALID_UTF8", "MESSAGE_TOO_LARGE"]),
    ],
)
def test_text_with_every_kind_of_value_is_split(raw_batch, tombstones, texts, good_offsets, codes):
    decoder = TextDecoder(column="line", tombstones=tombstones, max_bytes=10)

    split = pickle.loads(pickle.dumps(decoder)).decode(raw_batch(VALUES))

    assert split.good.schema == decoder.schema
    assert decoder.schema.names == ["line", "_penstock"]
    assert split.good.column("line").to_pylist() == texts
    assert [row["offset"] for row in split.good.column("_penstock").to_pylist()] == good_offsets
    assert split.bad.column("code").to_pylist() == codes


def test_text_where_all_is_good_shares_the_values_bytes(raw_batch):
    raw = raw_batch([b"a", b"b"])

    split = TextDecoder().decode(raw)

    assert split.good.column("value").to_pylist() == ["a", "b"]
    assert split.good.column("value").buffers()[2].address == raw.column("value").buffers()[2].address
    assert split.bad.num_rows == 0


def test_raw_passes_every_record_byte_for_byte(raw_batch):
    raw = raw_batch(VALUES)
    decoder = RawDecoder()

    split = decoder.decode(raw)

    assert split.good.schema == decoder.schema
    assert split.good.select(["key", "value", "headers"]).equals(raw.select(["key", "value", "headers"]))
    assert (
        split.good.column("_penstock").to_pylist()
        == raw.select(["topic", "partition", "offset", "timestamp"]).to_pylist()
    )
    assert split.bad.num_rows == 0

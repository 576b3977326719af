"""Tombstones as deletes: keys as objects, text and JSON values, or by a decoder; and keys that say nothing."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.contracts import Decoder
from penstock.decoders import JsonDecoder, RawDecoder, TextDecoder, TombstoneDecoder
from penstock.model import BAD_SCHEMA, RAW_SCHEMA

NUMBER = TombstoneDecoder(pa.schema([pa.field("id", pa.int64())]))
TEXT = TombstoneDecoder(pa.schema([pa.field("name", pa.string())]))
BOTH = TombstoneDecoder(pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())]))


def raw(*keys: bytes | None) -> pa.RecordBatch:
    rows = [
        {"key": key, "value": None, "topic": "t", "partition": 0, "offset": n, "timestamp": datetime.now(UTC)}
        for n, key in enumerate(keys)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RAW_SCHEMA)


@pytest.mark.parametrize(
    ("decoder", "key", "row"),
    [
        (NUMBER, b"17", {"id": 17}),
        (NUMBER, b' {"id": 17, "more": 1}', {"id": 17}),
        (TEXT, b"ann", {"name": "ann"}),
        (TEXT, b'"ann"', {"name": "ann"}),
        (TEXT, b'a"b\\c', {"name": 'a"b\\c'}),
        (TEXT, "ü€".encode(), {"name": "ü€"}),
        (TEXT, b"17", {"name": "17"}),
        (BOTH, b'{"name": "ann", "id": 3}', {"id": 3, "name": "ann"}),
    ],
)
def test_tombstone_with_a_key_becomes_a_delete(decoder: TombstoneDecoder, key: bytes, row: dict[str, object]) -> None:
    split = decoder.decode(raw(key))
    assert split.bad.num_rows == 0
    [found] = split.good.to_pylist()
    assert {name: found[name] for name in row} == row
    assert found["_penstock_delete"] is True
    assert found["_penstock"]["offset"] == 0
    assert split.good.schema.equals(decoder.schema)


@pytest.mark.parametrize(
    ("decoder", "key"),
    [(NUMBER, None), (NUMBER, b"x"), (NUMBER, b"{}"), (NUMBER, b'{"id": null}'), (TEXT, b"\xff"), (BOTH, b"3")],
)
def test_tombstone_with_a_key_that_says_nothing_is_bad_with_its_bytes(
    decoder: TombstoneDecoder, key: bytes | None
) -> None:
    records = raw(b'{"id": 1, "name": "n"}', key)
    split = decoder.decode(records)
    assert split.good.num_rows == 1
    [bad] = split.bad.to_pylist()
    assert (bad["code"], bad["stage"], bad["key"], bad["value"], bad["offset"]) == (
        "TOMBSTONE_KEY",
        "decode",
        key,
        None,
        1,
    )
    assert split.bad.schema.equals(BAD_SCHEMA)


def test_tombstone_decoder_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(NUMBER))
    assert again.decode(raw(b"5")).good.column("id").to_pylist() == [5]


ID = pa.schema([pa.field("id", pa.int64())])
RECORD = JsonDecoder(pa.schema([pa.field("ID", pa.int32()), pa.field("Name", pa.string())]))


@pytest.mark.parametrize(
    ("keys", "decoder", "key", "row"),
    [
        (NUMBER.keys, RECORD, b'{"ID": 17}', {"id": 17}),
        (BOTH.keys, RECORD, b'{"Name": "ann", "ID": 3}', {"id": 3, "name": "ann"}),
        (TEXT.keys, TextDecoder(), b"17", {"name": "17"}),
        (TEXT.keys, RawDecoder(), "ü".encode(), {"name": "ü"}),
        (TEXT.keys, RECORD, b'{"Name": "017"}', {"name": "017"}),
        (NUMBER.keys, TextDecoder(), b"17", {"id": 17}),
        (pa.schema([("id", pa.int16())]), RECORD, b'{"ID": 17}', {"id": 17}),
        (pa.schema([("id", pa.decimal128(4, 1))]), RECORD, b'{"ID": 17}', {"id": Decimal(17)}),
        (pa.schema([("id", pa.string())]), RECORD, b'{"ID": 17}', {"id": "17"}),
    ],
)
def test_tombstone_with_a_decoded_key_becomes_a_delete(
    keys: pa.Schema, decoder: Decoder, key: bytes, row: dict[str, object]
) -> None:
    split = TombstoneDecoder(keys, decoder).decode(raw(key))
    assert split.bad.num_rows == 0
    [found] = split.good.to_pylist()
    assert {name: found[name] for name in row} == row
    assert (found["_penstock_delete"], found["_penstock"]["offset"]) == (True, 0)
    assert split.good.schema.equals(TombstoneDecoder(keys, decoder).schema)


@pytest.mark.parametrize(
    ("keys", "decoder", "key", "why"),
    [
        (ID, RECORD, None, "the record has no key"),
        (ID, RECORD, b"{", "Expecting property name"),
        (ID, RECORD, b'{"Name": "ann"}', "id: the INT is null"),
        (ID, TextDecoder(), b"017", "not exactly a value of BIGINT"),
        (ID, TextDecoder(), b"x", "not exactly a value of BIGINT"),
        (ID, RawDecoder(), b"17\xff", "not exactly"),
        (TEXT.keys, RawDecoder(), b"\xff", "not exactly a value of STRING"),
        (pa.schema([("id", pa.int8())]), RECORD, b'{"ID": 200}', "not exactly a value of TINYINT"),
        (pa.schema([("id", pa.date32())]), RECORD, b'{"ID": 20}', "not exactly a value of DATE"),
        (pa.schema([("other", pa.int32())]), RECORD, b'{"ID": 2}', "it has no field other"),
        (BOTH.keys, TextDecoder(), b"3", "it has no field id"),
    ],
)
def test_tombstone_with_a_decoded_key_that_does_not_fit_is_bad_with_its_bytes(
    keys: pa.Schema, decoder: Decoder, key: bytes | None, why: str
) -> None:
    split = TombstoneDecoder(keys, decoder).decode(raw(key))
    assert split.good.num_rows == 0
    [bad] = split.bad.to_pylist()
    assert (bad["code"], bad["key"], bad["offset"]) == ("TOMBSTONE_KEY", key, 0)
    assert why in bad["message"]


def test_tombstones_with_decoded_keys_keep_their_order_and_their_good_neighbours() -> None:
    decoder = TombstoneDecoder(ID, TextDecoder())
    split = decoder.decode(raw(b"1", b"x", None, b"4", b"5.5", b"6"))
    assert split.good.column("id").to_pylist() == [1, 4, 6]
    assert [at["offset"] for at in split.good.column("_penstock").to_pylist()] == [0, 3, 5]
    assert split.bad.column("offset").to_pylist() == [1, 2, 4]
    assert pickle.loads(pickle.dumps(decoder)) == decoder

"""Tombstones as deletes: keys as objects, as plain text, as JSON values; and keys that say nothing."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from penstock.decoders import TombstoneDecoder
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

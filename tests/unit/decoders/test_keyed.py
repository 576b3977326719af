"""The record's key as a column: its type, null keys, keys that cannot be read, beside good and bad values."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from penstock.contracts import Decoder
from penstock.decoders import JsonDecoder, RawDecoder, TextDecoder
from penstock.decoders.keys import KeyedDecoder
from penstock.errors import DefinitionError
from penstock.model import BAD_SCHEMA

VALUE = JsonDecoder(pa.schema([pa.field("id", pa.int64(), nullable=False)]))
OBJECT = JsonDecoder(pa.schema([pa.field("region", pa.string()), pa.field("n", pa.int64())]))


@pytest.fixture
def keyed_batch(raw_batch):
    """Makes records from pairs of key and value, offsets from 1000."""

    def make(*pairs: tuple[bytes | None, bytes | None]) -> pa.RecordBatch:
        raw = raw_batch([value for _, value in pairs])
        return raw.set_column(0, raw.schema.field(0), pa.array([key for key, _ in pairs], pa.binary()))

    return make


@pytest.mark.parametrize(
    ("key", "written", "kind", "read"),
    [
        (TextDecoder(), "ü".encode(), pa.string(), "ü"),
        (TextDecoder(), b"", pa.string(), ""),
        (RawDecoder(), b"\xff\x00", pa.binary(), b"\xff\x00"),
        (OBJECT, b'{"n": 7}', pa.struct([("region", pa.string()), ("n", pa.int64())]), {"region": None, "n": 7}),
    ],
)
def test_key_becomes_one_column_before_the_coordinates(
    keyed_batch, key: Decoder, written: bytes, kind: pa.DataType, read: object
) -> None:
    decoder = KeyedDecoder(VALUE, key, "_key")
    split = decoder.decode(keyed_batch((written, b'{"id": 1}'), (None, b'{"id": 2}'), (written, b'{"id": 3}')))
    assert split.good.schema.names == ["id", "_key", "_penstock"]
    assert split.good.schema == decoder.schema
    assert split.good.schema.field("_key").type == kind
    assert split.good.column("_key").to_pylist() == [read, None, read]
    assert [at["offset"] for at in split.good.column("_penstock").to_pylist()] == [1000, 1001, 1002]
    assert split.bad.num_rows == 0
    split.good.validate(full=True)


def test_bad_key_costs_its_own_record_alone(keyed_batch) -> None:
    raw = keyed_batch(
        (b'{"n": 1}', b'{"id": 1}'),
        (b"{", b'{"id": 2}'),
        (None, b'{"id": 3}'),
        (b'{"n": 4}', b"not json"),
        (b"{", b"not json"),
        (b'{"n": 6}', b'{"id": 6}'),
    )
    split = KeyedDecoder(VALUE, OBJECT, "k").decode(raw)
    assert [(row["id"], row["k"] and row["k"]["n"]) for row in split.good.to_pylist()] == [(1, 1), (3, None), (6, 6)]
    assert [at["offset"] for at in split.good.column("_penstock").to_pylist()] == [1000, 1002, 1005]
    assert split.bad.schema == BAD_SCHEMA
    assert split.bad.column("offset").to_pylist() == [1001, 1003, 1004]
    assert set(split.bad.column("code").to_pylist()) == {"MALFORMED_JSON"}
    assert [m.startswith("key: ") for m in split.bad.column("message").to_pylist()] == [True, False, False]
    assert split.bad.select(raw.schema.names) == raw.take(pa.array([1, 3, 4]))


def test_key_with_a_code_of_its_own_keeps_it(keyed_batch) -> None:
    split = KeyedDecoder(VALUE, TextDecoder(), "k").decode(keyed_batch((b"\xff", b'{"id": 1}')))
    [bad] = split.bad.to_pylist()
    assert (bad["code"], bad["stage"], bad["value"]) == ("INVALID_UTF8", "decode", b'{"id": 1}')


@pytest.mark.parametrize(
    ("tombstones", "ids", "keys", "bad"),
    [("pass", [1, None], ["a", "b"], 0), ("drop", [1], ["a"], 0), ("quarantine", [1], ["a"], 1)],
)
def test_tombstone_stays_the_value_decoders_business(
    keyed_batch, tombstones: str, ids: list[int | None], keys: list[str], bad: int
) -> None:
    value = JsonDecoder(VALUE.columns, tombstones=tombstones)  # type: ignore[arg-type]
    split = KeyedDecoder(value, TextDecoder(tombstones="drop"), "k").decode(
        keyed_batch((b"a", b'{"id": 1}'), (b"b", None))
    )
    assert (split.good.column("id").to_pylist(), split.good.column("k").to_pylist()) == (ids, keys)
    assert split.bad.column("code").to_pylist() == ["TOMBSTONE"] * bad


def test_batch_without_records_gives_the_schema(keyed_batch) -> None:
    decoder = KeyedDecoder(VALUE, OBJECT, "k")
    assert decoder.decode(keyed_batch()).good.schema == decoder.schema


def test_batch_of_null_keys_gives_nulls(keyed_batch) -> None:
    split = KeyedDecoder(VALUE, OBJECT, "k").decode(keyed_batch((None, b'{"id": 1}')))
    assert split.good.column("k").to_pylist() == [None]


@pytest.mark.parametrize("column", ["ID", "_penstock"])
def test_key_column_with_a_name_that_is_taken_is_refused(column: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        KeyedDecoder(VALUE, TextDecoder(), column)
    assert caught.value.code == "DECODE_COLUMN"


def test_keyed_decoder_survives_pickling(keyed_batch) -> None:
    decoder = KeyedDecoder(VALUE, TextDecoder(), "k")
    decoder.decode(keyed_batch((b"a", b'{"id": 1}')))
    again = pickle.loads(pickle.dumps(decoder))
    assert again == decoder
    assert again.decode(keyed_batch((b"a", b'{"id": 1}'))).good.column("k").to_pylist() == ["a"]

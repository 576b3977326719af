"""Records whose time no timestamp can be: bad ones with their bytes and no time, whatever the format."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from penstock.decoders import (
    JsonDecoder,
    KeyedDecoder,
    RawDecoder,
    TextDecoder,
    TombstoneDecoder,
)
from penstock.model import COORDINATES, LAST_TIMESTAMP, RAW_SCHEMA, TIMESTAMP, bad_records
from penstock.registry import RegisteredSchema

ID = pa.schema([pa.field("id", pa.int64())])
DECODERS = [JsonDecoder(ID), RawDecoder(), TextDecoder()]
BEYOND = [LAST_TIMESTAMP + 1, 2**63 - 1]


def with_times(raw: pa.RecordBatch, times: list[int | None]) -> pa.RecordBatch:
    place = RAW_SCHEMA.get_field_index("timestamp")
    return raw.set_column(place, RAW_SCHEMA.field(place), pa.array(times, TIMESTAMP))


@pytest.mark.parametrize("decoder", DECODERS, ids=repr)
@pytest.mark.parametrize("beyond", BEYOND)
def test_record_with_a_time_beyond_timestamps_is_refused_with_its_bytes(
    raw_batch: Any, decoder: Any, beyond: int
) -> None:
    raw = with_times(raw_batch([b'{"id":1}', b'{"id":2}', b'{"id":3}', b'{"id":4}']), [5, beyond, None, LAST_TIMESTAMP])
    outside = pickle.loads(pickle.dumps(decoder))

    split = outside.decode(raw)

    assert outside.schema == decoder.schema
    assert split.good.equals(decoder.decode(raw.take(pa.array([0, 2, 3]))).good)
    [bad] = split.bad.to_pylist()
    assert (bad["stage"], bad["code"], bad["timestamp"]) == ("decode", "TIMESTAMP_OUT_OF_RANGE", None)
    assert {name: bad[name] for name in RAW_SCHEMA.names[:-1]} == raw.slice(1, 1).drop_columns(
        ["timestamp"]
    ).to_pylist()[0]


def test_record_that_is_bad_for_two_reasons_is_refused_once(raw_batch: Any) -> None:
    raw = with_times(raw_batch([b"{", b"{", b'{"id":1}']), [BEYOND[0], 1, 1])
    split = JsonDecoder(ID).decode(raw)
    assert split.good.column("id").to_pylist() == [1]
    assert sorted(zip(split.bad.column("offset").to_pylist(), split.bad.column("code").to_pylist(), strict=True)) == [
        (1000, "TIMESTAMP_OUT_OF_RANGE"),
        (1001, "MALFORMED_JSON"),
    ]


def test_tombstone_with_a_time_beyond_timestamps_deletes_nothing(raw_batch: Any) -> None:
    raw = raw_batch([None, None]).set_column(0, RAW_SCHEMA.field("key"), pa.array([b"1", b"2"], pa.binary()))
    split = TombstoneDecoder(ID).decode(with_times(raw, [1, BEYOND[1]]))
    assert split.good.column("id").to_pylist() == [1]
    assert split.bad.column("code").to_pylist() == ["TIMESTAMP_OUT_OF_RANGE"]


def test_records_that_are_all_in_range_are_decoded_as_they_are(raw_batch: Any) -> None:
    raw = raw_batch([b'{"id":1}'])
    split = JsonDecoder(ID).decode(raw)
    assert split.good.column(COORDINATES).equals(JsonDecoder(ID).decode(raw).good.column(COORDINATES))
    assert split.bad.num_rows == 0


def test_decoder_of_keys_reports_and_judges_by_the_one_of_values() -> None:
    plain = JsonDecoder(ID)
    keyed = KeyedDecoder(plain, TextDecoder(), "key")
    assert plain.notices() == keyed.notices() == []
    assert not plain.knows_refusals and not keyed.knows_refusals
    assert keyed.refuses(RegisteredSchema(1, "JSON", "{}")) is None


def test_bad_record_read_again_has_no_time_that_cannot_be_said(raw_batch: Any) -> None:
    raw = with_times(raw_batch([b"x", b"y"]), [7, BEYOND[1]])
    told = pa.array(["a", "b"])
    assert bad_records(raw, "sink", told, told).column("timestamp").cast(pa.int64()).to_pylist() == [7, None]

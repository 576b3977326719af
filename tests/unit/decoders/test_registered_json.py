"""JSON with the Confluent header: framing, bad records with their header, tombstones, order, no registry."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from penstock.decoders import JsonDecoder
from penstock.errors import DefinitionError, TransientError
from penstock.model import BAD_SCHEMA
from penstock.registry import RegistrySettings

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
DECODER = JsonDecoder(COLUMNS, framing="confluent")


def framed(body: bytes, schema_id: int = 1) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + body


def offsets(rows: pa.RecordBatch) -> list[int]:
    return [row["offset"] for row in rows.column("_penstock").to_pylist()]


def test_messages_of_several_ids_come_out_in_their_order(raw_batch):
    raw = raw_batch([framed(b'{"id": %d, "name": "n%d"}' % (n, n), n % 3 + 1) for n in range(100)])

    split = DECODER.decode(raw)

    assert split.good.schema == DECODER.schema
    assert split.good.column("id").to_pylist() == list(range(100))
    assert split.good.column("name").to_pylist() == [f"n{n}" for n in range(100)]
    assert offsets(split.good) == raw.column("offset").to_pylist()
    assert split.bad.num_rows == 0


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"", "SHORT_MESSAGE"),
        (b"\0\0\0\1", "SHORT_MESSAGE"),
        (b'{"id": 5}', "WRONG_MAGIC"),
        (framed(b""), "EMPTY_MESSAGE"),
        (framed(b'{"id": '), "MALFORMED_JSON"),
        (framed(b'{"id": "5"}'), "WRONG_TYPE"),
        (framed(b'{"name": "x"}'), "MISSING_FIELD"),
        (framed(b'{"id": 5}{}'), "TRAILING_DATA"),
        (framed(b'{"name": "\xff"}'), "INVALID_UTF8"),
        (framed(b'{"id": 5, "name": "%s"}' % (b"x" * 1000)), "MESSAGE_TOO_LARGE"),
        (None, "TOMBSTONE"),
    ],
)
def test_bad_message_costs_only_itself_and_keeps_its_header(raw_batch, value, code):
    raw = raw_batch([framed(b'{"id": 1}'), value, framed(b'{"id": 3}', 2)])

    split = JsonDecoder(COLUMNS, framing="confluent", max_bytes=500).decode(raw)

    assert split.good.column("id").to_pylist() == [1, 3]
    assert offsets(split.good) == [1000, 1002]
    assert split.bad.schema == BAD_SCHEMA
    assert split.bad.column("code").to_pylist() == [code]
    assert split.bad.column("stage").to_pylist() == ["decode"]
    assert split.bad.select(raw.schema.names) == raw.slice(1, 1)


@pytest.mark.parametrize(("tombstones", "ids"), [("pass", [1, None, 3]), ("drop", [1, 3])])
def test_tombstone_passed_on_or_dropped_leaves_its_neighbours(raw_batch, tombstones, ids):
    raw = raw_batch([framed(b'{"id": 1}'), None, framed(b'{"id": 3}')])

    split = JsonDecoder(COLUMNS, framing="confluent", tombstones=tombstones).decode(raw)

    assert split.good.column("id").to_pylist() == ids
    assert offsets(split.good) == [1000 + (n or 2) - 1 for n in ids]
    assert split.bad.num_rows == 0


def test_extra_fields_are_kept_as_without_a_registry(raw_batch):
    decoder = JsonDecoder(COLUMNS, framing="confluent", extra_fields="keep", extra_column="rest")

    split = decoder.decode(raw_batch([framed(b'{"id": 1, "more": {"a": 1.50}}')]))

    assert split.good.column("rest").to_pylist() == [[("more", '{"a":1.50}')]]


def test_batch_without_records_gives_the_schema(raw_batch):
    assert DECODER.decode(raw_batch([])).good.schema == DECODER.schema


def test_column_that_json_cannot_fill_is_refused_at_once():
    with pytest.raises(DefinitionError) as caught:
        JsonDecoder(pa.schema([("a", pa.time64("us"))]), framing="confluent")
    assert caught.value.code == "DECODE_TYPE"


def test_registered_json_decoder_survives_pickling(raw_batch):
    decoder = JsonDecoder(COLUMNS, "keep", "rest", "pass", 99, "confluent", None, "orders-value", True)
    decoder.decode(raw_batch([framed(b'{"id": 1}')]))

    again = pickle.loads(pickle.dumps(decoder))

    assert again == decoder
    assert again.decode(raw_batch([framed(b'{"id": 1}')])).good.column("id").to_pylist() == [1]


NOWHERE = RegistrySettings("http://me:hidden@127.0.0.1:9", retries=0, timeout=1)


@pytest.mark.parametrize("frozen", [True, False])
def test_registry_that_is_away_raises_and_quarantines_nothing(raw_batch, frozen):
    decoder = JsonDecoder(COLUMNS, framing="confluent", registry=NOWHERE, subject="orders-value", frozen=frozen)
    with pytest.raises(TransientError) as caught:
        decoder.decode(raw_batch([framed(b'{"id": 1}', 7)]))
    assert caught.value.code == "REGISTRY_UNREACHABLE"
    assert ("schema id 7" in caught.value.summary) is frozen
    assert "hidden" not in str(caught.value)


def test_registry_is_not_asked_about_what_is_no_frame(raw_batch):
    split = JsonDecoder(COLUMNS, framing="confluent", registry=NOWHERE).decode(raw_batch([b'{"id": 1}', None]))
    assert split.bad.column("code").to_pylist() == ["WRONG_MAGIC", "TOMBSTONE"]

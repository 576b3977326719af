"""What stands before an Avro value, records of several schemas in one batch, and schemas that refer to others."""

from __future__ import annotations

import json

import pytest
from tests.unit.decoders.conftest import RawBatch

from penstock.decoders.avro.decoder import AvroDecoder, avro_fingerprint, avro_reader
from penstock.decoders.avro.schema import inline
from penstock.registry import ReferencedSchema, RegisteredSchema


def record(**fields: object) -> str:
    return json.dumps({"type": "record", "name": "Row", "fields": [{"name": n, **f} for n, f in fields.items()]})  # type: ignore[dict-item]


V1 = record(id={"type": "int"})
V2 = record(id={"type": "long"}, name={"type": "string"})
READER = record(id={"type": "long"}, name={"type": "string", "default": "none"})


def test_avro_fingerprint_is_the_specifications() -> None:
    # From the specification's own test of the canonical form "int".
    assert avro_fingerprint('"int"') == (0x7275D51A3F395C8F).to_bytes(8, "little")


def test_avro_fingerprint_does_not_change_with_what_the_canonical_form_leaves_out() -> None:
    wordy = json.dumps(json.loads(V2) | {"doc": "rows", "aliases": ["Old"]}, indent=2)
    assert avro_fingerprint(wordy) == avro_fingerprint(V2)


def test_avro_single_objects_are_read_by_their_fingerprints(raw_batch: RawBatch) -> None:
    one, two = (b"\xc3\x01" + avro_fingerprint(schema) for schema in (V1, V2))
    unknown = b"\xc3\x01" + b"\x00" * 8
    messages = [
        one + b"\x02",
        two + b"\x04\x02a",
        b"\xc3\x01short",
        unknown + b"\x02",
        b"\x00" * 12,
        one + b"\x06",
        one,
        None,
    ]
    decoder = AvroDecoder(READER, framing="single_object", writers=(V1, V2), tombstones="pass")
    split = decoder.decode(raw_batch(messages))
    assert split.good.drop_columns(["_penstock"]).to_pylist() == [
        {"id": 1, "name": "none"},
        {"id": 2, "name": "a"},
        {"id": 3, "name": "none"},
        {"id": None, "name": None},
    ]
    assert [place["offset"] for place in split.good.column("_penstock").to_pylist()] == [1000, 1001, 1005, 1007]
    assert split.bad.column("code").to_pylist() == ["SHORT_MESSAGE", "WRONG_FINGERPRINT", "WRONG_MAGIC", "TRUNCATED"]
    assert split.bad.column("value").to_pylist() == [messages[at] for at in (2, 3, 4, 6)]


@pytest.mark.parametrize("messages", [[], [None], [b""]], ids=["no records", "tombstone", "empty value"])
@pytest.mark.parametrize("framing", ["confluent", "none", "single_object"])
def test_avro_batch_with_nothing_to_read_gives_no_rows(
    raw_batch: RawBatch, framing: str, messages: list[bytes | None]
) -> None:
    split = AvroDecoder(READER, framing=framing).decode(raw_batch(messages))  # type: ignore[arg-type]
    assert split.good.num_rows == 0
    assert split.bad.num_rows == len(messages)


def test_avro_frames_without_a_registry_have_the_given_schema(raw_batch: RawBatch) -> None:
    decoder = AvroDecoder(READER, writers=(V1,))
    split = decoder.decode(
        raw_batch([b"\x00\x00\x00\x00\x07\x02", b"\x00\x00\x00\x00\x09\x04", b"\x01\x00\x00\x00\x09\x04"])
    )
    assert split.good.column("id").to_pylist() == [1, 2]
    assert split.bad.column("code").to_pylist() == ["WRONG_MAGIC"]


ADDRESS = json.dumps(
    {
        "type": "record",
        "name": "Address",
        "namespace": "shop.common",
        "fields": [{"name": "country", "type": "Country"}, {"name": "city", "type": "string"}],
    }
)
COUNTRY = json.dumps({"type": "enum", "name": "Country", "namespace": "shop.common", "symbols": ["DE", "FR"]})
ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "ship_to", "type": ["null", "shop.common.Address"]},
            {"name": "bill_to", "type": "shop.common.Address"},
            {"name": "others", "type": {"type": "array", "items": "shop.common.Country"}},
        ],
    }
)


def test_avro_references_are_put_in_where_they_are_first_named(raw_batch: RawBatch) -> None:
    references = (ReferencedSchema("shop.common.Country", COUNTRY), ReferencedSchema("shop.common.Address", ADDRESS))
    reader = avro_reader(RegisteredSchema(5, "AVRO", ORDER, references))
    message = b"\x02\x02\x02a" + b"\x00\x02b" + b"\x02\x02\x00"
    split = AvroDecoder(reader, framing="none").decode(raw_batch([message]))
    assert split.good.drop_columns(["_penstock"]).to_pylist() == [
        {"ship_to": {"country": "FR", "city": "a"}, "bill_to": {"country": "DE", "city": "b"}, "others": ["FR"]}
    ]


def test_avro_reference_to_a_top_level_name_alone_is_put_in() -> None:
    assert json.loads(inline('["shop.common.Country", "null"]', [COUNTRY]))[0]["symbols"] == ["DE", "FR"]

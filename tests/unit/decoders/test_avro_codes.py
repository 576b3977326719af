"""Bytes that are no value of their schema: the code of each, and that they cost neither memory nor their neighbours."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pyarrow as pa
import pyruhvro
import pytest
from tests.unit.decoders.conftest import RawBatch

from penstock.decoders.avro import decoder as avro
from penstock.decoders.avro.decoder import AvroDecoder


def record(*types: Any) -> str:
    fields = [{"name": f"f{at}", "type": kind} for at, kind in enumerate(types)]
    return json.dumps({"type": "record", "name": "Row", "fields": fields})


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


LONGS = {"type": "array", "items": "long"}
HUGE = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # 2**63 - 1
WIDE = {"type": "record", "name": "Wide", "fields": [{"name": f"w{at}", "type": "long"} for at in range(1000)]}

BAD = {
    "nothing": (["long"], b"", "TRUNCATED", "f0: 1 bytes more are wanted at byte 0"),
    "half a double": (["double"], b"\x00" * 7, "TRUNCATED", "f0: 8 bytes more"),
    "half a fixed": ([{"type": "fixed", "name": "F", "size": 8}], b"\x00" * 7, "TRUNCATED", "f0: 8 bytes more"),
    "half a string": (["string"], b"\x08abc", "TRUNCATED", "f0: 4 bytes more"),
    "endless string": (["string"], HUGE + b"abc", "TRUNCATED", "f0: 9223372036854775807 bytes more"),
    "one byte more": (["long"], b"\x02\x00", "TRAILING_DATA", "1 more bytes after the value, which ends at byte 1"),
    "many bytes more": (["long"], b"\x02" + b"\x00" * 40, "TRAILING_DATA", "40 more bytes"),
    "endless number": (["long"], b"\xff" * 11, "MALFORMED_AVRO", "f0: a number of more than 10 bytes"),
    "int of 64 bits": (["int"], b"\xfe\xff\xff\xff\xff\x01", "MALFORMED_AVRO", "f0: an int of more than 32 bits"),
    "negative length": (["string"], b"\x01a", "MALFORMED_AVRO", "f0: a length of -1"),
    "negative length of bytes": (["bytes"], b"\x03abc", "MALFORMED_AVRO", "f0: a length of -2"),
    "boolean 2": (["boolean"], b"\x02", "MALFORMED_AVRO", "f0: a boolean that is neither 0 nor 1"),
    "branch 2 of null": ([["null", "long"]], b"\x04\x02", "MALFORMED_AVRO", "f0: index 2, and the union has 2"),
    "branch -1": ([["null", "long", "string"]], b"\x01\x02", "MALFORMED_AVRO", "f0: index -1, and the union has 3"),
    "symbol 2": ([{"type": "enum", "name": "E", "symbols": ["A", "B"]}], b"\x04", "MALFORMED_AVRO", "the enum has 2"),
    "symbol -1": ([{"type": "enum", "name": "E", "symbols": ["A"]}], b"\x01", "MALFORMED_AVRO", "f0: index -1"),
    "endless array": ([LONGS], HUGE + b"\x02\x00", "TOO_MANY_ITEMS", "f0: a block of 9223372036854775807 items"),
    "endless counted array": (
        [LONGS],
        b"\xff" * 8 + b"\x7f\x00\x00",
        "TOO_MANY_ITEMS",
        "f0: a block of 4611686018427387904",
    ),
    "endless map": ([{"type": "map", "values": "long"}], HUGE + b"\x00", "TOO_MANY_ITEMS", "f0: a block of"),
    "half an array": ([LONGS], b"\x06\x80\x01", "TRUNCATED", "f0[1]: 1 bytes more"),
    "open array": ([LONGS], b"\x02\x02", "TRUNCATED", "f0: 1 bytes more"),
    "not UTF-8": (["long", "string"], b"\x02\x04\xc3\x28", "INVALID_UTF8", "f1: byte 0xc3 at position 2"),
    "key not UTF-8": ([{"type": "map", "values": "long"}], b"\x02\x02\xff\x02\x00", "INVALID_UTF8", "f0[0]: byte 0xff"),
    "surrogate": (["string"], b"\x06\xed\xa0\x80", "INVALID_UTF8", "f0: byte 0xed"),
    "year 10000": ([logical("int", "date")], b"\xfe\xff\xff\xff\x0f", "OUT_OF_RANGE", "f0: before the year 1 or after"),
    "endless millis": ([logical("long", "timestamp-millis")], HUGE, "OUT_OF_RANGE", "f0: too large for a column"),
    "endless micros": ([logical("long", "timestamp-micros")], HUGE, "OUT_OF_RANGE", "f0: before the year 1"),
    "six digits": (
        [logical("bytes", "decimal", precision=5, scale=2)],
        b"\x06\x01\x86\xa0",
        "OUT_OF_RANGE",
        "f0: more digits",
    ),
    "39 digits": (
        [logical("bytes", "decimal", precision=38, scale=2)],
        b"\x20\x7f" + b"\xff" * 15,
        "OUT_OF_RANGE",
        "f0: more",
    ),
    "long decimal": (
        [logical("bytes", "decimal", precision=38, scale=2)],
        b"\x22\x01" + b"\x00" * 16,
        "OUT_OF_RANGE",
        "f0:",
    ),
}


@pytest.mark.parametrize("reader", ["native", "slow"])
@pytest.mark.parametrize("defect", BAD)
def test_avro_bad_bytes_have_their_code_and_harm_no_neighbour(raw_batch: RawBatch, defect: str, reader: str) -> None:
    types, message, code, text = BAD[defect]
    good = _zero(types[0]) + (b"\x00" if len(types) > 1 else b"")
    if reader == "slow":
        types, message, good = [_ODD, *types], b"odd" + message, b"odd" + good
    decoder = AvroDecoder(record(*types), framing="none")
    messages = [good] * 100 + [message] + [good] * 99
    split = decoder.decode(raw_batch(messages))
    assert split.bad.column("code").to_pylist() == [code]
    assert split.bad.column("value").to_pylist() == [message]
    assert split.good.num_rows == 199
    if reader == "native":
        assert text in split.bad.column("message")[0].as_py()
    assert bool(decoder.notices()) <= (reader == "slow")


_ODD = {"type": "fixed", "name": "Odd", "size": 3}


def _zero(kind: Any) -> bytes:
    """A value of a type: mostly zero is one."""
    if isinstance(kind, dict) and kind["type"] == "fixed":
        return b"\x00" * kind["size"]
    return b"\x00" * (8 if kind == "double" else 1)


def test_avro_values_of_16_bytes_of_trailing_zeros_are_refused_whatever_they_are(raw_batch: RawBatch) -> None:
    decoder = AvroDecoder(record("long"), framing="none")
    split = decoder.decode(raw_batch([b"\x02" + bytes([byte]) * 16 for byte in range(256)]))
    assert split.bad.column("code").to_pylist() == ["TRAILING_DATA"] * 256


def test_avro_blocks_of_an_array_are_read_with_and_without_their_size(raw_batch: RawBatch) -> None:
    message = b"\x02\x02" + b"\x03\x04\x04\x06" + b"\x02\x08" + b"\x00"
    split = AvroDecoder(record(LONGS), framing="none").decode(raw_batch([message]))
    assert split.good.column("f0").to_pylist() == [[1, 2, 3, 4]]


def test_avro_null_items_of_a_wide_record_are_refused_before_they_take_memory(raw_batch: RawBatch) -> None:
    # Each null takes one byte here, and 8000 bytes in columns.
    bomb = b"\x80\x89\x7a" + b"\x00" * 1_000_000 + b"\x00"
    decoder = AvroDecoder(record({"type": "array", "items": ["null", WIDE]}), framing="none")
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    split = decoder.decode(raw_batch([b"\x04\x00\x00\x00", bomb, b"\x00"]))
    assert split.bad.column("code").to_pylist() == ["TOO_MANY_ITEMS"]
    assert split.good.column("f0").to_pylist() == [[None, None], []]
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < 50_000_000


def test_avro_large_good_value_passes_the_limit_of_memory(raw_batch: RawBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "MAX_BLOCK_MEMORY", 20_000)
    avro.avro_format.cache_clear()
    schema = record({"type": "array", "items": ["null", "long"]}, "string")
    few = b"\x04\x02\x02\x00\x00" + b"\xd0\x0f" + b"x" * 1000
    many = b"\xa0\x8d\x06" + b"\x00" * 50_000 + b"\x00\x00"
    split = AvroDecoder(schema, framing="none").decode(raw_batch([few] * 50 + [many]))
    avro.avro_format.cache_clear()
    assert split.good.num_rows == 50
    assert split.good.column("f0")[49].as_py() == [1, None]
    assert split.bad.column("code").to_pylist() == ["TOO_MANY_ITEMS"]


def test_native_reader_still_takes_any_bytes_for_a_string() -> None:
    # What `wire` counts on: a release of the native reader that looks into strings must not come unnoticed.
    read = pyruhvro.deserialize_array([b"\x04\xff\xfe"], record("string"))
    assert read.column(0).cast(pa.binary()).to_pylist() == [b"\xff\xfe"]


def test_avro_type_that_is_not_native_is_said_once(raw_batch: RawBatch) -> None:
    schema = record("long", {"type": "fixed", "name": "Seven", "size": 7})
    decoder = AvroDecoder(schema, framing="none")
    message = b"\x02" + b"seven77"
    assert decoder.decode(raw_batch([message])).good.column("f1").to_pylist() == [b"seven77"]
    decoder.decode(raw_batch([message]))
    assert decoder.notices() == [
        "the writer's schema is decoded by the slow reader: fixed Seven of 7 bytes, "
        "and only 4, 8, 12, ... up to 64 are native"
    ]
    assert decoder.notices() == []

"""What JSON values become in columns: each type, its accepted spellings, and its edges."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.decoders import JsonDecoder
from penstock.errors import DefinitionError

INSTANT = pa.timestamp("us", tz="UTC")
LOCAL = pa.timestamp("us")


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


ACCEPTED = [
    (pa.bool_(), "true", True),
    (pa.int8(), "-128", -128),
    (pa.int16(), "32767", 32767),
    (pa.int32(), "-0", 0),
    (pa.int64(), "-9223372036854775808", -9223372036854775808),
    (pa.float64(), "1", 1.0),
    (pa.float64(), "1E+2", 100.0),
    (pa.float64(), "0.1", 0.1),
    (pa.float64(), "1e-400", 0.0),
    (pa.float32(), "16777217", 16777216.0),
    (pa.string(), r'"a\u0000\n\ud83d\ude00\/"', "a\x00\n\U0001f600/"),
    (pa.string(), "null", None),
    (pa.binary(), '"AP8="', b"\x00\xff"),
    (pa.binary(), '""', b""),
    (pa.date32(), '"2026-02-28"', date(2026, 2, 28)),
    (pa.date32(), '"0001-01-01"', date(1, 1, 1)),
    (pa.decimal128(5, 2), "1.25", Decimal("1.25")),
    (pa.decimal128(5, 2), "1.2500", Decimal("1.25")),
    (pa.decimal128(5, 2), '"-999.99"', Decimal("-999.99")),
    (pa.decimal128(5, 2), "1e2", Decimal("100.00")),
    (pa.decimal128(38, 18), "0.100000000000000001", Decimal("0.100000000000000001")),
    (pa.decimal128(3, 1), "12.3000000000000000000000000000000000000000000", Decimal("12.3")),
    (pa.decimal128(5, 2), "0e999", Decimal("0.00")),
    (INSTANT, '"2026-01-02T03:04:05Z"', at(2026, 1, 2, 3, 4, 5)),
    (INSTANT, '"2026-01-02 03:04:05.1+02:00"', at(2026, 1, 2, 1, 4, 5, 100000)),
    (INSTANT, '"2026-01-02T03:04:05-0130"', at(2026, 1, 2, 4, 34, 5)),
    (INSTANT, '"2026-01-02T03:04:05"', at(2026, 1, 2, 3, 4, 5)),
    (INSTANT, '"2026-01-02T03:04:05.123456789Z"', at(2026, 1, 2, 3, 4, 5, 123456)),
    (INSTANT, '"2026-01-02T03:04:05.9999999"', at(2026, 1, 2, 3, 4, 5, 999999)),
    (INSTANT, '"2026-01-02T03:04"', at(2026, 1, 2, 3, 4)),
    (INSTANT, '"2026-01-02"', at(2026, 1, 2)),
    (LOCAL, '"2026-01-02T03:04:05.1234567"', datetime(2026, 1, 2, 3, 4, 5, 123456)),
    (LOCAL, '"2026-01-02"', datetime(2026, 1, 2)),
    (pa.list_(pa.int64()), "[1,null,3]", [1, None, 3]),
    (pa.list_(pa.list_(INSTANT)), '[["2026-01-02"],[],null]', [[at(2026, 1, 2)], [], None]),
    (
        pa.struct([("d", pa.date32()), ("b", pa.binary())]),
        '{"d":"2026-01-02","x":1}',
        {"d": date(2026, 1, 2), "b": None},
    ),
    (pa.map_(pa.string(), pa.int64()), '{"a":1,"b":null}', [("a", 1), ("b", None)]),
]

REFUSED = [
    (pa.bool_(), "1", "WRONG_TYPE"),
    (pa.int8(), "128", "OUT_OF_RANGE"),
    (pa.int64(), "1e2", "WRONG_TYPE"),
    (pa.int64(), "1" * 5000, "OUT_OF_RANGE"),
    (pa.float32(), "1e39", "OUT_OF_RANGE"),
    (pa.string(), "{}", "WRONG_TYPE"),
    (pa.binary(), '"AP8"', "WRONG_TYPE"),
    (pa.binary(), '"A P8="', "WRONG_TYPE"),
    (pa.binary(), '"ä"', "WRONG_TYPE"),
    (pa.date32(), "5", "WRONG_TYPE"),
    (pa.date32(), '"2026-1-1"', "WRONG_TYPE"),
    (pa.date32(), '"0000-01-01"', "OUT_OF_RANGE"),
    (pa.decimal128(5, 2), "1.255", "OUT_OF_RANGE"),
    (pa.decimal128(5, 2), "1000", "OUT_OF_RANGE"),
    (pa.decimal128(5, 2), "999.999e1", "OUT_OF_RANGE"),
    (pa.decimal128(38, 18), "1" + "0" * 30, "OUT_OF_RANGE"),
    # Scaled by 10^38 these are 0 in 128 or 256 bits.
    (pa.decimal128(38, 38), str(2**90), "OUT_OF_RANGE"),
    (pa.decimal128(38, 38), str(2**218), "OUT_OF_RANGE"),
    (pa.decimal128(38, 0), "1e76", "OUT_OF_RANGE"),
    (pa.decimal128(38, 38), "1e76", "OUT_OF_RANGE"),
    (pa.decimal128(5, 2), '"1,5"', "WRONG_TYPE"),
    (pa.decimal128(5, 2), "1e99999999999999999999", "OUT_OF_RANGE"),
    (INSTANT, '"2026-01-02T03:04:05.1234567890Z"', "WRONG_TYPE"),
    (INSTANT, '"2026-01-02T03:04:60Z"', "OUT_OF_RANGE"),
    (INSTANT, '"2026-01-02T03:04:05 Z"', "WRONG_TYPE"),
    (LOCAL, '"2026-01-02T03:04:05Z"', "WRONG_TYPE"),
    (LOCAL, '"2026-01-02T03:04:05+01:00"', "WRONG_TYPE"),
    (pa.list_(pa.field("item", pa.int64(), nullable=False)), "[1,null]", "MISSING_FIELD"),
    (pa.list_(INSTANT), '["2026-01-02","x"]', "WRONG_TYPE"),
    (pa.map_(pa.string(), pa.int64()), '{"a":"1"}', "WRONG_TYPE"),
    (pa.map_(pa.string(), pa.int64()), '{"a":1,"a":1}', "DUPLICATE_FIELD"),
    (pa.map_(pa.string(), pa.int64()), '[{"key":"a","value":1}]', "WRONG_TYPE"),
]


# Beside a broken message the value takes the reference reader, alone the fast one.
@pytest.mark.parametrize("neighbours", [[], [b"{,"]], ids=["fast", "reference"])
@pytest.mark.parametrize(("kind", "text", "expected"), ACCEPTED)
def test_value_of_each_type_is_decoded_exactly(raw_batch, kind, text, expected, neighbours):
    decoder = JsonDecoder(pa.schema([("v", kind)]))

    split = decoder.decode(raw_batch([b'{"v":%s}' % text.encode(), *neighbours]))

    assert split.good.schema == decoder.schema
    assert split.good.column("v").to_pylist() == [expected]
    split.good.validate(full=True)


@pytest.mark.parametrize(("kind", "text", "code"), REFUSED)
def test_value_that_does_not_fit_the_type_is_refused(raw_batch, kind, text, code):
    good = b'{"v":null}'

    split = JsonDecoder(pa.schema([("v", kind)])).decode(raw_batch([good, b'{"v":%s}' % text.encode(), good]))

    assert split.bad.column("code").to_pylist() == [code]
    assert split.good.column("v").to_pylist() == [None, None]


def test_nested_not_null_below_a_null_struct_is_not_missing(raw_batch):
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    decoder = JsonDecoder(pa.schema([("s", inner), ("l", pa.list_(inner))]))
    rows = [{"s": None, "l": None}, {"s": {"x": 1}, "l": [{"x": 2}, None]}, {"s": {}, "l": []}, {"s": None, "l": [{}]}]

    split = decoder.decode(raw_batch([json.dumps(row).encode() for row in rows]))

    assert split.good.schema == decoder.schema
    assert split.good.select(["s", "l"]).to_pylist() == rows[:2]
    assert split.bad.column("message").to_pylist() == [
        "s.x: expected BIGINT NOT NULL, found no such field",
        "l[0].x: expected BIGINT NOT NULL, found no such field",
    ]


def test_bad_value_deep_in_lists_is_blamed_on_its_own_row(raw_batch):
    decoder = JsonDecoder(pa.schema([("v", pa.list_(pa.list_(INSTANT)))]))
    good = b'{"v":[["2026-01-02T00:00:00Z"],[],["2026-01-02T00:00:00Z","2026-01-02T00:00:00Z"]]}'

    split = decoder.decode(raw_batch([good, good, b'{"v":[[],["2026-01-02T00:00:00Z","x"]]}', good]))

    assert split.bad.column("offset").to_pylist() == [1002]
    assert split.bad.column("message").to_pylist() == [
        "v[1][1]: expected TIMESTAMP, found a string that is not an ISO 8601 time"
    ]


@pytest.mark.parametrize("column", [pa.field("v", pa.uint8()), pa.field("_penstock", pa.int64())])
def test_column_that_json_cannot_fill_is_a_definition_error(column):
    with pytest.raises(DefinitionError):
        JsonDecoder(pa.schema([column]))

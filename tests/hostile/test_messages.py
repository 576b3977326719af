"""Messages of a hostile producer: each ends as a bad record with a code, or as a row, soon and in little memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.hostile.bounds import bounded
from tests.hostile.decoders import decoded, good_messages
from tests.mutations import varint

BIG = 1_000_000
"""A record of this size is nothing unusual to a topic; `max_bytes` is ten times as much, and all here is linear."""


def _deep(levels: int) -> bytes:
    value = b""
    for _ in range(levels):
        inner = b"\x0a" + varint(len(value)) + value
        value = b"\x32" + varint(len(inner)) + inner
    entry = b"\x0a\x01a\x12" + varint(len(value)) + value
    field = b"\x0a" + varint(len(entry)) + entry
    return b"\x52" + varint(len(field)) + field


def _json(field: str, value: bytes) -> bytes:
    return b'{"id":1,"' + field.encode() + b'":' + value + b"}"


JSON: dict[str, Callable[[], bytes]] = {
    "larger than max_bytes": lambda: b'{"id":1,"name":"' + b"a" * 11_000_000 + b'"}',
    "long decimal": lambda: _json("price", b"9" * BIG),
    "long decimal as text": lambda: _json("price", b'"' + b"9" * BIG + b'"'),
    "long fraction of a decimal": lambda: _json("price", b"0." + b"0" * BIG + b"1"),
    "decimal with a great exponent": lambda: _json("price", b"1e999999999"),
    "decimal with an exponent without end": lambda: _json("price", b"1e" + b"9" * 900),
    "long integer": lambda: b'{"id":' + b"9" * BIG + b"}",
    "long double": lambda: _json("amount", b"9" * BIG),
    "long fraction of a float": lambda: _json("ratio", b"1." + b"9" * BIG),
    "long string": lambda: _json("name", b'"' + b"a" * BIG + b'"'),
    "string of escapes": lambda: _json("name", b'"' + b"\\u0041" * (BIG // 6) + b'"'),
    "escapes without an end": lambda: b"[" * 101 + b'"' + b'\\"' * (BIG // 2),
    "escapes that end in one": lambda: b"[" * 101 + b'"' + b'\\"' * (BIG // 2) + b"\\",
    "quotes": lambda: b"[" * 101 + b'"' * BIG,
    "openings": lambda: b"[" * BIG,
    "objects in objects": lambda: b'{"id":1,"a":' * (BIG // 12),
    "closings": lambda: b"{" + b"]" * BIG,
    "levels that all close": lambda: b'{"id":1,"x":' + b"[" * 4_500 + b"]" * 4_500 + b"}",
    "many empty lists": lambda: _json("nested", b"[" + b"[]," * (BIG // 3) + b"[]]"),
    "many numbers": lambda: _json("nested", b"[[" + b"10," * (BIG // 3) + b"10]]"),
    "many strings": lambda: _json("tags", b"[" + b'"",' * (BIG // 3) + b'""]'),
    "one name very often": lambda: b"{" + b'"id":1,' * (BIG // 7) + b'"id":1}',
    "many names": lambda: b'{"id":1' + b"".join(b',"n%d":1' % n for n in range(500_000)) + b"}",
    "many objects": lambda: b'{"id":1}' * (BIG // 8),
    "name of a field that is long": lambda: b'{"' + b"n" * BIG + b'":1}',
    "not finite": lambda: _json("amount", b"NaN"),
    "not finite, late": lambda: b'{"a":"' + b'\\"' * (BIG // 2) + b'","amount":NaN}',
    "surrogates": lambda: _json("name", b'"' + b"\\ud800" * (BIG // 6) + b'"'),
    "invalid UTF-8": lambda: b"\xff" * BIG,
    "zeros": lambda: b"\0" * BIG,
    "blanks": lambda: b" " * BIG,
    "time of digits": lambda: _json("at", b'"' + b"2026-01-01T00:00:00." + b"9" * BIG + b'"'),
    "invalid base64": lambda: _json("raw", b'"' + b"A" * (BIG + 1) + b'="'),
    "map with one key very often": lambda: _json("labels", b"{" + b'"k":1,' * (BIG // 6) + b'"k":1}'),
}
AVRO: dict[str, Callable[[], bytes]] = {
    "string that claims 4 GiB": lambda: b"\x02" + varint(2**33),
    "string that claims less than nothing": lambda: b"\x02" + varint(2**33 - 1),
    "array that claims 2**62 items": lambda: good_messages("avro")[0][:25] + varint(2**63),
    "number without an end": lambda: b"\xff" * BIG,
    "zeros": lambda: b"\0" * BIG,
    "ones": lambda: b"\x01" * BIG,
    "twos": lambda: b"\x02" * BIG,
    "trailing": lambda: good_messages("avro")[0] + b"\0" * BIG,
    "larger than max_bytes": lambda: b"\0" * 11_000_000,
}
PROTOBUF: dict[str, Callable[[], bytes]] = {
    "field that claims 4 GiB": lambda: b"\x12" + varint(2**32 - 1),
    "number without an end": lambda: b"\xff" * BIG,
    "many empty items": lambda: b"\x2a\x00" * (BIG // 2),
    "many entries of a map": lambda: b"\x32\x00" * (BIG // 2),
    "packed scores": lambda: b"\x62" + varint(BIG) + b"\x01" * BIG,
    "lists in lists": lambda: _deep(300),
    "lists in lists, deeper than a stack": lambda: _deep(20_000),
    "groups in groups": lambda: b"\x0b" * BIG,
    "unknown fields": lambda: b"\xa0\x06\x01" * (BIG // 3),
    "one field very often": lambda: b"\x08\x01" * (BIG // 2),
    "string that is no UTF-8": lambda: b"\x12" + varint(1_000_000) + b"\xff" * 1_000_000,
    "zeros": lambda: b"\0" * BIG,
    "larger than max_bytes": lambda: b"\0" * 11_000_000,
}
MESSAGES = [
    *(("json", name, make) for name, make in JSON.items()),
    *(("json_fast", name, make) for name, make in JSON.items()),
    *(("avro", name, make) for name, make in AVRO.items()),
    *(("protobuf", name, make) for name, make in PROTOBUF.items()),
]
ROWS = {
    "many empty lists",
    "many numbers",
    "many strings",
    "long string",
    "string of escapes",
    "long fraction of a float",
}
ROWS |= {"many empty items", "packed scores", "unknown fields", "one field very often", "many entries of a map"}


@pytest.mark.parametrize(("kind", "name", "make"), MESSAGES, ids=[f"{kind}: {name}" for kind, name, _ in MESSAGES])
def test_hostile_message_ends_in_the_quarantine_or_as_a_row(kind: str, name: str, make: Callable[[], bytes]) -> None:
    message = make()
    good = good_messages(kind)
    decoded(kind, good)  # what is made once is made
    with bounded(name, growth_mib=700):
        split = decoded(kind, [good[0], message, good[1]])
    bad = split.bad.column("offset").to_pylist()
    assert bad == [1] or (bad == [] and (name in ROWS or "many names" in name or kind == "json_fast")), bad

"""The invariant of the JSON decoder: what the fast reader accepts, the reference accepts, with equal values.

Messages are valid ones, valid ones with a few characters changed, and heaps of JSON tokens made to upset the
alignment of messages and rows.
"""

from __future__ import annotations

import json
import string
from base64 import b64encode

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.decoders import JsonDecoder
from penstock.decoders.batch import BlockError
from penstock.decoders.json import reason
from penstock.decoders.json.decoder import JsonFormat, find_readable
from penstock.decoders.json.reason import JsonReference
from penstock.decoders.refusal import RefusedError

COLUMNS = pa.schema(
    [
        pa.field("a", pa.int32(), nullable=False),
        pa.field("s", pa.string()),
        pa.field("f", pa.float64()),
        pa.field("g", pa.float32()),
        pa.field("t", pa.timestamp("us", tz="UTC")),
        pa.field("n", pa.timestamp("us")),
        pa.field("d", pa.date32()),
        pa.field("m", pa.decimal128(6, 2)),
        pa.field("w", pa.decimal128(38, 18)),
        pa.field("b", pa.binary()),
        pa.field("o", pa.struct([pa.field("x", pa.int8(), nullable=False), pa.field("y", pa.list_(pa.float64()))])),
        pa.field("l", pa.list_(pa.field("item", pa.struct([pa.field("t", pa.timestamp("us", tz="UTC"))])))),
    ]
)

numbers = st.one_of(
    st.integers(-300, 300).map(str),
    st.integers(-(10**7), 10**7).map(str),
    st.integers(-(10**40), 10**40).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"-?(0|[1-9]\d{0,3})(\.\d{1,4})?([eE][+-]?\d{1,3})?", fullmatch=True, alphabet=string.printable),
    st.sampled_from(
        ["-0", "1.0", "1e2", "01", "1.", ".5", "+1", "NaN", "-NaN", "Inf", "-Infinity", "1e400", "9" * 400]
    ),
)
times = st.from_regex(
    r"(2026-0[1-3]-[0-3]\d|0000-01-01|9999-12-31)([T ]2\d(:[0-6]\d(:[0-6]\d(\.\d{0,10})?)?)?)?(Z|[+-]\d\d(:?\d\d)?)?",
    fullmatch=True,
    alphabet=string.printable,
)
strings = st.one_of(
    times.map(json.dumps),
    st.text(max_size=5).map(json.dumps),
    st.text(max_size=5).map(lambda text: json.dumps(text, ensure_ascii=False)),
    numbers.map(json.dumps),
    st.sampled_from(['"AP8="', '"AP8"', r'"\ud800"', r'"\udc00\ud800"', r'"\u0000"', '"a\nb"', r'"\x"', '"}\n{"']),
)
values = st.recursive(
    st.one_of(numbers, strings, st.sampled_from(["null", "true", "false", "nul"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: "[" + ",".join(parts) + "]"),
        st.lists(st.tuples(st.sampled_from("xyta"), inner), max_size=3).map(
            lambda pairs: "{" + ", ".join(f'"{name}":{value}' for name, value in pairs) + "}"
        ),
    ),
    max_leaves=4,
)
fitting = st.fixed_dictionaries(
    {"a": st.integers(-300, 300).map(str)},
    optional={
        "s": strings,
        "f": numbers,
        "g": numbers,
        "t": times.map(json.dumps),
        "n": times.map(json.dumps),
        "d": times.map(lambda text: json.dumps(text[:10])),
        "m": numbers,
        "w": numbers,
        "b": st.binary(max_size=4).map(lambda data: json.dumps(b64encode(data).decode())),
        "o": values,
        "l": times.map(lambda text: f'[{{"t":"{text}"}},null]'),
        "z": values,
    },
).map(lambda pairs: "{" + ",\n".join(f'"{name}": {value}' for name, value in pairs.items()) + "}")
loose = st.lists(st.tuples(st.sampled_from("asfgtndmwbolz"), values), max_size=4).map(
    lambda pairs: "{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}"
)
heaps = st.lists(
    st.sampled_from(
        [
            "{",
            "}",
            "[",
            "]",
            '"',
            '"a"',
            ":",
            ",",
            "1",
            "null",
            "\n",
            " ",
            "\\",
            "\0",
            '{"a":1}',
            "}\n{",
            '"a":1',
            "NaN",
        ]
    ),
    max_size=8,
).map("".join)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    text = draw(fitting)
    at = draw(st.integers(0, len(text)))
    end = draw(st.integers(at, min(len(text), at + 3)))
    return text[:at] + draw(st.one_of(heaps, st.text(max_size=2))) + text[end:]


messages = st.one_of(fitting, fitting, loose, damaged(), heaps, heaps.map(lambda heap: "{" + heap + "}")).filter(
    lambda text: text.isascii() or text.encode("utf-8", "ignore").decode() == text
)
relaxed = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def reference_rows(texts: list[str], reference: JsonReference) -> list[list[object] | str]:
    rows: list[list[object] | str] = []
    for text in texts:
        try:
            values = reference.read(text)
            rows.append([pa.array([v], f.type).to_pylist()[0] for v, f in zip(values, COLUMNS, strict=True)])
        except RefusedError as refused:
            rows.append(refused.code)
    return rows


@relaxed
@given(st.lists(messages, min_size=1, max_size=4), st.sampled_from(["ignore", "quarantine"]))
def test_fast_reader_accepts_only_what_the_reference_accepts_with_equal_values(texts, extra_fields):
    trimmed, readable = find_readable(pa.array(texts, pa.string()))
    block = trimmed.filter(readable)
    try:
        columns, suspects = JsonFormat(COLUMNS, extra_fields, COLUMNS).read_block(block)
    except BlockError:
        return
    expected = reference_rows(block.to_pylist(), JsonReference(COLUMNS, extra_fields))
    for row in set(range(len(block))) - set(suspects):
        # repr tells -0.0 from 0.0.
        assert repr([column.slice(row, 1).to_pylist()[0] for column in columns]) == repr(expected[row])


def test_fast_reader_with_plain_messages_accepts_them():
    # Guards the test above against a fast reader that refuses everything.
    plain = json.dumps({"a": 1, "f": 0.5, "t": "2026-01-01T00:00:00Z", "m": 1.5, "o": {"x": 1, "y": [1]}})

    columns, suspects = JsonFormat(COLUMNS, "ignore", COLUMNS).read_block(pa.array([plain] * 3))

    assert suspects == []
    assert columns[2].to_pylist() == [0.5] * 3


@relaxed
@given(st.lists(messages, min_size=1, max_size=40), st.integers(0, 1000))
def test_decoder_over_mixed_messages_gives_what_the_reference_gives(raw_batch, texts, padding):
    # Many plain rows around the odd ones make the decoder cut blocks.
    texts = ['{"a":1}'] * (padding % 90) + texts + ['{"a":2}'] * (padding // 10)

    split = JsonDecoder(COLUMNS).decode(raw_batch([text.encode() for text in texts]))

    expected = reference_rows(texts, JsonReference(COLUMNS, "ignore"))
    good = [(1000 + row, values) for row, values in enumerate(expected) if isinstance(values, list)]
    bad = [(1000 + row, code) for row, code in enumerate(expected) if isinstance(code, str)]
    rows = split.good.to_pylist()
    assert repr([(row.pop("_penstock")["offset"], list(row.values())) for row in rows]) == repr(good)
    assert list(zip(split.bad["offset"].to_pylist(), split.bad["code"].to_pylist(), strict=True)) == bad


@settings(relaxed, max_examples=200)
@given(messages)
def test_parser_of_deep_messages_gives_what_pythons_parser_gives(text):
    def outcome() -> object:
        try:
            return reason.parse_object(text)
        except RefusedError as refused:
            return refused.reason

    expected = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reason, "_PARSER_DEPTH", -1)
        assert outcome() == expected

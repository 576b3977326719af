"""Rows as the CSV text of a COPY, and the rows that no text can hold.

PostgreSQL parses every value itself, by the type of the staging column. An empty field is null, `""` an empty string:
Arrow quotes every string, so the two stay apart.

Structs, lists and maps are JSON text, column by column and never through Python values. A decimal is a number with all
its digits; bytes are base64; times are ISO 8601, in UTC; a float that JSON has no number for is a string ("NaN"), as in
Spark.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.types as types

from penstock.sinks.postgres.types import is_bytes, is_nested, is_text

_NOT_NUMBERS = {"nan": '"NaN"', "-nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
_ESCAPED = r'["\\\x00-\x1f]'


def json_text(values: pa.Array) -> pa.Array:
    """Each value as JSON; null where the value is null."""
    return pc.if_else(pc.is_valid(values), _json(values), pa.scalar(None, pa.string()))


def naive(values: pa.Array) -> pa.Array:
    """Timestamps without their zone, which is UTC: Arrow writes these as text 20 times as fast."""
    return values.cast(pa.int64()).cast(pa.timestamp(values.type.unit))


def encoded(values: pa.Array, encoding: Literal["hex", "base64"]) -> pa.Array:
    """Bytes as text."""
    return pl.Series(values.cast(pa.large_binary())).bin.encode(encoding).to_arrow().cast(pa.large_string())


def _json(values: pa.Array) -> pa.Array:
    """Each value as JSON, with `null` written out."""
    kind = values.type
    if types.is_struct(kind):
        text = _object(values)
    elif types.is_map(kind):
        text = _map(values)
    elif types.is_list(kind) or types.is_large_list(kind):
        text = _joined("[", values, _json(values.flatten()), "]")
    elif is_text(kind):
        text = _quoted(values.cast(pa.string()))
    elif is_bytes(kind):
        text = _around('"', encoded(values, "base64"), '"')
    elif types.is_timestamp(kind):
        stamps = pc.replace_substring((naive(values) if kind.tz else values).cast(pa.string()), " ", "T")
        text = _around('"', stamps, 'Z"' if kind.tz else '"')
    elif types.is_date32(kind):
        text = _around('"', values.cast(pa.string()), '"')
    else:
        text = values.cast(pa.string())
        if types.is_floating(kind):
            for word, string in _NOT_NUMBERS.items():
                text = pc.if_else(pc.equal(text, word), string, text)
    return pc.fill_null(text, "null")


def _object(values: pa.StructArray) -> pa.Array:
    pieces: list[Any] = ["{"]
    for number, (field, inner) in enumerate(zip(values.type, values.flatten(), strict=True)):
        name = _quoted(pa.array([field.name]))[0].as_py()
        pieces += [f"{',' if number else ''}{name}:", _json(inner)]
    whole = pc.binary_join_element_wise(*[_spread(piece, len(values)) for piece in [*pieces, "}"]], "")
    return pc.if_else(pc.is_valid(values), whole, pa.scalar(None, pa.string()))


def _map(values: pa.MapArray) -> pa.Array:
    kind = values.type
    entries = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
    pairs = values.cast(pa.list_(pa.field("entries", entries, nullable=False)))
    keys, items = pairs.flatten().flatten()
    names = _json(keys)
    bare = pc.invert(pc.starts_with(names, '"'))
    names = pc.if_else(bare, _quoted(names), names)
    return _joined("{", pairs, pc.binary_join_element_wise(names, _json(items), ":"), "}")


def _joined(opening: str, lists: pa.Array, texts: pa.Array, closing: str) -> pa.Array:
    """The texts of each list with commas between; `lists` says how many belong to each."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64())
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends.cast(pa.int64())])
    rebuilt = pa.LargeListArray.from_arrays(offsets, texts)
    whole = _around(opening, pc.binary_join(rebuilt, ","), closing)
    return pc.if_else(pc.is_valid(lists), whole, pa.scalar(None, pa.string()))


def _quoted(strings: pa.Array) -> pa.Array:
    """JSON strings. Polars escapes them, where any has a character that needs it."""
    if not pc.any(pc.match_substring_regex(strings, _ESCAPED), min_count=0).as_py():
        return _around('"', strings, '"')
    objects = pl.DataFrame({"v": pl.from_arrow(strings)}).select(pl.struct("v").struct.json_encode()).to_series()
    quoted = pc.utf8_slice_codeunits(objects.to_arrow().cast(pa.string()), len('{"v":'), -1)
    return pc.if_else(pc.is_valid(strings), quoted, pa.scalar(None, pa.string()))


def _around(before: str, strings: pa.Array, after: str) -> pa.Array:
    return pc.binary_join_element_wise(before, strings.cast(pa.string()), after, "")


def _spread(piece: Any, length: int) -> pa.Array:
    return pa.repeat(pa.scalar(piece), length) if isinstance(piece, str) else piece


# Arrow and PostgreSQL write years outside of these in different ways, and Spark does not promise to keep them.
_FIRST, _LAST = date(1, 1, 1), date(9999, 12, 31)
_UUID = r"^[0-9A-Fa-f]{8}-([0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}$"
# An escaped NUL: an odd number of backslashes before the u.
_JSON_NUL = r"(^|[^\\])(\\\\)*\\u0000"
_PIECE_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Unholdable:
    """Which rows a column keeps out, and why."""

    rows: pa.BooleanArray
    why: str


def to_text(values: pa.Array) -> pa.Array:
    """A column in a form that Arrow writes as PostgreSQL reads it."""
    if is_nested(values.type):
        return json_text(values)
    if is_bytes(values.type):
        return pc.binary_join_element_wise(
            pa.scalar("\\x", pa.large_string()), encoded(values, "hex"), pa.scalar("", pa.large_string())
        )
    if types.is_timestamp(values.type) and values.type.tz:
        return naive(values)
    return values


def unholdable(name: str, values: pa.Array, kind: pa.DataType, staged: str) -> Iterator[Unholdable]:
    """What of a column that went through `to_text` the staging column could not take; nothing, nearly always."""
    if is_nested(kind):
        yield from _found(pc.match_substring_regex(values, _JSON_NUL), f"column {name}: a NUL character")
    elif is_text(kind):
        yield from _found(pc.match_substring(values, "\0"), f"column {name}: a NUL character")
        if staged.endswith('"uuid"'):
            yield from _found(pc.invert(pc.match_substring_regex(values, _UUID)), f"column {name}: not a uuid")
    elif types.is_date32(kind) or types.is_timestamp(kind):
        yield from _found(_outside(values), f"column {name}: a time outside of the years 1 to 9999")


def within_limits(values: pa.TimestampArray) -> pa.TimestampArray:
    """Timestamps with those left out that no text can hold: a producer may stamp its records with any number."""
    return pc.if_else(_outside(values), pa.scalar(None, values.type), values)


def to_csv(columns: Sequence[pa.Array]) -> bytes:
    """The rows as CSV, one line each, in the order of the columns."""
    rows = pa.RecordBatch.from_arrays(list(columns), names=[str(number) for number in range(len(columns))])
    out = io.BytesIO()
    pa.csv.write_csv(rows, out, pa.csv.WriteOptions(include_header=False, batch_size=_PIECE_ROWS))
    return out.getvalue()


def _found(rows: pa.BooleanArray, why: str) -> Iterator[Unholdable]:
    if pc.any(rows, min_count=0).as_py():
        yield Unholdable(pc.fill_null(rows, False), why)


def _outside(values: pa.Array) -> pa.BooleanArray:
    first, last = _limits(values.type)
    return pc.or_(pc.less(values, first), pc.greater(values, last))


def _limits(kind: pa.DataType) -> tuple[pa.Scalar, pa.Scalar]:
    if types.is_date32(kind):
        return pa.scalar(_FIRST, kind), pa.scalar(_LAST, kind)
    first = datetime(_FIRST.year, 1, 1, tzinfo=UTC).timestamp()
    units = {"s": 1, "ms": 10**3, "us": 10**6}[kind.unit]
    days = (_LAST - _FIRST).days + 1
    start = int(first) * units
    return pa.scalar(start, pa.int64()).cast(kind), pa.scalar(start + days * 86_400 * units - 1, pa.int64()).cast(kind)

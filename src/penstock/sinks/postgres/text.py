"""Rows as the CSV text of a COPY, and the rows that no text can hold.

PostgreSQL parses every value itself, by the type of the staging column. An empty field is null, `""` an empty string:
Arrow quotes every string, so the two stay apart.

Structs, lists and maps are JSON text, as other sinks write them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.types as types

from penstock.sinks.postgres.types import is_bytes, is_nested, is_text
from penstock.sinks.row_json import texts


def naive(values: pa.Array) -> pa.Array:
    """Timestamps without their zone, which is UTC: Arrow writes these as text 20 times as fast."""
    return values.cast(pa.int64()).cast(pa.timestamp(values.type.unit))


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
        return texts(values)
    if is_bytes(values.type):
        digits = pl.Series(values.cast(pa.large_binary())).bin.encode("hex").to_arrow().cast(pa.string())
        return pc.binary_join_element_wise("\\x", digits, "")
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

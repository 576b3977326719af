"""Rows as JSON text, whole columns at a time: one object a row, with exactly the values that the row has.

Numbers keep every digit, DECIMAL too; TIMESTAMP is RFC 3339 in UTC, TIMESTAMP_NTZ the same without an offset,
DATE is `YYYY-MM-DD`, BINARY base64, a map an object. A null is `null`, and so are NaN and the infinities, which
JSON does not have. The JSON decoder with the same columns reads back the same row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.sinks.arrow_types import is_bytes, is_text

_SPECIAL = (ord('"'), ord("\\"))
_FIRST_PRINTABLE = ord(" ")


def json_rows(rows: pa.RecordBatch) -> pa.StringArray:
    """Each row as one JSON object, its columns in order."""
    if not rows.num_columns:
        return pa.repeat(pa.scalar("{}"), rows.num_rows)
    return _object(rows.schema.names, rows.columns)


def texts(values: pa.Array) -> pa.Array:
    """Each value as plain text without quotes, as a record's key has it; nested values are JSON. Nulls stay."""
    kind = values.type
    if types.is_string(kind):
        return values
    if types.is_timestamp(kind):
        moments = values.cast(pa.timestamp("us"), safe=False).cast(pa.string())
        moments = pc.replace_substring(moments, " ", "T", max_replacements=1)
        return pc.binary_join_element_wise(moments, "Z", "") if kind.tz else moments
    if types.is_decimal(kind):
        # Arrow would write a small one with an exponent: readers are happier without.
        return pl.Series(pl.from_arrow(values)).cast(pl.String).to_arrow().cast(pa.string())
    if is_bytes(kind):
        return pl.Series(pl.from_arrow(values)).bin.encode("base64").to_arrow().cast(pa.string())
    if types.is_nested(kind):
        return pc.if_else(values.is_valid(), _json(values), pa.scalar(None, pa.string()))
    return values.cast(pa.string())


def _json(values: pa.Array) -> pa.Array:
    """Each value as JSON text, `null` for a null."""
    kind = values.type
    if types.is_struct(kind):
        made = _object([field.name for field in kind], [values.field(i) for i in range(kind.num_fields)])
    elif types.is_map(kind):
        made = _map(values)
    elif types.is_fixed_size_list(kind):
        return _json(values.cast(pa.list_(kind.value_type)))
    elif types.is_list(kind) or types.is_large_list(kind):
        made = _enclosed("[", _joined_items(values, _json(_child(values, values.values))), "]")
    elif types.is_floating(kind):
        made = pc.if_else(pc.is_finite(values), texts(values), pa.scalar(None, pa.string()))
    elif is_text(kind):
        return _quoted(values.cast(pa.string()))
    elif types.is_integer(kind) or types.is_boolean(kind) or types.is_decimal(kind) or types.is_null(kind):
        made = texts(values)
    else:
        made = _enclosed('"', texts(values), '"')
    return pc.fill_null(pc.if_else(values.is_valid(), made, pa.scalar(None, pa.string())), "null")


def _object(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.StringArray:
    parts: list[pa.Array | str] = []
    for name, column in zip(names, columns, strict=True):
        parts += [f"{',' if parts else '{'}{json.dumps(name, ensure_ascii=False)}:", _json(column)]
    return pc.binary_join_element_wise(*parts, "}", "") if parts else "{}"


def _map(values: pa.MapArray) -> pa.Array:
    keys, items = _child(values, values.keys), _child(values, values.items)
    entries = pc.binary_join_element_wise(_quoted(texts(keys)), ":", _json(items), "")
    return _enclosed("{", _joined_items(values, entries), "}")


def _child(values: pa.Array, child: pa.Array) -> pa.Array:
    """The part of a list's or map's child array that its rows refer to: a slice must not cost the whole."""
    offsets = values.offsets
    first, last = (offsets[0].as_py(), offsets[-1].as_py()) if len(offsets) else (0, 0)
    return child.slice(first, last - first)


def _joined_items(values: pa.Array, items: pa.Array) -> pa.Array:
    offsets = values.offsets.to_numpy(zero_copy_only=False)
    moved = pa.array(offsets - offsets[0] if len(offsets) else offsets, pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(moved, items), ",")


def _enclosed(before: str, values: pa.Array, after: str) -> pa.Array:
    return pc.binary_join_element_wise(before, values, after, "")


def _quoted(values: pa.StringArray) -> pa.Array:
    if not _needs_escapes(values):
        return pc.fill_null(_enclosed('"', values, '"'), "null")
    encoded = pl.DataFrame({"s": pl.from_arrow(values)}).select(pl.struct("s").struct.json_encode())
    objects = encoded.to_series().to_arrow().cast(pa.binary())
    return pc.binary_slice(objects, len('{"s":'), -1).cast(pa.string())


def _needs_escapes(values: pa.StringArray) -> bool:
    """Whether any character must be escaped: seen in the bytes of all texts at once, which hardly costs."""
    _, offsets, data = values.buffers()
    if not len(values) or data is None:
        return False
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    found = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    return bool(len(found)) and bool(found.min() < _FIRST_PRINTABLE or any((found == char).any() for char in _SPECIAL))

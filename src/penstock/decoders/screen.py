"""What every text format asks first: is there a value, is it small enough, is it UTF-8.

All of it runs over whole columns; only a column that holds invalid UTF-8 is looked at value by value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.decoders.refusal import INVALID_UTF8, MESSAGE_TOO_LARGE, TOMBSTONE, RefusedError

Tombstones = Literal["quarantine", "pass", "drop"]
"""What becomes of a record without a value: a bad record, a row of nulls, or nothing."""

DEFAULT_MAX_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Screened:
    """The texts that remain, the row of the batch that each came from, and what was held back."""

    texts: pa.StringArray
    rows: pa.UInt64Array
    passed_tombstones: pa.UInt64Array
    refusals: dict[int, RefusedError]


def screen(values: pa.BinaryArray, tombstones: Tombstones, max_bytes: int) -> Screened:
    """Sort out tombstones, messages over `max_bytes` and invalid UTF-8."""
    refusals: dict[int, RefusedError] = {}
    nulls = pc.indices_nonzero(values.is_null())
    if tombstones == "quarantine":
        for row in nulls.to_pylist():
            refusals[row] = RefusedError(TOMBSTONE, "the record has no value")

    fits = pc.less_equal(pc.binary_length(values), max_bytes)
    for row in pc.indices_nonzero(pc.invert(fits)).to_pylist():
        size = len(values[row].as_buffer())
        refusals[row] = RefusedError(MESSAGE_TOO_LARGE, f"{size} bytes, and the limit is {max_bytes}")

    rows = pc.indices_nonzero(fits)
    kept = values if len(rows) == len(values) else values.take(rows)
    try:
        texts = kept.cast(pa.string())
    except pa.ArrowInvalid:
        broken = _refuse_invalid_utf8(kept, rows, refusals)
        rows = rows.filter(pc.invert(broken))
        texts = kept.filter(pc.invert(broken)).cast(pa.string())
    return Screened(texts, rows, nulls if tombstones == "pass" else nulls.slice(0, 0), refusals)


def _refuse_invalid_utf8(
    kept: pa.BinaryArray, rows: pa.UInt64Array, refusals: dict[int, RefusedError]
) -> pa.BooleanArray:
    broken = []
    for row, value in zip(rows.to_pylist(), kept.to_pylist(), strict=True):
        try:
            value.decode()
        except UnicodeDecodeError as exc:
            refusals[row] = RefusedError(INVALID_UTF8, f"byte 0x{value[exc.start]:02x} at position {exc.start}")
        broken.append(row in refusals)
    return pa.array(broken, pa.bool_())

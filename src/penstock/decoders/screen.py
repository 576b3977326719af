"""What every format asks first: is there a value, is it small enough; and a text format: is it UTF-8.

All of it runs over whole columns; only near invalid UTF-8 are values looked at one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.decoders.refusal import INVALID_UTF8, MESSAGE_TOO_LARGE, TOMBSTONE, Reason

Tombstones = Literal["quarantine", "pass", "drop"]
"""What becomes of a record without a value: a bad record, a row of nulls, or nothing."""

DEFAULT_MAX_BYTES = 10 * 1024 * 1024

_PART_ROWS = 256


@dataclass(frozen=True, slots=True)
class Screened:
    """The texts that remain, the row of the batch that each came from, and what was held back."""

    texts: pa.StringArray
    rows: pa.UInt64Array
    passed_tombstones: pa.UInt64Array
    reasons: dict[int, Reason]


@dataclass(frozen=True, slots=True)
class ScreenedValues:
    """The values that remain, the row of the batch that each came from, and what was held back."""

    values: pa.BinaryArray
    rows: pa.UInt64Array
    passed_tombstones: pa.UInt64Array
    reasons: dict[int, Reason]


def screen(values: pa.BinaryArray, tombstones: Tombstones, max_bytes: int) -> Screened:
    """Sort out tombstones, messages over `max_bytes` and invalid UTF-8."""
    held = hold_back(values, tombstones, max_bytes)
    kept, rows = held.values, held.rows
    try:
        texts = kept.cast(pa.string())
    except pa.ArrowInvalid:
        broken = _refuse_invalid_utf8(kept, rows, held.reasons)
        rows = rows.filter(pc.invert(broken))
        texts = kept.filter(pc.invert(broken)).cast(pa.string())
    return Screened(texts, rows, held.passed_tombstones, held.reasons)


def hold_back(values: pa.BinaryArray, tombstones: Tombstones, max_bytes: int) -> ScreenedValues:
    """Sort out tombstones and messages over `max_bytes`."""
    reasons: dict[int, Reason] = {}
    nulls = pc.indices_nonzero(values.is_null())
    if tombstones == "quarantine":
        for row in nulls.to_pylist():
            reasons[row] = Reason(TOMBSTONE, "the record has no value")

    fits = pc.less_equal(pc.binary_length(values), max_bytes)
    for row in pc.indices_nonzero(pc.invert(fits)).to_pylist():
        size = len(values[row].as_buffer())
        reasons[row] = Reason(MESSAGE_TOO_LARGE, f"{size} bytes, and the limit is {max_bytes}")

    rows = pc.indices_nonzero(fits)
    kept = values if len(rows) == len(values) else values.take(rows)
    return ScreenedValues(kept, rows, nulls if tombstones == "pass" else nulls.slice(0, 0), reasons)


def _refuse_invalid_utf8(kept: pa.BinaryArray, rows: pa.UInt64Array, reasons: dict[int, Reason]) -> pa.BooleanArray:
    broken: list[bool] = []
    for at in range(0, len(kept), _PART_ROWS):
        part = kept.slice(at, _PART_ROWS)
        try:
            part.cast(pa.string())
            broken += [False] * len(part)
        except pa.ArrowInvalid:
            for row, value in zip(rows.slice(at, _PART_ROWS).to_pylist(), part.to_pylist(), strict=True):
                problem = _invalid_utf8(value)
                broken.append(problem is not None)
                if problem:
                    reasons[row] = Reason(INVALID_UTF8, problem)
    return pa.array(broken, pa.bool_())


def _invalid_utf8(value: bytes) -> str | None:
    try:
        value.decode()
    except UnicodeDecodeError as exc:
        return f"byte 0x{value[exc.start]:02x} at position {exc.start}"
    return None

"""Why a record is refused: codes that stay, and the exception that carries one out of a deep reader.

A message names the field, the expected type and what kind of value was found; never the value itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import NO_BAD, Split, bad_records, coordinates_of

STAGE = "decode"

TOMBSTONE = "TOMBSTONE"
MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
INVALID_UTF8 = "INVALID_UTF8"
EMPTY_MESSAGE = "EMPTY_MESSAGE"
MALFORMED_JSON = "MALFORMED_JSON"
NOT_AN_OBJECT = "NOT_AN_OBJECT"
TRAILING_DATA = "TRAILING_DATA"
TOO_DEEP = "TOO_DEEP"
WRONG_TYPE = "WRONG_TYPE"
OUT_OF_RANGE = "OUT_OF_RANGE"
TIMESTAMP_OUT_OF_RANGE = "TIMESTAMP_OUT_OF_RANGE"
MISSING_FIELD = "MISSING_FIELD"
UNKNOWN_FIELD = "UNKNOWN_FIELD"
DUPLICATE_FIELD = "DUPLICATE_FIELD"
SHORT_MESSAGE = "SHORT_MESSAGE"
WRONG_MAGIC = "WRONG_MAGIC"
UNKNOWN_SCHEMA_ID = "UNKNOWN_SCHEMA_ID"
WRONG_SUBJECT = "WRONG_SUBJECT"
WRONG_FINGERPRINT = "WRONG_FINGERPRINT"
WRONG_MESSAGE_INDEX = "WRONG_MESSAGE_INDEX"
SCHEMA_INCOMPATIBLE = "SCHEMA_INCOMPATIBLE"
SCHEMA_UNSUPPORTED = "SCHEMA_UNSUPPORTED"
TRUNCATED = "TRUNCATED"
TOO_MANY_ITEMS = "TOO_MANY_ITEMS"
MALFORMED_AVRO = "MALFORMED_AVRO"
MALFORMED_PROTOBUF = "MALFORMED_PROTOBUF"


class Reason(NamedTuple):
    """Why a record is bad, as the quarantine keeps it."""

    code: str
    message: str


class RefusedError(Exception):
    """A record, or a part of it, cannot be taken. Caught by the decoder, never seen outside of it."""

    def __init__(self, code: str, problem: str, path: str = "") -> None:
        super().__init__(code, problem, path)
        self.code = code
        self.problem = problem
        self.path = path

    @property
    def reason(self) -> Reason:
        """The code, and what is wrong with the field's path in front. Keep this, not the error and its frames."""
        return Reason(self.code, f"{self.path}: {self.problem}" if self.path else self.problem)

    def inside(self, step: str) -> RefusedError:
        """The same refusal, seen from the enclosing object or list."""
        joint = "." if self.path and not self.path.startswith("[") else ""
        return RefusedError(self.code, self.problem, step + joint + self.path)


def refuse(raw: pa.RecordBatch, reasons: Mapping[int, Reason]) -> pa.RecordBatch:
    """The rows of `raw` that have a reason as bad records, in their order."""
    if not reasons:
        return NO_BAD
    rows = sorted(reasons)
    codes = pa.array([reasons[row].code for row in rows], pa.string())
    messages = pa.array([reasons[row].message for row in rows], pa.string())
    return bad_records(raw.take(pa.array(rows, pa.int64())), STAGE, codes, messages)


# Finding the bad among the good where a fast reader refuses whole blocks, and putting the pieces together in their
# order again.
#
# A refused block is halved until what is bad stands alone; there a careful reader says why. Where bad values are
# dense, halving would cost many calls for nothing: the careful reader then goes first over the stretch, and the fast
# one is given what it let through.


class Pieces:
    """Decoded columns of `schema`, which has no coordinates, with the batch rows they came from."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._pieces = [pa.RecordBatch.from_pylist([], schema=schema)]
        self._rows = [pa.array([], pa.uint64())]

    def add(self, columns: Sequence[pa.Array], rows: pa.UInt64Array) -> None:
        """Add some rows; `rows` says where in the batch each is from."""
        self._pieces.append(pa.RecordBatch.from_arrays(list(columns), schema=self._schema))
        self._rows.append(rows)

    def add_nulls(self, rows: pa.UInt64Array) -> None:
        """A row of nulls for each tombstone that is passed on."""
        if len(rows):
            self.add([pa.nulls(len(rows), field.type) for field in self._schema], rows)

    def split(self, raw: pa.RecordBatch, schema: pa.Schema, reasons: Mapping[int, Reason]) -> Split:
        """The pieces in the order of `raw`, with their coordinates, and the refused records."""
        pieces = [piece for piece in self._pieces if piece.num_rows]
        good = pa.concat_batches(pieces) if len(pieces) > 1 else (pieces or self._pieces)[0]
        rows = pa.concat_arrays(self._rows)
        coordinates = coordinates_of(raw)
        if not pc.all(pc.less(rows[:-1], rows[1:]), min_count=0).as_py():
            order = pc.array_sort_indices(rows)
            good, rows = good.take(order), rows.take(order)
        if len(rows) != raw.num_rows:
            coordinates = coordinates.take(rows)
        rows_out = pa.RecordBatch.from_arrays([*good.columns, coordinates], schema=schema)
        return Split(rows_out, refuse(raw, reasons))


_BLOCK_ROWS = 16_384
_BLOCK_BYTES = 32 * 1024 * 1024
_FEW_ROWS = 64


class BlockError(Exception):
    """A block holds bad values. The message is the reason where no reader can give a more exact one.

    `bad` are the indices of values that are known to be bad, where the reader can tell.
    """

    def __init__(self, code: str, message: str, bad: Sequence[int] = ()) -> None:
        super().__init__(code, message)
        self.reason = Reason(code, message)
        self.bad = bad


def isolate(
    values: pa.BinaryArray,
    rows: pa.UInt64Array,
    block: Callable[[pa.BinaryArray], list[pa.Array]],
    single: Callable[[bytes], None],
    pieces: Pieces,
    reasons: dict[int, Reason],
) -> None:
    """Put what `block` reads into `pieces` and the reasons of the others into `reasons`.

    `block` raises `BlockError` where anything in it is bad; `single` raises `RefusedError` for a bad value.
    """
    waiting = list(reversed(_blocks(values, rows)))
    while waiting:
        some, at, sifted = waiting.pop()
        try:
            pieces.add(block(some), at)
        except BlockError as error:
            if len(some) == 1:
                reasons[at[0].as_py()] = _reason(some[0].as_py(), single, error)
            elif error.bad:
                for place in error.bad:
                    reasons[at[place].as_py()] = _reason(some[place].as_py(), single, error)
                rest = np.ones(len(some), bool)
                rest[list(error.bad)] = False
                if rest.any():
                    waiting.append((some.filter(pa.array(rest)), at.filter(pa.array(rest)), sifted))
            elif len(some) <= _FEW_ROWS and not sifted:
                kept = [_let_through(value, row, single, reasons) for value, row in zip(some, at, strict=True)]
                passed = pa.array(kept, pa.bool_())
                if any(kept):
                    waiting.append((some.filter(passed), at.filter(passed), True))
            else:
                half = len(some) // 2
                waiting.append((some.slice(half), at.slice(half), sifted))
                waiting.append((some.slice(0, half), at.slice(0, half), sifted))


def _blocks(values: pa.BinaryArray, rows: pa.UInt64Array) -> list[tuple[pa.BinaryArray, pa.UInt64Array, bool]]:
    found, at, size = [], 0, _BLOCK_ROWS
    while at < len(values):
        some = values.slice(at, size)
        if some.nbytes > _BLOCK_BYTES and len(some) > 1:
            size = len(some) // 2
            continue
        found.append((some, rows.slice(at, len(some)), False))
        at, size = at + len(some), _BLOCK_ROWS
    return found


def _let_through(value: pa.Scalar, row: pa.Scalar, single: Callable[[bytes], None], reasons: dict[int, Reason]) -> bool:
    try:
        single(value.as_py())
    except RefusedError as refused:
        reasons[row.as_py()] = refused.reason
        return False
    return True


def _reason(value: bytes, single: Callable[[bytes], None], error: BlockError) -> Reason:
    try:
        single(value)
    except RefusedError as refused:
        return refused.reason
    return error.reason

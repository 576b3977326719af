"""Keys as numbers: a hash that is the same in every process, and group numbers within a batch.

Both see keys as Spark groups them: NULLs are one key, all NaNs are one key, and -0.0 is 0.0. The hash is
computed by Arrow's integer kernels, since neither Python's `hash` nor Arrow offers one that stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.transforms.expressions.terms import is_plain

_TEXTS = (pa.string(), pa.binary())
_WORD_BYTES = 8
_END_BYTES = 32
_NULL_HASH = 0x51ED270B7A3F42C9
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Of splitmix64, which spreads every bit of its input over all bits of its output."""


def can_hash(kind: pa.DataType) -> bool:
    """Whether keys of this type are equal here exactly where they are in Spark."""
    return is_plain(kind) and kind != pa.null()


def hash_rows(columns: Sequence[pa.Array]) -> pa.Array:
    """A 64-bit hash of each row of some key columns."""
    result = _hash_column(columns[0])
    for column in columns[1:]:
        result = _mix(pc.add(pc.multiply(result, _word(31)), _hash_column(column)))
    return result


def group_numbers(columns: Sequence[pa.Array]) -> tuple[pa.Array, int]:
    """For each row the number of its key, counted from 0 in the order of first appearance; and how many there are."""
    numbers, count = _encode(columns[0])
    for column in columns[1:]:
        more, distinct = _encode(column)
        pairs = pc.add(pc.multiply(numbers.cast(pa.int64()), pa.scalar(distinct, pa.int64())), more.cast(pa.int64()))
        numbers, count = _encode(pairs)
    return numbers, count


def _encode(column: pa.Array) -> tuple[pa.Array, int]:
    encoded = pc.dictionary_encode(_normalised(column), null_encoding="encode")
    return encoded.indices, len(encoded.dictionary)


def _normalised(column: pa.Array) -> pa.Array:
    """Floats with one zero and one NaN; everything else as it is."""
    if not pa.types.is_floating(column.type):
        return column
    one_zero = pc.add(column, pa.scalar(0.0, column.type))
    return pc.if_else(pc.is_nan(one_zero), pa.scalar(math.nan, column.type), one_zero)


def _hash_column(column: pa.Array) -> pa.Array:
    hashes = _hash_texts(column) if column.type in _TEXTS else _chain(_words(column))
    return pc.if_else(pc.is_valid(column), hashes, _word(_NULL_HASH))


def _hash_texts(column: pa.Array) -> pa.Array:
    """By the length, the first bytes and, of longer texts, the last: enough to spread keys, at a bounded cost."""
    data = pc.fill_null(column.cast(pa.binary()), b"")
    sizes = pc.binary_length(data)
    hashes = _chain([sizes.cast(pa.uint64()), *_padded(pc.binary_slice(data, 0, _END_BYTES))])
    is_long = pc.greater(sizes, _END_BYTES)
    if not pc.any(is_long).as_py():
        return hashes
    # Only for the long ones, so that a key has one hash whatever else is in its batch.
    return pc.if_else(is_long, _chain([hashes, *_padded(pc.binary_slice(data, -_END_BYTES))]), hashes)


def _words(column: pa.Array) -> list[pa.Array]:
    """The values as 64-bit words. The words of a NULL are any."""
    kind = column.type
    if pa.types.is_decimal128(kind):
        return _slices(pc.fill_null(column, 0), 2)
    if pa.types.is_floating(kind):
        column = _normalised(column).cast(pa.float64()).view(pa.int64())
    elif pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    return [column.cast(pa.int64()).view(pa.uint64())]


def _padded(data: pa.Array) -> list[pa.Array]:
    """Values of at most `_END_BYTES` bytes as words, filled up with zeros."""
    text = data.cast(pa.string(), safe=False)
    return _slices(pc.ascii_rpad(text, width=_END_BYTES, padding="\0"), _END_BYTES // _WORD_BYTES)


def _slices(values: pa.Array, count: int) -> list[pa.Array]:
    """Values of one size in bytes, as that many words."""
    rows = len(values)
    start = values.offset * count if pa.types.is_decimal(values.type) else 0
    words = pa.Array.from_buffers(pa.uint64(), rows * count, [None, values.buffers()[-1]], offset=start)
    lists = pa.FixedSizeListArray.from_arrays(words, count)
    return [pc.list_element(lists, index) for index in range(count)]


def _chain(words: Sequence[pa.Array]) -> pa.Array:
    result = _mix(words[0])
    for word in words[1:]:
        result = _mix(pc.bit_wise_xor(result, word))
    return result


def _mix(words: pa.Array) -> pa.Array:
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        words = pc.multiply(pc.bit_wise_xor(words, pc.shift_right(words, _word(shift))), _word(multiplier))
    return pc.bit_wise_xor(words, pc.shift_right(words, _word(31)))


def _word(number: int) -> pa.Scalar:
    return pa.scalar(number, pa.uint64())

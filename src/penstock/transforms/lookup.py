"""The keys of a table, laid out once so that batch after batch finds its rows in them.

Keys are equal as Spark's `=` has them: NULL equals nothing, NaN is NaN, and -0.0 is 0.0. Distinct keys are sorted by
a hash, with a directory over its first bits: a look-up starts at most a few entries before its key. A single key of
at most 64 bits is its hash; of all others the values are compared too.

Not a join by Polars, which builds its hash table anew for every batch. Milliseconds a batch on 2 cores, medians, the
index here against the faster of Polars' left join and its inner join that builds on the batch:

    rows a batch   table of 1,000: BIGINT, STRING, both      table of 1,000,000: BIGINT, STRING, both
    600            0.6 / 1.0    1.2 / 1.1    1.0 / 1.1       0.9 / 17     1.4 / 23     1.6 / 15
    50,000         4.7 / 2.8    10 / 3.7     7.7 / 5.1       8.3 / 26     25 / 43      15 / 30

Polars sorts the rows of a table, once a version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import MissingError
from penstock.transforms.expressions.terms import is_plain, sql_name
from penstock.transforms.hashing import group_numbers, hash_rows

Places = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]
_Flags = npt.NDArray[np.bool_]

_TEXTS = (pa.string(), pa.binary())
_WORD_BYTES = 8
_LONG_BYTES = 128
"""Longer texts are hashed one by one: few keys have them, and no text then costs more than its bytes."""
_MASKS: _Words = np.array([(1 << (8 * size)) - 1 for size in range(_WORD_BYTES + 1)], dtype=np.uint64)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""Of splitmix64, which gives every word another one."""


class KeyIndex:
    """The rows of a table by their keys. Columns are of plain types, and looked up with columns of the same types."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        keys = [_comparable(column) for column in columns]
        known = np.flatnonzero(_known(keys))
        keys = [key.take(pa.array(known)) for key in keys]
        numbers, count = group_numbers(keys)
        owners = numbers.to_numpy()
        by_key = np.argsort(owners, kind="stable")
        self._rows: Places = known[by_key]
        self._starts: Places = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=count))])
        self._firsts: Places = self._rows[self._starts[:-1]] if count else np.zeros(1, np.int64)
        firsts = pa.array(by_key[self._starts[:-1]])
        hashes = _hash([key.take(firsts) for key in keys])
        self._order: Places = np.argsort(hashes)
        # A sentinel after the last entry: above every hash that is looked for, or equal to it and not a key.
        self._hashes: _Words = np.append(hashes[self._order], np.uint64(2**64 - 1))
        entries = firsts.take(pa.array(self._order))
        self._keys = None if _is_word(keys) else [key.take(entries) for key in keys]
        bits = (4 * count).bit_length() or 1
        self._shift = np.uint64(64 - bits)
        sizes = np.bincount((hashes >> self._shift).astype(np.int64), minlength=1 << bits)
        self._directory: Places = np.cumsum(sizes) - sizes

    def find(self, columns: Sequence[pa.Array]) -> Places:
        """For each row the number of its key in the table, and -1 where there is none."""
        keys = [_comparable(column) for column in columns]
        hashes = _hash(keys)
        places: Places = self._directory[(hashes >> self._shift).astype(np.int64)]
        found: Places = np.full(len(hashes), -1, np.int64)
        todo = np.flatnonzero(_known(keys))
        while todo.size:
            entries, wanted = places[todo], hashes[todo]
            there = self._hashes[entries]
            same = self._same(keys, todo, entries, there == wanted)
            found[todo[same]] = self._order[entries[same]]
            todo = todo[(there <= wanted) & ~same & (entries < len(self._order))]
            places[todo] += 1
        return found

    def first(self, numbers: Places) -> Places:
        """The first row of each key, and any number for -1."""
        return self._firsts[numbers]

    def every(self, numbers: Places) -> tuple[Places, Places]:
        """All rows of all the keys: the place in `numbers`, and the row, one pair for each."""
        starts = self._starts[numbers]
        counts = self._starts[numbers + 1] - starts
        owners = np.repeat(np.arange(len(numbers)), counts)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        return owners, self._rows[starts[owners] + within]

    def _same(self, keys: Sequence[pa.Array], rows: Places, entries: Places, equal: _Flags) -> _Flags:
        """Of those whose hashes are equal the ones whose keys are."""
        equal = equal & (entries < len(self._order))
        if self._keys is None:
            return equal
        alike = np.flatnonzero(equal)
        mine, theirs = pa.array(rows[alike]), pa.array(entries[alike])
        for key, held in zip(keys, self._keys, strict=True):
            equal[alike] &= pc.equal(key.take(mine), held.take(theirs)).to_numpy(zero_copy_only=False)
        return equal


def _comparable(column: pa.Array) -> pa.Array:
    """Values that are equal where their bits are: numbers and times as BIGINT, the others as they are."""
    kind = column.type
    if kind in _TEXTS or pa.types.is_decimal128(kind):
        return column
    if pa.types.is_floating(kind):
        column = pc.add(column.cast(pa.float64()), 0.0)
        return pc.if_else(pc.is_nan(column), pa.scalar(np.nan), column).view(pa.int64())
    if pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    return column.cast(pa.int64())


def _is_word(keys: Sequence[pa.Array]) -> bool:
    return len(keys) == 1 and bool(keys[0].type == pa.int64())


def _known(keys: Sequence[pa.Array]) -> _Flags:
    """The rows in which no key is NULL."""
    known = np.ones(len(keys[0]), np.bool_)
    for key in keys:
        if key.null_count:
            known &= key.is_valid().to_numpy(zero_copy_only=False)
    return known


def _hash(keys: Sequence[pa.Array]) -> _Words:
    """A hash of each row; any where a key is NULL. The same in every process."""
    hashes = _hash_column(keys[0])
    for key in keys[1:]:
        hashes = _mix(hashes * np.uint64(31) + _hash_column(key))
    return hashes


def _hash_column(key: pa.Array) -> _Words:
    if key.type in _TEXTS:
        return _hash_texts(key)
    if key.type == pa.int64():
        return _mix(np.asarray(key.fill_null(0).to_numpy()).view(np.uint64))
    return np.asarray(hash_rows([key]).to_numpy())


def _hash_texts(texts: pa.Array) -> _Words:
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32, len(texts) + 1, 4 * texts.offset).astype(np.int64)
    begin, size = ends[0], ends[-1] - ends[0]
    padded = np.zeros(size + _WORD_BYTES, np.uint8)
    if size:
        padded[:size] = np.frombuffer(data, np.uint8, size, begin)
    words: _Words = np.ndarray((size + 1,), np.uint64, padded, strides=(1,))
    places, sizes = ends[:-1] - begin, np.diff(ends)
    hashes = _mix(sizes.astype(np.uint64))
    for done in range(0, min(int(sizes.max(initial=0)), _LONG_BYTES), _WORD_BYTES):
        live = np.flatnonzero(sizes > done)
        word = words[places[live] + done] & _MASKS[np.minimum(sizes[live] - done, _WORD_BYTES)]
        hashes[live] = _mix(hashes[live] ^ word)
    for place in np.flatnonzero(sizes > _LONG_BYTES):
        text = padded[places[place] : places[place] + sizes[place]]
        hashes[place] = int.from_bytes(hashlib.blake2b(text.tobytes(), digest_size=_WORD_BYTES).digest(), "little")
    return hashes


def _mix(words: _Words) -> _Words:
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        words = (words ^ (words >> np.uint64(shift))) * multiplier
    return words ^ (words >> np.uint64(31))


# A table's rows on their way to the tasks: keys checked on the driver, columns as one Arrow stream.

OnDuplicate = Literal["fail", "first", "all"]


class TableRows(Protocol):
    """The rows of a table where the tasks are. A broadcast of Spark's is one."""

    @property
    def value(self) -> bytes:
        """What `Enrich.pack` gave."""
        ...


@dataclass(frozen=True, slots=True)
class LocalRows:
    """The rows of a table in this process."""

    value: bytes

    def __repr__(self) -> str:
        return f"LocalRows({len(self.value)} bytes)"


def checked_keys(table: pa.Table, keys: Sequence[str], on_duplicate: OnDuplicate, name: str) -> tuple[pa.Table, int]:
    """The rows that can match, and how many keys have several: refused, or cut to the first of each, or kept.

    The first is the least by all columns in their order, as Spark sorts: NULL below all, NaN above all.
    """
    known = table
    for key in keys:
        known = known.filter(pc.is_valid(known[key]))
    if not known.num_rows:
        return known, 0
    numbers, count = group_numbers([_whole(known[key]) for key in keys])
    repeated = int((np.bincount(numbers.to_numpy(), minlength=count) > 1).sum())
    if not repeated or on_duplicate == "all":
        return known, repeated
    if on_duplicate == "fail":
        raise duplicate_keys(name, keys, repeated)
    order = _sorted_by(known)
    _, firsts = np.unique(numbers.to_numpy()[order], return_index=True)
    return known.take(pa.array(np.sort(order[firsts]))), repeated


def duplicate_keys(name: str, keys: Sequence[str], repeated: int) -> MissingError:
    """The error for a table whose keys are not unique."""
    many = f"{repeated:,} keys have" if repeated != 1 else "1 key has"
    return MissingError(
        "TABLE_DUPLICATE_KEYS",
        f"table {name}: {many} more than one row",
        context={"keys": ", ".join(keys)},
        hint="make the keys unique, or set `on_duplicate: first` or `all`",
    )


def write_rows(table: pa.Table) -> bytes:
    """The rows as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def read_rows(stream: bytes) -> pa.RecordBatch:
    """The rows of an Arrow stream in one batch. Strings keep pointing into the stream where it had one batch."""
    table = pa.ipc.open_stream(pa.py_buffer(stream)).read_all()
    columns = [_whole(column) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def can_order(kind: pa.DataType) -> bool:
    """Whether Arrow sorts values of this type as Spark does."""
    return is_plain(kind) and kind != pa.null()


def missing_column(table: str, name: str, columns: Sequence[str]) -> MissingError:
    """The error for a column that the table does not have."""
    return MissingError(
        "TABLE_COLUMN_MISSING",
        f'table {table}: there is no column "{name}"',
        context={"needed": name, "columns of the table": ", ".join(columns)},
        hint="correct `on` and `take`, or add the column to the table",
    )


def changed_column(table: str, was: pa.Field, now: pa.Field) -> MissingError:
    """The error for a column whose type is not the one that the run began with."""
    return MissingError(
        "TABLE_COLUMN_CHANGED",
        f'table {table}: column "{was.name}" has another type than when the run began',
        context={"was": sql_name(was.type), "is": sql_name(now.type)},
        hint="start the pipeline again, if the new type is meant",
    )


def _sorted_by(table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The places of the rows, sorted by all columns: NULL first, NaN last, as Polars has it."""
    import polars as pl  # here, because tasks that only look keys up need not load it

    frame = pl.DataFrame(pl.from_arrow(table.rename_columns([str(n) for n in range(table.num_columns)])))
    return frame.with_row_index("place").sort(frame.columns)["place"].to_numpy().astype(np.int64)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)

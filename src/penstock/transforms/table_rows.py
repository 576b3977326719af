"""A table's rows on their way to the tasks: keys checked on the driver, columns as one Arrow stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import MissingError
from penstock.transforms.expressions.terms import is_plain, sql_name
from penstock.transforms.hashing import group_numbers

OnDuplicate = Literal["fail", "first", "all"]


class TableRows(Protocol):
    """The rows of a table where the tasks are. A broadcast of Spark's is one."""

    @property
    def value(self) -> bytes:
        """What `Enrich.packed` gave."""
        ...


@dataclass(frozen=True, slots=True)
class HeldRows:
    """The rows of a table in this process."""

    value: bytes

    def __repr__(self) -> str:
        return f"HeldRows({len(self.value)} bytes)"


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
    """The places of the rows, sorted by all columns."""
    columns: list[pa.Array] = []
    for column in map(_whole, table.columns):
        # Arrow puts NULL and NaN at one end together: a column before each puts NULL first, and NaN last.
        rank = column.is_valid().cast(pa.int8())
        if pa.types.is_floating(column.type):
            is_nan = pc.is_nan(column).fill_null(False)
            rank, column = pc.add(rank, is_nan.cast(pa.int8())), pc.if_else(is_nan, None, column)
        columns += [rank, column]
    keys = [(str(place), "ascending") for place in range(len(columns))]
    order = pc.sort_indices(pa.table(columns, names=[name for name, _ in keys]), sort_keys=keys)
    return np.asarray(order.to_numpy().astype(np.int64))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)

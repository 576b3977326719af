"""Rows split by partition values, and those values as Delta writes them in its log and in folder names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from penstock.sinks.failures import mismatch

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"

# What Hive and Spark escape in a folder name; a space or a letter of any script stays as it is.
_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{}[]^" + "".join(map(chr, range(0x20))))
_LONGEST_FOLDER_BYTES = 200

PartitionValues = tuple[str | None, ...]


def can_partition(kind: pa.DataType) -> bool:
    """Whether Delta can keep a value of this type as text and give it back unchanged."""
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
        or types.is_decimal(kind)
    )


def check_partition_columns(sink: str, schema: pa.Schema, partition_by: Sequence[str], what: str) -> None:
    """Refuse partition columns that are not there, cannot name a folder, or are all there is; `what` has them."""
    absent = [name for name in partition_by if name not in schema.names]
    if absent:
        facts = {"partition_by": ", ".join(partition_by), "columns": ", ".join(schema.names)}
        raise mismatch(sink, f'no column "{absent[0]}" to partition by', facts)
    for name in partition_by:
        if not can_partition(schema.field(name).type):
            facts = {"column": f"{name} {schema.field(name).type}"}
            raise mismatch(sink, f"{what} cannot be partitioned by a column of this type", facts)
    if len(partition_by) == len(schema.names):
        raise mismatch(sink, "every column is in partition_by, none is left for the files", {})


def split_by_values(rows: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Yield each combination of partition values with its rows, in their order, without those columns.

    Rows of several combinations are copied, so that keeping a few of them does not keep the whole batch.
    """
    if not rows.num_rows:
        return
    if not columns:
        yield (), rows
        return
    combination: pa.Array = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    texts_by_column = []
    for name in columns:
        texts, codes = _encode(rows.column(name))
        texts_by_column.append(texts)
        combination = pc.add(pc.multiply(combination, len(texts)), codes)
    data = rows.drop_columns(list(columns))
    if pc.all(pc.equal(combination, combination[0])).as_py():
        yield _decode(texts_by_column, combination[0].as_py()), data
        return
    order = pc.array_sort_indices(combination)  # a stable sort: rows stay in the order of their offsets
    runs = pc.run_end_encode(combination.take(order))
    start = 0
    for code, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield _decode(texts_by_column, code), data.take(order.slice(start, end - start))
        start = end


def folder_of(columns: Sequence[str], values: PartitionValues) -> str:
    """The Hive-style folder of some partition values; empty where there are none."""
    return "/".join(
        _short(f"{_escape(column)}={NULL_FOLDER if value is None else _escape(value)}")
        for column, value in zip(columns, values, strict=True)
    )


def _encode(column: pa.Array) -> tuple[list[str | None], pa.Array]:
    """The distinct values of a column as Delta's text, and for each row which of them it has."""
    encoded = column.dictionary_encode(null_encoding="encode")
    texts = [_text(column.type, value) for value in encoded.dictionary.to_pylist()]
    distinct = list(dict.fromkeys(texts))
    place = {text: index for index, text in enumerate(distinct)}
    return distinct, pa.array([place[text] for text in texts], pa.int64()).take(encoded.indices)


def _decode(texts_by_column: Sequence[list[str | None]], code: int) -> PartitionValues:
    values: list[str | None] = []
    for texts in reversed(texts_by_column):
        code, place = divmod(code, len(texts))
        values.append(texts[place])
    return tuple(reversed(values))


def _text(kind: pa.DataType, value: object) -> str | None:
    """A partition value by the rules of the Delta protocol, section "Partition Value Serialization"."""
    if value is None or value == "":
        return None  # the protocol has no empty text: it reads back as null
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        written = value.replace(tzinfo=None).isoformat(sep="T" if kind.tz else " ", timespec="microseconds")
        return f"{written}Z" if kind.tz else written
    return format(value, "f") if types.is_decimal(kind) else str(value)


def _escape(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)


def _short(folder: str) -> str:
    # File systems refuse names over 255 bytes. Readers take the value from the log, never from the folder.
    written = folder.encode()
    if len(written) <= _LONGEST_FOLDER_BYTES:
        return folder
    kept = written[:_LONGEST_FOLDER_BYTES].decode(errors="ignore")
    return f"{kept}-{hashlib.sha256(written).hexdigest()[:16]}"

"""Converts values to the types that decoders give: from Arrow's many variants of a type, and from text.

The results are those of Spark reading the same files. Text comes from CSV fields, from the names of folders, and from
the output of a database.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.types as types

_DAY = r"^\d{4}-\d{2}-\d{2}$"
_ZONE = r"(Z|[+-]\d{2}(:?\d{2})?)$"
_BLOCK_BYTES = 4 * 1024**2


class TextError(Exception):
    """A value that is not of its column's type."""

    def __init__(self, column: str, kind: pa.DataType) -> None:
        super().__init__(f"a value is not of type {kind}")
        self.column = column


def parse_columns(texts: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Columns of text as columns of `schema`. Raises `TextError`."""
    arrays = []
    for field in schema:
        try:
            arrays.append(parse_texts(texts.column(field.name), field.type))
        except pa.ArrowException as error:
            raise TextError(field.name, field.type) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def parse_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values of a type; a time without a zone is UTC. Raises `pa.ArrowException` where one is not of the type."""
    if kind == pa.string():
        return texts
    if pa.types.is_timestamp(kind) and kind.tz:
        is_day = pc.match_substring_regex(texts, _DAY)
        is_zoned = pc.match_substring_regex(texts, _ZONE)
        zone = pc.if_else(is_day, " 00:00:00Z", pc.if_else(is_zoned, "", "Z"))
        texts = pc.binary_join_element_wise(texts, zone, "")
    return texts.cast(kind)


def read_names(source: IO[bytes]) -> pa.Schema:
    """The columns that the first line of a CSV file names, as text."""
    with pcsv.open_csv(source, read_options=pcsv.ReadOptions(use_threads=False)) as reader:
        return pa.schema([(name, pa.string()) for name in reader.schema.names])


def read_delimited(
    source: IO[bytes], columns: Sequence[str], given: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Columns of CSV with a line of names, or with `given` ones, all as text.

    An empty field is NULL, a quoted one the empty text. With given names every line is a row, also an empty one.
    """
    options = pcsv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()),
        include_columns=list(columns),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    with pcsv.open_csv(
        source,
        read_options=pcsv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=given),
        parse_options=pcsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=given is None),
        convert_options=options,
    ) as reader:
        yield from reader


_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
_MOST_DIGITS = 38


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns in plain types, without metadata."""
    return pa.schema([pa.field(field.name, plain_type(field.type), field.nullable) for field in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that decoders give for such values."""
    if _is_uuid(kind):
        return pa.string()
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if types.is_date64(kind):
        return pa.date32()
    if types.is_decimal(kind) and kind.precision <= _MOST_DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_float16(kind):
        return pa.float32()
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type), field.nullable) for field in kind])
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if _is_list(kind):
        return pa.list_(pa.field("element", plain_type(kind.value_type), kind.value_field.nullable))
    return _UNSIGNED.get(kind, kind)


def to_plain(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`, which is plain, from a batch that has them in any variant."""
    return pa.RecordBatch.from_arrays([_cast(batch.column(field.name), field.type) for field in schema], schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if _is_uuid(column.type) and kind == pa.string():
        stored = column.storage if isinstance(column, pa.ExtensionArray) else column
        return pa.array([value and str(uuid.UUID(bytes=value)) for value in stored.to_pylist()], kind)
    if isinstance(column, pa.ExtensionArray):
        return _cast(column.storage, kind)
    # Only the parts of a microsecond are lost: Spark has none.
    return column.cast(kind, safe=not types.is_timestamp(kind))


def _is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid"


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )

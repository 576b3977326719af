"""Values written as text, into columns: CSV fields, the names of folders, what a database writes out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

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

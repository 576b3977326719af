"""Files of JSON objects, one a line, as a table of given columns."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.json as pjson

from penstock.tables.file_table import READING, FileLookup
from penstock.tables.files import DataFile
from penstock.tables.texts import TextError, parse_columns

_BLOCK_BYTES = 16 * 1024**2
"""An object longer than this is refused."""


class JsonLookup(FileLookup):
    """Implements `LookupTable` over a file or a folder of files.

    Members that are not given as columns are left out; one that is absent is NULL. Dates and times are texts.
    """

    def _rows(self, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if file.size_bytes == 0:
            return
        try:
            for texts in self._parsed(file, schema).to_batches():
                yield _dated(texts, schema)
        except (TextError, pa.ArrowException) as error:
            column = error.column if isinstance(error, TextError) else self._failing(file, schema)
            why = "a value is not of the column's type" if column else "it is not JSON with one object a line"
            raise self._standing.unreadable(READING, why, file=file.relative, column=column) from error

    def _parsed(self, file: DataFile, schema: pa.Schema) -> pa.Table:
        asked = pa.schema([pa.field(field.name, _written(field.type)) for field in schema])
        with self._files.open(file) as source:
            return pjson.read_json(
                source,
                read_options=pjson.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
                parse_options=pjson.ParseOptions(explicit_schema=asked, unexpected_field_behavior="ignore"),
            )

    def _failing(self, file: DataFile, schema: pa.Schema) -> str | None:
        """The column that cannot be read; none where the text itself is wrong."""
        try:
            self._parsed(file, pa.schema([]))
        except pa.ArrowException:
            return None
        for field in schema:
            try:
                self._parsed(file, pa.schema([field]))
            except pa.ArrowException:
                return str(field.name)
        return None


def _written(kind: pa.DataType) -> pa.DataType:
    """The type in which the JSON is read: Arrow takes dates there for numbers."""
    return pa.string() if kind == pa.date32() or pa.types.is_timestamp(kind) else kind


def _dated(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    written = pa.schema([field for field in schema if _written(field.type) != field.type])
    dates = parse_columns(rows.select(written.names), written)
    columns = [dates.column(n) if n in written.names else rows.column(n) for n in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)

"""Tables of text files with given columns: CSV with a line of names, or JSON objects, one a line. Their version is the
files'.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.json as pjson

from penstock.storage import Storage
from penstock.tables.failures import TableState
from penstock.tables.files import DataFile, TableFiles, version_of
from penstock.tables.table import gather, select_columns
from penstock.tables.types import TextError, parse_columns, read_delimited, read_names

READING = "reading the rows"


class FileLookup(ABC):
    """Implements `LookupTable` over a file or a folder of files, all but the format."""

    def __init__(self, name: str, path: str, schema: pa.Schema, storage: Storage = Storage()) -> None:
        self.name = name
        self.target = path
        self._schema = pa.schema([pa.field(field.name, field.type) for field in schema])
        self._files = TableFiles(path, storage)
        self._standing = TableState(name, path)

    def schema(self) -> pa.Schema:
        """The given columns, of files that are there."""
        self.version()
        return self._schema

    def version(self) -> str:
        """By the names, sizes and times of the files."""
        with self._standing.looking("looking at the files"):
            return version_of(self._files.list())

    def estimated_bytes(self) -> int | None:
        """The size of the files."""
        with self._standing.looking("looking at the files"):
            return sum(file.size_bytes for file in self._files.list())

    def read(self, columns: Sequence[str], most_bytes: int | None = None) -> pa.Table | None:
        """All rows of these columns. Raises for a value that is not of its column's type."""
        wanted = select_columns(self.name, self._schema, columns)
        with self._standing.reading():
            files = self._files.list()
            found = gather((batch for file in files for batch in self._rows(file, wanted)), wanted, most_bytes)
            if version_of(self._files.list()) != version_of(files):
                raise self._standing.unreachable(READING, "they changed meanwhile")
        return found

    @abstractmethod
    def _rows(self, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of one file in exactly these columns."""


class CsvLookup(FileLookup):
    """Implements `LookupTable` over a file or a folder of files. Columns of the files that are not given are left out.

    An empty field is NULL; a quoted empty one is the empty text. Times without a zone are UTC.
    """

    def names_in_files(self) -> list[str]:
        """The names in the first line, those that are not columns too."""
        with self._standing.looking("reading the first line"), self._files.open(self._files.list()[0]) as source:
            return list(read_names(source).names)

    def _rows(self, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            with self._files.open(file) as source:
                select_columns(self.name, read_names(source), schema.names)
            with self._files.open(file) as source:
                for texts in read_delimited(source, schema.names):
                    yield parse_columns(texts, schema)
        except TextError as error:
            raise self._standing.unreadable(READING, str(error), file=file.relative, column=error.column) from error
        except pa.ArrowInvalid as error:
            raise self._standing.unreadable(
                READING, "it is not CSV with the same fields in every line", file=file.relative
            ) from error


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

"""CSV files with a line of names, as a table of given columns."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.tables.file_table import READING, FileLookup
from penstock.tables.files import DataFile
from penstock.tables.table import select_columns
from penstock.tables.texts import TextError, parse_columns, read_delimited, read_names


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

"""What tables of text files have in common: given columns, and a version by the files themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.storage import Storage
from penstock.tables.failures import Standing
from penstock.tables.files import DataFile, TableFiles, version_of
from penstock.tables.table import gather, select_columns

READING = "reading the rows"


class FileLookup(ABC):
    """Implements `LookupTable` over a file or a folder of files, all but the format."""

    def __init__(self, name: str, path: str, schema: pa.Schema, storage: Storage = Storage()) -> None:
        self.name = name
        self.target = path
        self._schema = pa.schema([pa.field(field.name, field.type) for field in schema])
        self._files = TableFiles(path, storage)
        self._standing = Standing(name, path)

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

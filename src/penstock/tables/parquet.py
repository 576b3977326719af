"""Parquet files: one, a folder with partition folders, or the folder of a Penstock sink.

The columns are those of all files together. Of a folder that `sinks.parquet` writes only the files count that its
manifests name, and its columns are those that the sink stored.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.json as pjson
import pyarrow.parquet as pq

from penstock.storage import Storage
from penstock.tables.table import StoredTable, select_columns
from penstock.tables.types import TextError, parse_columns, parse_texts, plain_schema, read_delimited, read_names

# What `sinks.parquet` writes next to its files.
_COMMON_METADATA = "_common_metadata"
_MANIFEST = "_manifest.json"
_BATCH = "penstock_batch="
_PARTITION_COLUMNS = b"penstock.partition_columns"

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class _Layout:
    """What was found at the path. `inside` are the columns of the files, `partitions` those of the folders."""

    version: str
    files: tuple[DataFile, ...]
    inside: pa.Schema
    partitions: pa.Schema
    size_bytes: int

    @property
    def schema(self) -> pa.Schema:
        return plain_schema(pa.schema([*self.inside, *self.partitions]))


class ParquetLookup(StoredTable):
    """Implements `LookupTable`. Footers and manifests are read once for each version.

    The version is one of the names, sizes and times of the files, or of the batches where a sink writes the folder.
    """

    def __init__(self, name: str, path: str, storage: Storage = Storage()) -> None:
        super().__init__(name, path)
        self._files = TableFiles(path, storage)
        self._layout: _Layout | None = None
        self._manifests: dict[str, tuple[tuple[str, int], ...]] = {}

    def _refresh(self) -> None:
        sink_columns = self._sink_columns()
        files = tuple(self._files.list() if sink_columns is None else self._committed())
        version = version_of(files)
        if self._layout is None or self._layout.version != version:
            if sink_columns is None:
                self._layout = self._layout_by_footers(version, files)
            else:
                self._layout = _Layout(version, files, *sink_columns, sum(file.size_bytes for file in files))

    def _version(self) -> str:
        return self._known.version

    def _columns(self) -> pa.Schema:
        return self._known.schema

    def _size_bytes(self) -> int:
        """The uncompressed size of the rows, from the footers; of a sink's folder the size of the files."""
        return self._known.size_bytes

    def _rows(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        return (batch for file in self._known.files for batch in self._rows_of(file, self._known, wanted))

    @property
    def _known(self) -> _Layout:
        assert self._layout is not None
        return self._layout

    def _sink_columns(self) -> tuple[pa.Schema, pa.Schema] | None:
        """The columns that a sink noted in the folder: of the files, and of the folders."""
        path = f"{self._files.root}/{_COMMON_METADATA}"
        if not self._files.fs.exists(path):
            return None
        inside = pq.read_schema(path, filesystem=self._files.fs)
        partitions = (inside.metadata or {}).get(_PARTITION_COLUMNS)
        if partitions is None:
            return None
        return inside.remove_metadata(), pa.ipc.read_schema(pa.py_buffer(base64.b64decode(partitions)))

    def _committed(self) -> Iterator[DataFile]:
        """The files that the manifests name. A batch's folder never changes: its manifest is read once."""
        self._files.fs.invalidate_cache(self._files.root)
        folders = sorted(entry["name"] for entry in self._files.fs.ls(self._files.root, detail=True))
        for folder in (str(path) for path in folders):
            name = folder.rpartition("/")[2]
            if not name.startswith(_BATCH):
                continue
            if name not in self._manifests:
                body = json.loads(self._files.fs.cat_file(f"{folder}/{_MANIFEST}"))
                self._manifests[name] = tuple((file["path"], int(file["size_bytes"])) for file in body["files"])
            for path, size in self._manifests[name]:
                yield DataFile(f"{folder}/{path}", f"{name}/{path}", size, "")

    def _layout_by_footers(self, version: str, files: tuple[DataFile, ...]) -> _Layout:
        footers = [pq.read_metadata(file.path, filesystem=self._files.fs) for file in files]
        schemas = [footer.schema.to_arrow_schema().remove_metadata() for footer in footers]
        inside = pa.unify_schemas(schemas, promote_options="permissive")
        size = sum(
            footer.row_group(place).total_byte_size for footer in footers for place in range(footer.num_row_groups)
        )
        texts: dict[str, list[str]] = {}
        for file in files:
            for column, text in partition_values(file.relative).items():
                texts.setdefault(unquote(column), []).append(unquote(text))
        partitions = [pa.field(name, _guessed(found)) for name, found in texts.items() if name not in inside.names]
        return _Layout(version, files, inside, pa.schema(partitions), size)

    def _rows_of(self, file: DataFile, layout: _Layout, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        inside = [name for name in wanted.names if name in layout.inside.names]
        texts = {unquote(name): unquote(text) for name, text in partition_values(file.relative).items()}
        values = {
            field.name: _value(texts.get(field.name), field.type)
            for field in layout.partitions
            if field.name in wanted.names
        }
        found = ds.dataset(file.path, schema=layout.inside, format="parquet", filesystem=self._files.fs)
        for batch in found.to_batches(columns=inside, use_threads=False):
            columns = {name: batch.column(name) for name in inside}
            columns |= {name: pa.repeat(value, batch.num_rows) for name, value in values.items()}
            yield pa.RecordBatch.from_arrays([columns[name] for name in wanted.names], names=wanted.names)


def _guessed(texts: Sequence[str]) -> pa.DataType:
    """The type of a partition column, by the values that there are: as Spark guesses, but for fractions and times."""
    known = [text for text in texts if text != _NULL]
    if known and all(_INTEGER.fullmatch(text) for text in known):
        return pa.int32() if all(-(2**31) <= int(text) < 2**31 for text in known) else pa.int64()
    return pa.date32() if known and all(_DAY.fullmatch(text) for text in known) else pa.string()


def _value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    return parse_texts(pa.array([None if text == _NULL else text], pa.string()), kind)[0]


# Tables of text files with given columns: CSV with a line of names, or JSON objects, one a line. Their version is the
# files'.

_READING = "reading the rows"


class FileLookup(StoredTable):
    """Implements `LookupTable` over a file or a folder of files, all but the format.

    The version is one of the names, sizes and times of the files.
    """

    def __init__(self, name: str, path: str, schema: pa.Schema, storage: Storage = Storage()) -> None:
        super().__init__(name, path)
        self._schema = pa.schema([pa.field(field.name, field.type) for field in schema])
        self._files = TableFiles(path, storage)
        self._found: list[DataFile] = []

    def _refresh(self) -> None:
        self._found = self._files.list()

    def _version(self) -> str:
        return version_of(self._found)

    def _columns(self) -> pa.Schema:
        return self._schema

    def _size_bytes(self) -> int:
        return sum(file.size_bytes for file in self._found)

    def _rows(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Raises for a value that is not of its column's type, and for files that change meanwhile."""
        files = self._files.list()
        for file in files:
            yield from self._rows_of(file, wanted)
        if version_of(self._files.list()) != version_of(files):
            raise self._unreachable(_READING, "the files changed meanwhile")

    @abstractmethod
    def _rows_of(self, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of one file in exactly these columns."""


class CsvLookup(FileLookup):
    """Implements `LookupTable` over a file or a folder of files. Columns of the files that are not given are left out.

    An empty field is NULL; a quoted empty one is the empty text. Times without a zone are UTC.
    """

    def names_in_files(self) -> list[str]:
        """The names in the first line, those that are not columns too."""
        with self._errors("reading the first line"), self._files.open(self._files.list()[0]) as source:
            return list(read_names(source).names)

    def _rows_of(self, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            with self._files.open(file) as source:
                select_columns(self.name, read_names(source), schema.names)
            with self._files.open(file) as source:
                for texts in read_delimited(source, schema.names):
                    yield parse_columns(texts, schema)
        except TextError as error:
            raise self._unreadable(_READING, str(error), file=file.relative, column=error.column) from error
        except pa.ArrowInvalid as error:
            raise self._unreadable(
                _READING, "it is not CSV with the same fields in every line", file=file.relative
            ) from error


_BLOCK_BYTES = 16 * 1024**2
"""An object longer than this is refused."""


class JsonLookup(FileLookup):
    """Implements `LookupTable` over a file or a folder of files.

    Members that are not given as columns are left out; one that is absent is NULL. Dates and times are texts.
    """

    def _rows_of(self, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if file.size_bytes == 0:
            return
        try:
            for texts in self._parsed(file, schema).to_batches():
                yield _dated(texts, schema)
        except (TextError, pa.ArrowException) as error:
            column = error.column if isinstance(error, TextError) else self._failing(file, schema)
            why = "a value is not of the column's type" if column else "it is not JSON with one object a line"
            raise self._unreadable(_READING, why, file=file.relative, column=column) from error

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


# The files of a table, here or in an object store: a file alone, or all of a folder that Spark would read.


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file, by its path in the file system; `mark` changes with its content."""

    path: str
    relative: str
    size_bytes: int
    mark: str


class TableFiles:
    """What is at a path. Names that begin with `_` or `.` are not data, unless they name a partition."""

    def __init__(self, path: str, storage: Storage = Storage()) -> None:
        self.fs, root = storage.filesystem(path)
        self.root = root.rstrip("/") or "/"

    def list(self) -> list[DataFile]:
        """Every data file, by name. Raises `FileNotFoundError` where there is nothing at all."""
        self.fs.invalidate_cache(self.root)
        found: dict[str, dict[str, Any]] = self.fs.find(self.root, detail=True)
        files = sorted(
            (self._file(path, info) for path, info in found.items() if info["type"] == "file"), key=lambda f: f.path
        )
        files = [file for file in files if _is_data(file.relative)]
        if not files:
            raise FileNotFoundError(self.root)
        return files

    def open(self, file: DataFile) -> IO[bytes]:
        """A file's bytes, decompressed by the ending of its name."""
        return cast(IO[bytes], self.fs.open(file.path, "rb", compression="infer"))

    def _file(self, path: str, info: dict[str, Any]) -> DataFile:
        relative = path.removeprefix(self.root).strip("/") or path.rpartition("/")[2]
        mark = next((info[key] for key in ("mtime", "ETag", "etag", "LastModified", "updated") if key in info), "")
        return DataFile(path, relative, int(info["size"] or 0), str(mark))


def version_of(files: Iterable[DataFile]) -> str:
    """A short text for a set of files: another one where a file came, went or changed."""
    lines = "\n".join(f"{file.relative}\0{file.size_bytes}\0{file.mark}" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()[:12]


def partition_values(relative: str) -> dict[str, str]:
    """The values in the names of the folders that lead to a file, as they are written there."""
    return dict(part.split("=", 1) for part in relative.split("/")[:-1] if "=" in part)


def _is_data(relative: str) -> bool:
    return not any(part[0] in "._" and "=" not in part for part in relative.split("/"))

"""Parquet files: one, a folder with partition folders, or the folder of a Penstock sink.

The columns are those of all files together. Of a folder that `sinks.parquet` writes only the files count that its
manifests name, and its columns are those that it noted down.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from penstock.storage import Storage
from penstock.tables.failures import TableState
from penstock.tables.files import DataFile, TableFiles, partition_values, version_of
from penstock.tables.table import gather, select_columns
from penstock.tables.types import parse_texts, plain_schema

# What `sinks.parquet` writes beside its files.
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


class ParquetLookup:
    """Implements `LookupTable`. Footers and manifests are read once for each version."""

    def __init__(self, name: str, path: str, storage: Storage = Storage()) -> None:
        self.name = name
        self.target = path
        self._files = TableFiles(path, storage)
        self._standing = TableState(name, path)
        self._seen: _Layout | None = None
        self._manifests: dict[str, tuple[tuple[str, int], ...]] = {}

    def schema(self) -> pa.Schema:
        """The columns of all files, those of the folders last."""
        return self._look().schema

    def version(self) -> str:
        """By the names, sizes and times of the files; of a sink's folder by its batches."""
        return self._look().version

    def estimated_bytes(self) -> int | None:
        """The size of the rows, unpacked, as the footers have it; of a sink's folder that of the files."""
        return self._look().size_bytes

    def read(self, columns: Sequence[str], most_bytes: int | None = None) -> pa.Table | None:
        """All rows of these columns, of the files that were found last."""
        layout = self._seen or self._look()
        wanted = select_columns(self.name, layout.schema, columns)
        with self._standing.reading():
            return gather(
                (batch for file in layout.files for batch in self._rows(file, layout, wanted)), wanted, most_bytes
            )

    def _look(self) -> _Layout:
        with self._standing.looking("looking at the files"):
            kept = self._sink_columns()
            files = tuple(self._files.list() if kept is None else self._committed())
            version = version_of(files)
            if self._seen is None or self._seen.version != version:
                self._seen = self._footers(version, files) if kept is None else self._noted(version, files, *kept)
            return self._seen

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

    def _noted(self, version: str, files: tuple[DataFile, ...], inside: pa.Schema, partitions: pa.Schema) -> _Layout:
        return _Layout(version, files, inside, partitions, sum(file.size_bytes for file in files))

    def _footers(self, version: str, files: tuple[DataFile, ...]) -> _Layout:
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

    def _rows(self, file: DataFile, layout: _Layout, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        inside = [name for name in wanted.names if name in layout.inside.names]
        held = {unquote(name): unquote(text) for name, text in partition_values(file.relative).items()}
        values = {
            field.name: _value(held.get(field.name), field.type)
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

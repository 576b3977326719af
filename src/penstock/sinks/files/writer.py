"""The files of one attempt of one slot: rows in, closed and durable files out. Memory and open files are bounded."""

from __future__ import annotations

import hashlib
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO, Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as types

from penstock.model import BatchToken, SlotAttempt
from penstock.sinks.files.folder import TableFolder

# How large files should be, and which of them are too small.

TARGET_FILE_BYTES = 128 * 1024 * 1024
"""The default maximum size of a data file."""

SMALLEST_TARGET = 1024 * 1024
"""What a compaction that never has the table for long joins files to at least."""
ROW_GROUP_ROWS = 262_144
WAITING_BYTES = 64 * 1024 * 1024
OPEN_FILES = 256
_STAGED = re.compile(r"part-\w{1,8}-\d+-[0-9a-f]{12}-")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A closed file. `folder` is as it was given."""

    path: str
    folder: str
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class WrittenParquet(WrittenFile):
    """A closed Parquet file. `with_nan` are the float leaves that contain a NaN."""

    footer: pq.FileMetaData
    with_nan: frozenset[Leaf]


class OpenFile(Protocol):
    """A file that is being written."""

    path: str
    raw: BinaryIO

    def close(self) -> None:
        """Write what the format puts at the end of a file. `raw` stays open."""
        ...


Open = TypeVar("Open", bound=OpenFile)
Written = TypeVar("Written", bound=WrittenFile, covariant=True)


class SlotFiles(ABC, Generic[Open, Written]):
    """The files of one attempt of one slot: one per folder until it reaches the target size, then another.

    The number of open files is bounded: beyond it the least recently used one is closed, and its folder gets another
    file if more rows arrive for it.
    """

    def __init__(
        self, root: TableFolder, prefix: str, writer: SlotAttempt, ending: str, target_file_bytes: int
    ) -> None:
        self._root = root
        self._target = target_file_bytes
        # The random part keeps a batch that is run again after a restart, with the same attempt, off files that are
        # committed already.
        attempt = re.sub(r"[^A-Za-z0-9]+", ".", writer.attempt)
        self._name = f"{prefix}{writer.slot}-{attempt}-{secrets.token_hex(4)}"
        self._ending = ending
        self._open: dict[str, Open] = {}
        self._written: list[Written] = []
        self._files = 0

    @abstractmethod
    def add(self, folder: str, rows: pa.RecordBatch) -> None:
        """Take rows for a folder, relative to the root; empty for the root itself."""

    def finish(self) -> list[Written]:
        """Close every file and make it durable."""
        for folder in list(self._open):
            self._close(folder)
        self._root.sync(file.path for file in self._written)
        return self._written

    def abort(self) -> None:
        """Remove what was written. Never raises: what cannot be removed stays invisible."""
        for file in self._open.values():
            for close in (file.close, file.raw.close):
                with suppress(Exception):
                    close()
        for path in [*(file.path for file in self._open.values()), *(file.path for file in self._written)]:
            with suppress(Exception):
                self._root.remove(path)
        self._open, self._written = {}, []

    @abstractmethod
    def _begin(self, path: str, raw: BinaryIO) -> Open:
        """Begin a file."""

    @abstractmethod
    def _describe(self, file: Open, folder: str, size_bytes: int) -> Written:
        """A file that was closed."""

    def _file(self, folder: str) -> Open:
        """The open file of a folder; a new one is opened where needed."""
        file = self._open.pop(folder, None)
        if file is None:
            while len(self._open) >= OPEN_FILES:
                self._close(next(iter(self._open)))
            path = f"{folder}/{self._name}-{self._files}{self._ending}".lstrip("/")
            self._files += 1
            file = self._begin(path, self._root.open(path))
        self._open[folder] = file  # the most recently used one is the last
        return file

    def _close_if_full(self, folder: str) -> None:
        if self._open[folder].raw.tell() >= self._target:
            self._close(folder)

    def _close(self, folder: str) -> None:
        file = self._open.pop(folder)
        file.close()
        size = file.raw.tell()
        file.raw.close()
        self._written.append(self._describe(file, folder, size))


@dataclass(slots=True)
class _Waiting:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class _OpenParquet:
    path: str
    raw: BinaryIO
    parquet: pq.ParquetWriter
    footers: list[pq.FileMetaData]
    with_nan: set[Leaf] = field(default_factory=set)

    def close(self) -> None:
        self.parquet.close()


class ParquetFiles(SlotFiles[_OpenParquet, WrittenParquet]):
    """Parquet files. Rows wait in small batches; when too much waits, the largest ones are written as row groups.

    The `watched` leaves are checked for NaN.
    """

    def __init__(
        self,
        root: TableFolder,
        prefix: str,
        writer: SlotAttempt,
        schema: pa.Schema,
        watched: Sequence[Leaf] = (),
        target_file_bytes: int = TARGET_FILE_BYTES,
    ) -> None:
        super().__init__(root, prefix, writer, ".parquet", target_file_bytes)
        self._schema = schema
        self._dictionary_columns = dictionary_columns(leaves_of(schema))
        self._watched = list(watched)
        self._waiting: dict[str, _Waiting] = {}

    def add(self, folder: str, rows: pa.RecordBatch) -> None:
        """Take rows for a folder, relative to the root; empty for the root itself."""
        waiting = self._waiting.setdefault(folder, _Waiting())
        waiting.batches.append(rows)
        waiting.rows += rows.num_rows
        waiting.size_bytes += rows.nbytes
        if waiting.rows >= ROW_GROUP_ROWS or waiting.size_bytes >= self._target:
            self._flush(folder)
        self._limit_waiting()

    def finish(self) -> list[WrittenParquet]:
        """Close every file and make it durable."""
        for folder in sorted(self._waiting):
            self._flush(folder)
            if folder in self._open:
                self._close(folder)
        return super().finish()

    def _limit_waiting(self) -> None:
        total = sum(waiting.size_bytes for waiting in self._waiting.values())
        if total <= WAITING_BYTES:
            return
        for folder in sorted(self._waiting, key=lambda f: self._waiting[f].size_bytes, reverse=True):
            if total <= WAITING_BYTES // 2:
                break
            total -= self._waiting[folder].size_bytes
            self._flush(folder)

    def _flush(self, folder: str) -> None:
        """Write the waiting rows of a folder as one row group."""
        waiting = self._waiting.pop(folder)
        file = self._file(folder)
        table = pa.Table.from_batches(waiting.batches)
        file.with_nan |= leaves_with_nan(table, self._watched)
        file.parquet.write_table(table, row_group_size=table.num_rows)
        self._close_if_full(folder)

    def _begin(self, path: str, raw: BinaryIO) -> _OpenParquet:
        footers: list[pq.FileMetaData] = []
        parquet = pq.ParquetWriter(
            raw,
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=self._dictionary_columns,
            store_schema=False,
            metadata_collector=footers,
        )
        return _OpenParquet(path, raw, parquet, footers)

    def _describe(self, file: _OpenParquet, folder: str, size_bytes: int) -> WrittenParquet:
        [footer] = file.footers
        return WrittenParquet(file.path, folder, size_bytes, int(footer.num_rows), footer, frozenset(file.with_nan))


def staged_prefix(kind: str, pipeline: str, sink: str, token: BatchToken) -> str:
    """How the names of a batch's files begin.

    Folders are shared: the mark keeps writers with alike query ids from removing each other's files.
    """
    mark = hashlib.sha256(f"{pipeline}/{sink}/{token.query_id}".encode()).hexdigest()[:12]
    return f"{kind}-{token.label}-{mark}-"


def staged_batch(name: str) -> str | None:
    """How the names of the batch begin that a file was staged for; none where it is no file that a sink staged."""
    found = _STAGED.match(name.rpartition("/")[2])
    return found[0] if found is not None else None


def leaves_with_nan(rows: pa.Table, leaves: Sequence[Leaf]) -> set[Leaf]:
    """The float leaves that hold a NaN. Parquet leaves NaN out of its bounds, SQL sorts it above all."""
    found = set()
    for leaf in leaves:
        if types.is_floating(leaf.type):
            values = rows.column(leaf.names[0])
            for name in leaf.names[1:]:
                values = pc.struct_field(values, values.type.get_field_index(name))
            if pc.any(pc.is_nan(values)).as_py():
                found.add(leaf)
    return found


# The leaf columns of a schema, in the order of a Parquet file: what footers and encodings speak of.


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf column. `names` leads to it through structs only and is empty inside a list or a map."""

    column: int
    parquet_path: str
    names: tuple[str, ...]
    type: pa.DataType


def leaves_of(schema: pa.Schema) -> list[Leaf]:
    """Every leaf, depth first: its place in the list is its column number in the Parquet file."""
    found = [leaf for field in schema for leaf in _walk(field.type, (field.name,), (field.name,))]
    return [Leaf(column, ".".join(path), names, kind) for column, (path, names, kind) in enumerate(found)]


_Found = tuple[tuple[str, ...], tuple[str, ...], pa.DataType]


def _walk(kind: pa.DataType, path: tuple[str, ...], names: tuple[str, ...]) -> Iterator[_Found]:
    if types.is_struct(kind):
        for field in kind:
            yield from _walk(field.type, (*path, field.name), (*names, field.name) if names else ())
    elif types.is_list(kind) or types.is_large_list(kind):
        yield from _walk(kind.value_type, (*path, "list", "element"), ())
    elif types.is_map(kind):
        yield from _walk(kind.key_type, (*path, "key_value", "key"), ())
        yield from _walk(kind.item_type, (*path, "key_value", "value"), ())
    else:
        yield path, names, kind


def dictionary_columns(leaves: Iterable[Leaf]) -> list[str]:
    """The columns worth a dictionary: text and small integers.

    Of 64-bit numbers, times and bytes most values are distinct, and building dictionaries for them halved
    the write rate and made larger files.
    """
    return [leaf.parquet_path for leaf in leaves if _repeats(leaf.type)]


def _repeats(kind: pa.DataType) -> bool:
    if types.is_string(kind) or types.is_large_string(kind) or types.is_date(kind):
        return True
    return bool(types.is_integer(kind)) and kind.bit_width <= 32


def worth_joining(sizes: Sequence[int], target: int) -> int:
    """How many files of one partition are so small that two of them fit into one; none where it is but one."""
    small = sum(1 for size in sizes if size < target // 2)
    return small if small > 1 else 0

"""The files of one attempt of one slot: rows in, closed and durable Parquet files out.

One file a folder, until it has grown past the wanted size: then the next one is begun. Memory is bounded: rows wait in
small batches, and when too much waits, the folders with most of them get a row group. Open files are bounded as well:
past the bound the one written longest ago is closed, and should its folder come again, it gets another file.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyarrow.types as types

from penstock.model import COORDINATES, COORDINATES_FIELD, BatchToken, OffsetRange, SlotAttempt
from penstock.sinks.files.folder import TableFolder
from penstock.sinks.replacing import PLACE, RecordRanges

# How large files should be, and which of them are too small.

TARGET_FILE_BYTES = 128 * 1024 * 1024
"""How large a data file may grow, where the pipeline file does not say."""

SMALLEST_TARGET = 1024 * 1024
"""What a compaction that never has the table for long joins files to at least."""
ROW_GROUP_ROWS = 262_144
WAITING_BYTES = 64 * 1024 * 1024
OPEN_FILES = 256
_STAGED = re.compile(r"part-\w{1,8}-\d+-[0-9a-f]{12}-")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A closed file. `folder` is as it was given; `with_nan` are the float leaves that hold a NaN."""

    path: str
    folder: str
    size_bytes: int
    footer: pq.FileMetaData
    with_nan: frozenset[Leaf]

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return int(self.footer.num_rows)


@dataclass(slots=True)
class _Waiting:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class _OpenFile:
    path: str
    raw: BinaryIO
    parquet: pq.ParquetWriter
    footers: list[pq.FileMetaData]
    with_nan: set[Leaf] = field(default_factory=set)


class ParquetFiles:
    """Files under names that begin with `prefix` and hold the slot and attempt. `watched` are looked at for NaN."""

    def __init__(
        self,
        root: TableFolder,
        prefix: str,
        writer: SlotAttempt,
        schema: pa.Schema,
        watched: Sequence[Leaf] = (),
        target_file_bytes: int = TARGET_FILE_BYTES,
    ) -> None:
        self._root = root
        self._schema = schema
        self._target = target_file_bytes
        # The random end keeps a batch that is run again after a restart, with the same attempt, off files
        # that are committed already.
        attempt = re.sub(r"[^A-Za-z0-9]+", ".", writer.attempt)
        self._name = f"{prefix}{writer.slot}-{attempt}-{secrets.token_hex(4)}"
        self._dictionary_columns = dictionary_columns(leaves_of(schema))
        self._watched = list(watched)
        self._waiting: dict[str, _Waiting] = {}
        self._open: dict[str, _OpenFile] = {}
        self._written: list[WrittenFile] = []
        self._files = 0

    def add(self, folder: str, rows: pa.RecordBatch) -> None:
        """Take some rows for a folder, relative to the root and empty for the root itself."""
        waiting = self._waiting.setdefault(folder, _Waiting())
        waiting.batches.append(rows)
        waiting.rows += rows.num_rows
        waiting.size_bytes += rows.nbytes
        if waiting.rows >= ROW_GROUP_ROWS or waiting.size_bytes >= self._target:
            self._flush(folder)
        self._relieve()

    def finish(self) -> list[WrittenFile]:
        """Close every file and make it durable."""
        for folder in sorted(self._waiting):
            self._flush(folder)
            if folder in self._open:
                self._close(folder)
        for folder in list(self._open):
            self._close(folder)
        self._root.sync(file.path for file in self._written)
        return self._written

    def abort(self) -> None:
        """Remove what was written. What cannot be removed is invisible, as everything staged is."""
        for file in self._open.values():
            with suppress(Exception):
                file.parquet.close()
            with suppress(Exception):
                file.raw.close()
        for path in [*(file.path for file in self._open.values()), *(file.path for file in self._written)]:
            with suppress(Exception):
                self._root.remove(path)
        self._waiting, self._open, self._written = {}, {}, []

    def _relieve(self) -> None:
        held = sum(waiting.size_bytes for waiting in self._waiting.values())
        if held <= WAITING_BYTES:
            return
        for folder in sorted(self._waiting, key=lambda f: self._waiting[f].size_bytes, reverse=True):
            if held <= WAITING_BYTES // 2:
                break
            held -= self._waiting[folder].size_bytes
            self._flush(folder)

    def _flush(self, folder: str) -> None:
        """Write what waits for a folder as one row group."""
        waiting = self._waiting.pop(folder, None)
        if waiting is None:
            return
        file = self._open.pop(folder, None) or self._begin(folder)
        self._open[folder] = file  # last in order: the one used most recently
        table = pa.Table.from_batches(waiting.batches)
        file.with_nan |= leaves_with_nan(table, self._watched)
        file.parquet.write_table(table, row_group_size=table.num_rows)
        if file.raw.tell() >= self._target:
            self._close(folder)

    def _begin(self, folder: str) -> _OpenFile:
        while len(self._open) >= OPEN_FILES:
            self._close(next(iter(self._open)))
        path = f"{folder}/{self._name}-{self._files}.parquet".lstrip("/")
        self._files += 1
        raw = self._root.open(path)
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
        return _OpenFile(path, raw, parquet, footers)

    def _close(self, folder: str) -> None:
        file = self._open.pop(folder)
        file.parquet.close()
        size = file.raw.tell()
        file.raw.close()
        [footer] = file.footers
        self._written.append(WrittenFile(file.path, folder, size, footer, frozenset(file.with_nan)))


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


# Which records of Kafka the rows of some files came from, by their coordinates.


def records_in(
    folder: TableFolder, paths: Sequence[str], ranges: Sequence[OffsetRange], format: str | ds.FileFormat = "parquet"
) -> set[tuple[str, int, int]] | None:
    """The topic, partition and offset of each record in these ranges that a row came from.

    None where a file has no coordinates. Row groups are skipped by their statistics.
    """
    wanted = RecordRanges(ranges)
    asked = wanted.hulls
    if not paths or not asked:
        return set()
    topic, partition, offset = (pc.field(COORDINATES, part) for part in PLACE)
    near = (
        topic.isin(sorted({r.topic for r in asked}))
        & partition.isin(pa.array(sorted({r.partition for r in asked}), pa.int32()))
        & (offset >= min(r.start for r in asked))
        & (offset < max(r.end for r in asked))
    )
    columns = {part: pc.field(COORDINATES, part) for part in PLACE}
    found: set[tuple[str, int, int]] = set()
    for file in folder.dataset(paths, pa.schema([COORDINATES_FIELD]), format).get_fragments():
        if COORDINATES not in file.physical_schema.names:
            return None
        # Without threads: Arrow's, left alone at the end of a process, have ended it by an abort.
        for rows in file.to_batches(
            schema=pa.schema([COORDINATES_FIELD]), columns=columns, filter=near, use_threads=False
        ):
            found |= wanted.among(pa.StructArray.from_arrays(rows.columns, PLACE))
    return found


def worth_joining(sizes: Sequence[int], target: int) -> int:
    """How many files of one partition are so small that two of them fit into one; none where it is but one."""
    small = sum(1 for size in sizes if size < target // 2)
    return small if small > 1 else 0

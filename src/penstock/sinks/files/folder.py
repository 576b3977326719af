"""The table's folder: where staged files are opened, made durable, listed and removed, here or in an object store.

The only place that distinguishes local paths from object stores.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.types as types

from penstock.errors import MissingError
from penstock.sinks.failures import mismatch
from penstock.storage import ObjectFileSystem, Storage, local_path


class TableFolder:
    """A table's root. Paths inside are relative, with forward slashes."""

    def __init__(self, uri: str, storage: Storage = Storage()) -> None:
        self.uri = uri.rstrip("/")
        self._storage = storage
        self.local: Path | None = local_path(uri)

    def elsewhere(self, uri: str) -> TableFolder:
        """Another folder, reached in the same way."""
        return TableFolder(uri, self._storage)

    def open(self, path: str) -> BinaryIO:
        """Open a new file for writing, its folders made where needed. In an object store it appears when closed."""
        if self.local is None:
            fs, root = self._filesystem()
            return cast(BinaryIO, fs.open(f"{root}/{path}", "wb"))
        target = self.local / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.open("xb")

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; none where there is no such file."""
        try:
            if self.local is not None:
                return (self.local / path).read_bytes()
            fs, root = self._filesystem()
            return cast(bytes, fs.cat_file(f"{root}/{path}"))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put_new(self, path: str, body: bytes) -> bool:
        """Create a small file, whole and durable; false where it exists. Of two writers exactly one succeeds."""
        try:
            if self.local is None:
                fs, root = self._filesystem()
                if not isinstance(fs, ObjectFileSystem):
                    raise MissingError(
                        "STORAGE_NOT_SAFE",
                        f"writing {self.uri}/{path}: the store cannot create a file only if it does not exist",
                        hint="use a local path, or one of s3://, gs://, abfss:// and hdfs://",
                    )
                fs.put_new(f"{root}/{path}", body)
                return True
            target = self.local / path
            fresh = target.with_name(f".penstock-{secrets.token_hex(8)}.tmp")
            try:
                with fresh.open("xb") as file:
                    file.write(body)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(fresh, target)
            finally:
                fresh.unlink(missing_ok=True)
            fsync(target.parent)
        except FileExistsError:
            return False
        return True

    def dataset(
        self, paths: Sequence[str], schema: pa.Schema | None = None, format: str | ds.FileFormat = "parquet"
    ) -> ds.Dataset:
        """Parquet files of the folder, for Arrow to read."""
        if self.local is not None:
            return ds.dataset([str(self.local / path) for path in paths], schema=schema, format=format)
        fs, root = self._filesystem()
        return ds.dataset([f"{root}/{path}" for path in paths], schema=schema, format=format, filesystem=fs)

    def sync(self, paths: Iterable[str]) -> None:
        """Make files and the names that lead to them survive a power failure. Object stores already do."""
        if self.local is None:
            return
        folders: set[Path] = set()
        for path in paths:
            fsync(self.local / path)
            folders.update(self.local / parent for parent in Path(path).parents)
        for folder in folders:
            fsync(folder)

    def remove(self, path: str) -> None:
        """Remove a file that may be gone already."""
        if self.local is not None:
            (self.local / path).unlink(missing_ok=True)
            return
        fs, root = self._filesystem()
        try:
            fs.rm_file(f"{root}/{path}")
        except FileNotFoundError:
            return

    def has(self, path: str) -> bool:
        """Whether a file exists."""
        if self.local is not None:
            return (self.local / path).exists()
        fs, root = self._filesystem()
        return bool(fs.isfile(f"{root}/{path}"))

    def data_files(self, prefix: str) -> Iterator[str]:
        """The files outside the log whose name begins with `prefix`. A walk through the whole folder."""
        if self.local is None:
            for path in self._listed():
                if path.rpartition("/")[2].startswith(prefix) and not path.startswith("_delta_log/"):
                    yield path
            return
        for folder, folders, names in os.walk(self.local):
            folders[:] = [name for name in folders if name != "_delta_log"]
            for name in names:
                if name.startswith(prefix):
                    yield (Path(folder) / name).relative_to(self.local).as_posix()

    def older(self, below: str, ending: str, than: datetime) -> Iterator[str]:
        """The files below a folder in it whose name ends so, and that were written before a moment."""
        if self.local is None:
            for path, about in self._listed(below).items():
                if path.endswith(ending) and "mtime" in about and about["mtime"] < than:
                    yield path
            return
        for file in (self.local / below).rglob(f"*{ending}"):
            try:
                if datetime.fromtimestamp(file.stat().st_mtime, UTC) < than:
                    yield file.relative_to(self.local).as_posix()
            except OSError:
                continue

    def names(self, below: str = "") -> list[str]:
        """The names of what is directly in it, or in a folder of it."""
        if self.local is not None:
            folder = self.local / below
            return [path.name for path in folder.iterdir()] if folder.is_dir() else []
        fs, root = self._filesystem()
        try:
            paths = fs.ls(f"{root}/{below}".rstrip("/"), detail=False)
            return [str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths]
        except FileNotFoundError:
            return []

    def is_file(self) -> bool:
        """Whether there is a file at the folder's path."""
        if self.local is not None:
            return self.local.is_file()
        fs, root = self._filesystem()
        return bool(fs.isfile(root))

    def all_files(self) -> Iterator[str]:
        """Every file in the folder; or the file at its path."""
        if self.local is None:
            yield from self._listed()
        elif self.local.is_file():
            yield self.local.name
        else:
            for path in self.local.rglob("*"):
                if path.is_file():
                    yield path.relative_to(self.local).as_posix()

    def _listed(self, below: str = "") -> dict[str, dict[str, Any]]:
        fs, root = self._filesystem()
        try:
            found: dict[str, dict[str, Any]] = fs.find(f"{root}/{below}".rstrip("/"), detail=True)
        except FileNotFoundError:
            return {}
        return {path[len(root) + 1 :] or path.rpartition("/")[2]: about for path, about in found.items()}

    def _filesystem(self) -> tuple[Any, str]:
        fs, root = self._storage.filesystem(self.uri)
        return fs, root.rstrip("/")


def fsync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Rows split by partition values, and those values as Delta writes them in its log and in folder names.

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"

# What Hive and Spark escape in a folder name; a space or a letter of any script stays as it is.
_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{}[]^" + "".join(map(chr, range(0x20))))
_LONGEST_FOLDER_BYTES = 200

PartitionValues = tuple[str | None, ...]


def can_partition(kind: pa.DataType) -> bool:
    """Whether Delta can keep a value of this type as text and give it back unchanged."""
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
        or types.is_decimal(kind)
    )


def check_partition_columns(sink: str, schema: pa.Schema, partition_by: Sequence[str], what: str) -> None:
    """Refuse partition columns that do not exist, cannot name a folder, or leave no other column."""
    absent = [name for name in partition_by if name not in schema.names]
    if absent:
        facts = {"partition_by": ", ".join(partition_by), "columns": ", ".join(schema.names)}
        raise mismatch(sink, f'no column "{absent[0]}" to partition by', facts)
    for name in partition_by:
        if not can_partition(schema.field(name).type):
            facts = {"column": f"{name} {schema.field(name).type}"}
            raise mismatch(sink, f"{what} cannot be partitioned by a column of this type", facts)
    if len(partition_by) == len(schema.names):
        raise mismatch(sink, "every column is in partition_by, none is left for the files", {})


def split_by_values(rows: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Yield each combination of partition values with its rows, in their order, without those columns."""
    encoded = [encode(rows.column(name), partial(_text, rows.schema.field(name).type)) for name in columns]
    return split_by_codes(rows.drop_columns(list(columns)), encoded)


def split_by_codes(
    rows: pa.RecordBatch, columns: Sequence[tuple[list[Any], pa.Array]]
) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """Yield each combination of values with its rows, in their order. Each column is encoded as `encode` does.

    Rows of several combinations are copied, so that keeping a few of them does not keep the whole batch.
    """
    if not rows.num_rows:
        return
    if not columns:
        yield (), rows
        return
    combination: pa.Array = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    for distinct, codes in columns:
        combination = pc.add(pc.multiply(combination, len(distinct)), codes)
    values_by_column = [distinct for distinct, _ in columns]
    if pc.all(pc.equal(combination, combination[0])).as_py():
        yield _decode(values_by_column, combination[0].as_py()), rows
        return
    order = pc.array_sort_indices(combination)  # a stable sort: rows stay in the order of their offsets
    runs = pc.run_end_encode(combination.take(order))
    start = 0
    for code, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield _decode(values_by_column, code), rows.take(order.slice(start, end - start))
        start = end


def encode(column: pa.Array, change: Callable[[Any], Any]) -> tuple[list[Any], pa.Array]:
    """The distinct values of a column after `change`, and for each row the index of its value."""
    encoded = column.dictionary_encode(null_encoding="encode")
    changed = [change(value) for value in encoded.dictionary.to_pylist()]
    distinct = list(dict.fromkeys(changed))
    codes = {value: code for code, value in enumerate(distinct)}
    return distinct, pa.array([codes[value] for value in changed], pa.int64()).take(encoded.indices)


def folder_of(columns: Sequence[str], values: PartitionValues) -> str:
    """The Hive-style folder of some partition values; empty where there are none."""
    return "/".join(
        _short(f"{_escape(column)}={NULL_FOLDER if value is None else _escape(value)}")
        for column, value in zip(columns, values, strict=True)
    )


def _decode(values_by_column: Sequence[list[Any]], code: int) -> tuple[Any, ...]:
    values = []
    for distinct in reversed(values_by_column):
        code, place = divmod(code, len(distinct))
        values.append(distinct[place])
    return tuple(reversed(values))


def _text(kind: pa.DataType, value: object) -> str | None:
    """A partition value by the rules of the Delta protocol, section "Partition Value Serialization"."""
    if value is None or value == "":
        return None  # the protocol has no empty text: it reads back as null
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        written = value.replace(tzinfo=None).isoformat(sep="T" if kind.tz else " ", timespec="microseconds")
        return f"{written}Z" if kind.tz else written
    return format(value, "f") if types.is_decimal(kind) else str(value)


def _escape(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)


def _short(folder: str) -> str:
    # File systems refuse names over 255 bytes. Readers take the value from the log, never from the folder.
    written = folder.encode()
    if len(written) <= _LONGEST_FOLDER_BYTES:
        return folder
    kept = written[:_LONGEST_FOLDER_BYTES].decode(errors="ignore")
    return f"{kept}-{hashlib.sha256(written).hexdigest()[:16]}"
